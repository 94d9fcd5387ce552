"""Runs work in a watched child process: if that dies or stalls, it is an exception here."""
