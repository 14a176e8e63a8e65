"""Checkpoints on disk: written whole or not at all, verified before use, never deleted under a reader."""
