"""Problem families: where problems come from and how responses are scored."""
