"""The rows of the run's dashboard, one module a row."""
