"""The trainer: experiences → steps → weights."""
