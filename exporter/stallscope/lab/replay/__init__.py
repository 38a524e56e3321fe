"""Recordings of an exporter's pages, and the verdicts of the rules on them."""
