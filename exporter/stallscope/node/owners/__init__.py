"""Owners of GPUs: pod, Slurm job, container, user."""
