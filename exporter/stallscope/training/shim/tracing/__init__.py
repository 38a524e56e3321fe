"""Traces of selected steps."""
