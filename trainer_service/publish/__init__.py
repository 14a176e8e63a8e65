"""Publishing weights: one publisher for each sync method."""
