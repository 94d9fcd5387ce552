"""What the Prefect UI shows of a run, and who else is told."""
