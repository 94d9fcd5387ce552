"""A user's module that cannot be imported."""

raise RuntimeError("this module\nneeds a licence")
