"""A run's report: what it gathers, draws and renders."""
