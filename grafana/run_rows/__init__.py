"""Rows of the run dashboard, one module per row."""
