"""Whether every experience was trained at most once and none was lost, read from what a run leaves on disk."""
