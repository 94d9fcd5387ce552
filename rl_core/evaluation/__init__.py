"""Stage 9: rows of an evaluation, their summary, and the champion's promotion."""
