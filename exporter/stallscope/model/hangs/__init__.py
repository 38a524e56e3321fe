"""Which rank the others wait for: from stacks, PyTorch's dumps and NCCL's service."""
