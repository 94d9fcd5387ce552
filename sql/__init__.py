"""Questions and checks in SQL, one SELECT per file; no Python."""
