"""Stage 4: the score of a response, by an env's rule or by the user's function."""
