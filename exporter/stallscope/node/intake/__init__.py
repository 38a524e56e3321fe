"""Receives training reports, admits them, and holds the runs."""
