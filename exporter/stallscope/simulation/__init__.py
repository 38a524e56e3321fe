"""A simulated node: GPUs behind the driver interface, ranks through the real shim, and a host, on any clock."""
