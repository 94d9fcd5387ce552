"""What watches a run: trackers, memory, and what its metrics mean in words."""
