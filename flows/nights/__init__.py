"""The night's schedule and messages: what a user edits, what is sent, which nights did not run."""
