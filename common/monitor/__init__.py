"""Metrics, and the sinks that keep them."""
