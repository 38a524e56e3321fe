"""Grafana dashboards, generated: one module a dashboard, on the builders in `builders/`."""
