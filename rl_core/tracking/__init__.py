"""Observers of a run: trackers, memory, and a diagnosis of its metrics."""
