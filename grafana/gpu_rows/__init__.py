"""Rows of the GPU dashboard, one module per row."""
