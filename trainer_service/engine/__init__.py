"""Train engines behind one protocol."""
