"""Ray: which process runs where, what runs in it, and what it asks of others."""
