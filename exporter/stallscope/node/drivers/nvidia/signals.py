"""How NVIDIA's driver reports the signals of `drivers/signals.py`: calls of NVML and fields, by their names in pynvml.

Signals of several numbers (fans, NVLinks, clocks set below their maximum) are code in `device.py` and `fields.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from stallscope.node.drivers.device import Unsupported
from stallscope.node.drivers.nvidia.library import constant
from stallscope.node.drivers.signals import QUERIES, Signal


class Unit(NamedTuple):
    """A value in base units is the driver's number times `times`, divided by `over`."""

    times: int = 1
    over: int = 1


ONE, MILLI, NANO, MEGA = Unit(), Unit(over=1000), Unit(over=10**9), Unit(times=10**6)


def _itself(answer: Any) -> Any:
    return answer


@dataclass(frozen=True)
class Call:
    """A function that takes the device."""

    function: str
    arguments: tuple[str, ...] = ()
    """Names of constants."""
    unit: Unit = ONE
    take: Callable[[Any], Any] = _itself
    """Extracts the number from the result."""
    lasting: bool = False
    """True if the value is constant while the driver is loaded; it is read once."""
    zero_is_missing: bool = False


@dataclass(frozen=True)
class Field:
    """A field of `nvmlDeviceGetFieldValues`: all fields of a query are one call, so that it is the cheapest source."""

    constant: str
    unit: Unit = ONE
    zero_is_missing: bool = False


Source = Call | Field
Sources = Source | tuple[Source, ...]
"""Sources in order of preference: older drivers do not support the first."""


def _clocks(function: str) -> Mapping[str, Sources]:
    names = {"graphics": "GRAPHICS", "sm": "SM", "memory": "MEM", "video": "VIDEO"}
    return {clock: Call(function, (f"NVML_CLOCK_{name}",), MEGA) for clock, name in names.items()}


def _threshold(name: str) -> Call:
    threshold = f"NVML_TEMPERATURE_THRESHOLD_{name}"
    return Call("nvmlDeviceGetTemperatureThreshold", (threshold,), zero_is_missing=True)


def _ecc(kind: str) -> Call:
    return Call("nvmlDeviceGetTotalEccErrors", (f"NVML_MEMORY_ERROR_TYPE_{kind}", "NVML_VOLATILE_ECC"))


def _retired(cause: str) -> Call:
    return Call("nvmlDeviceGetRetiredPages", (f"NVML_PAGE_RETIREMENT_CAUSE_{cause}",), take=len)


def _remapped(place: int) -> Call:
    return Call("nvmlDeviceGetRemappedRows", take=itemgetter(place))


_THROTTLED = "NVML_FI_DEV_CLOCKS_EVENT_REASON_"

