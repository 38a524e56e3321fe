"""A simulated node on any clock: GPUs behind the driver interface, ranks of the real shim, and a host."""

from stallscope.lab.simulation.simulation import Simulation

__all__ = ["Simulation"]
