"""Run the exporter, Prometheus, Alertmanager and Grafana on this machine with the bundle's own configuration."""
