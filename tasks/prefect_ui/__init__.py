"""What the Prefect UI shows of a run, and notifications to others."""
