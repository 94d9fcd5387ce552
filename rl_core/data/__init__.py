"""Stages 1 and 2: files -> problems -> prompt tokens, and which step sees what."""
