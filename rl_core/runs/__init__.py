"""A run's folder: record, metrics, rollouts, validation answers, lock and resume."""
