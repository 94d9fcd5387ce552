"""How long a run takes: planned by device, measured, and what is left."""
