"""The status page: GPUs, runs and collectors of this node for users without Grafana, and verdicts where available."""
