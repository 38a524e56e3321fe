"""The status page: GPUs, runs and sources of this node for those without Grafana, and verdicts if available."""
