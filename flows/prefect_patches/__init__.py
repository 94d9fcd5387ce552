"""Where Prefect alone would lose a night, or asks for a longer name."""
