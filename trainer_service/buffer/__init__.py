"""Experiences on their way into a step."""
