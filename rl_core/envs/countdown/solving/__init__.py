"""Every solution of a puzzle: expressions in a normal form, their values, and their texts."""
