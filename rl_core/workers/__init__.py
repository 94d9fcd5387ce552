"""Ray: which process runs where, what runs in it, and the calls between processes."""
