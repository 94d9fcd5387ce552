"""The night's schedule and messages: what a user edits, and what is sent."""
