"""Who holds a GPU: pod, Slurm job, container, user."""
