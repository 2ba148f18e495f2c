"""Health, metrics, logs and spans."""
