"""Single numbers of a device's queries."""

from __future__ import annotations

from collections.abc import Mapping

from stallscope.node.drivers.device import Device


def number(device: Device, query: str, signal: str, label: str = "") -> float:
    """Return one number of a query."""
    value = device.read(query)[signal]
    found = value[label] if isinstance(value, Mapping) else value
    assert isinstance(found, (int, float))
    return found


def watts(device: Device) -> float:
    return number(device, "power", "power_watts")


def celsius(device: Device) -> float:
    return number(device, "temperature", "temperature_celsius", "gpu")


def clock(device: Device, name: str) -> float:
    return number(device, "clocks", "clock_hertz", name)


def highest_clock(device: Device, name: str) -> float:
    return number(device, "clocks_max", "clock_max_hertz", name)


def memory(device: Device, kind: str) -> float:
    return number(device, "memory", f"memory_{kind}_bytes")
