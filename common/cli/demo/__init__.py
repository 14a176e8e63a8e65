"""The demo: its configurations, and the model that it starts from."""
