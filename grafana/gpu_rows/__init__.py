"""The rows of the dashboard of GPUs, one module a row."""
