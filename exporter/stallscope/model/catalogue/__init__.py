"""Metric families, causes and reasons for lost GPUs, as data."""
