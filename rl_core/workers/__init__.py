"""Ray: who runs where, what runs in each process, and who talks to whom."""
