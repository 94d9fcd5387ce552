"""The supervised start: a base model made at home from worked examples."""
