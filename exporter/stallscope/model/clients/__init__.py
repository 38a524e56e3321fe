"""Clients for Prometheus and for an exporter's page."""