SOURCES: Mapping[str, Mapping[str, Sources | Mapping[str, Sources]]] = {
    "counters": {
        "energy_joules_total": (
            Field("NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION", MILLI),
            Call("nvmlDeviceGetTotalEnergyConsumption", unit=MILLI),
        ),
        "throttled_seconds_total": {  # the general hardware slowdown has no counter
            "power_cap": Field(_THROTTLED + "SW_POWER_CAP", NANO),
            "sync_boost": Field(_THROTTLED + "SYNC_BOOST", NANO),
            "sw_thermal": Field(_THROTTLED + "SW_THERM_SLOWDOWN", NANO),
            "hw_thermal": Field(_THROTTLED + "HW_THERM_SLOWDOWN", NANO),
            "power_brake": Field(_THROTTLED + "HW_POWER_BRAKE_SLOWDOWN", NANO),
        },
        # GPUs without that sensor were seen to answer 0 instead of "not supported".
        "temperature_celsius": {"memory": Field("NVML_FI_DEV_MEMORY_TEMP", zero_is_missing=True)},
        # Bytes, going by their names: NVIDIA documents no unit. TX is what the GPU sends, as in GPM.
        "pcie_transmit_bytes_total": Field("NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
        "pcie_receive_bytes_total": Field("NVML_FI_DEV_PCIE_COUNT_RX_BYTES"),
        # NVML_FI_DEV_POWER_AVERAGE is never queried: it was seen to take 3 ms.
    },
    "memory": {
        # The first version of the call, if there is no second, counts reserved memory as used.
        "memory_total_bytes": Call("nvmlDeviceGetMemoryInfo", take=attrgetter("total")),
        "memory_used_bytes": Call("nvmlDeviceGetMemoryInfo", take=attrgetter("used")),
        "memory_reserved_bytes": Call("nvmlDeviceGetMemoryInfo", take=attrgetter("reserved")),
    },
    "power": {"power_watts": Call("nvmlDeviceGetPowerUsage", unit=MILLI)},
    "temperature": {
        "temperature_celsius": {
            "gpu": (
                Call("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),  # announced to go with CUDA 14
                Call("nvmlDeviceGetTemperatureV", ("NVML_TEMPERATURE_GPU",)),
            )
        },
    },
    "clocks": {"clock_hertz": _clocks("nvmlDeviceGetClockInfo")},
    "health": {
        "ecc_errors_total": {
            "corrected": (Field("NVML_FI_DEV_ECC_SBE_VOL_TOTAL"), _ecc("CORRECTED")),
            "uncorrected": (Field("NVML_FI_DEV_ECC_DBE_VOL_TOTAL"), _ecc("UNCORRECTED")),
        },
        "retired_pages": {
            "single_bit": (Field("NVML_FI_DEV_RETIRED_SBE"), _retired("MULTIPLE_SINGLE_BIT_ECC_ERRORS")),
            "double_bit": (Field("NVML_FI_DEV_RETIRED_DBE"), _retired("DOUBLE_BIT_ECC_ERROR")),
        },
        "pcie_replays_total": (Field("NVML_FI_DEV_PCIE_REPLAY_COUNTER"), Call("nvmlDeviceGetPcieReplayCounter")),
        "remapped_rows": {
            "corrected": (Field("NVML_FI_DEV_REMAPPED_COR"), _remapped(0)),
            "uncorrected": (Field("NVML_FI_DEV_REMAPPED_UNC"), _remapped(1)),
        },
        "row_remap_pending": (Field("NVML_FI_DEV_REMAPPED_PENDING"), _remapped(2)),
        "row_remap_failed": (Field("NVML_FI_DEV_REMAPPED_FAILURE"), _remapped(3)),
    },
    "pcie_link": {
        "pcie_link_generation": Call("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_link_generation_max": Call("nvmlDeviceGetMaxPcieLinkGeneration", lasting=True),
        "pcie_link_width": Call("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_link_width_max": Call("nvmlDeviceGetMaxPcieLinkWidth", lasting=True),
    },
    "power_limits": {
        "power_limit_watts": Call("nvmlDeviceGetEnforcedPowerLimit", unit=MILLI),
        "power_limit_default_watts": Call("nvmlDeviceGetPowerManagementDefaultLimit", unit=MILLI),
    },
    "bar1": {
        "bar1_total_bytes": Call("nvmlDeviceGetBAR1MemoryInfo", take=attrgetter("bar1Total")),
        "bar1_used_bytes": Call("nvmlDeviceGetBAR1MemoryInfo", take=attrgetter("bar1Used")),
    },
    "clocks_configured": {"clock_configured_hertz": _clocks("nvmlDeviceGetApplicationsClock")},
    "temperature_limits": {
        "temperature_limit_celsius": {
            "shutdown": _threshold("SHUTDOWN"),
            "slowdown": _threshold("SLOWDOWN"),
            "memory_max": _threshold("MEM_MAX"),
            "gpu_max": _threshold("GPU_MAX"),
        }
    },
    "clocks_max": {"clock_max_hertz": _clocks("nvmlDeviceGetMaxClockInfo")},
    "persistence_mode": {"persistence_mode": Call("nvmlDeviceGetPersistenceMode")},
}
"""By query and signal; for a signal with a label of its own, by its value."""


class Origin(NamedTuple):
    """A source with the values of its constants."""

    key: tuple[Any, ...]
    """Id and scope of a field; function and arguments of a call."""
    call: Call | None
    """None for a field."""
    unit: Unit
    zero_is_missing: bool
    least: float
    most: float
    """Plausible range of the driver's own number."""
    served: str = ""
    """Describes the source, with all fields of the signal."""


class Row(NamedTuple):
    """One value of a query: of a signal, or of one label of it."""

    signal: str
    label: str
    limit: str
    """Signal of the same query that is the largest plausible value; empty where the range is fixed."""
    origins: tuple[Origin, ...]


@cache
def rows(query: str) -> tuple[Row, ...]:
    """Return the values of a query in their order; empty for a query that has no table."""
    found: list[Row] = []
    for name, entry in SOURCES.get(query, {}).items():
        signal = QUERIES[query][name]
        limit = signal.most if isinstance(signal.most, str) else ""
        labelled = entry if isinstance(entry, Mapping) else {"": entry}
        origins = {label: list(_origins(signal, sources)) for label, sources in labelled.items()}
        ids = [each.key[0] for several in origins.values() for each in several if each.call is None]
        for label, several in origins.items():
            named = [each._replace(served=each.call.function if each.call else called(*ids)) for each in several]
            found.append(Row(name, label, limit, tuple(named)))
    return tuple(found)


def fields(query: str) -> tuple[tuple[int, int], ...]:
    """Return the fields of a query in their order."""
    origins = (origin for row in rows(query) for origin in row.origins)
    return tuple(origin.key for origin in origins if origin.call is None)


def called(*fields: int) -> str:
    """Describe a call of the fields with these ids."""
    return f"nvmlDeviceGetFieldValues({', '.join(str(each) for each in dict.fromkeys(fields))})"


def _origins(signal: Signal, sources: Sources) -> Iterator[Origin]:
    for source in sources if isinstance(sources, tuple) else (sources,):
        call = source if isinstance(source, Call) else None
        names = (source.constant,) if isinstance(source, Field) else source.arguments
        try:
            values = tuple(constant(name) for name in names)
        except Unsupported:  # an older binding
            continue
        times, over = source.unit
        yield Origin(
            key=(*values, 0) if call is None else (call.function, *values),
            call=call,
            unit=source.unit,
            zero_is_missing=source.zero_is_missing,
            least=0 if source.zero_is_missing else signal.least * over / times,
            most=math.inf if isinstance(signal.most, str) else signal.most * over / times,
        )
