"""Grafana dashboards, generated from code: one module per dashboard, based on `builders/`."""
