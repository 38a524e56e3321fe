"""Who holds a GPU: pod, Slurm job, container, user; empty until owners are looked up."""
