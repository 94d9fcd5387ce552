"""Every setting of a run: default, bound and unit."""
