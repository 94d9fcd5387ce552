"""Work in a watched child process: whatever kills or stalls it is an exception here."""
