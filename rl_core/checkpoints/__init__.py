"""Stage 8: checkpoints saved, verified, found again, and pruned."""
