"""Rows of the fleet dashboard."""
