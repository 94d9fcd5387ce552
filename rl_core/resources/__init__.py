"""Memory, disk, time and cost: planned before a run, and what to do when they run out."""
