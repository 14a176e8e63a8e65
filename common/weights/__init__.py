"""Weights in motion: manifests, chunks, and their assembly."""
