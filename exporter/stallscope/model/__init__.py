"""Data that every view reads: metric families and causes, Prometheus, verdicts, data frames."""
