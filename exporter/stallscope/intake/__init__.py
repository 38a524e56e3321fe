"""Receivers for training reports, their admission, and the runs that they report."""
