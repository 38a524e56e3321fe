"""On each node: what the exporter reads, and the server that exposes it."""
