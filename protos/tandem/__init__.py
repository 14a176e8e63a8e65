"""Package of the protos."""
