"""Read back from Prometheus what it recorded; empty until reports and frames come."""
