"""A simulated node: GPUs behind the driver interface, ranks through the real shim, and a host, on any clock."""

from stallscope.simulation.simulation import Simulation

__all__ = ["Simulation"]
