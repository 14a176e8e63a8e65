"""Experiences and their columnar form."""
