"""Batches of field values: one driver call for many numbers, each with a return code of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from stallscope.drivers.device import Counters, Health, Unsupported
from stallscope.drivers.nvidia.library import NOT_SUPPORTED
from stallscope.drivers.nvidia.session import INVALID_ARGUMENT, UNSUPPORTED
from stallscope.drivers.plausibility import Scrutiny
from stallscope.drivers.retry import Retry

Field = tuple[int, int]
"""Field id and scope (NVML_FI_*, nvmlFieldValue_t.scopeId)."""
Answers = Mapping[Field, "int | float"]
FieldCall = Callable[..., list[tuple[int, "int | float | None"]]]
"""Takes a function's name and arguments, and knows the GPU."""

ALL_LINKS = 0xFFFF_FFFF
"""The scope that sums an NVLink field over all links."""
NVLINKS = 18
"""NVML_NVLINK_MAX_LINKS."""
_MOST_NVLINKS = 72

MOST_MILLIJOULES = 10**16
MOST_CELSIUS = 150
MOST_COUNT = 1 << 62
_MOST_NANOSECONDS = 10**18
MOST_ROWS = 1 << 24

_ENERGY: Field = (83, 0)
_THROTTLED: Mapping[Field, str] = {
    (74, 0): "power_cap",
    (76, 0): "sync_boost",
    (269, 0): "sw_thermal",
    (270, 0): "hw_thermal",
    (271, 0): "power_brake",
}
"""Cumulative nanoseconds. The general hardware slowdown has no counter."""
_MEMORY_TEMPERATURE: Field = (82, 0)
# Bytes, going by their names (NVML_FI_DEV_PCIE_COUNT_TX_BYTES and RX_BYTES): NVIDIA documents no unit. TX is what the
# GPU sends, as in GPM's "PCIe traffic from this GPU".
_PCIE_TRANSMITTED: Field = (197, 0)
_PCIE_RECEIVED: Field = (198, 0)
# KiB of data since the driver was loaded, over all links; where they are lacking, bytes of each NVLink 5 link.
_NVLINK_TRANSMITTED: Field = (138, ALL_LINKS)
_NVLINK_RECEIVED: Field = (139, ALL_LINKS)
_NVLINK5_TRANSMITTED = tuple((202, link) for link in range(NVLINKS))
_NVLINK5_RECEIVED = tuple((204, link) for link in range(NVLINKS))
# POWER_AVERAGE (185) is never asked: it was seen to take 3 ms.
_COUNTER_FIELDS = (
    _ENERGY,
    *_THROTTLED,
    _MEMORY_TEMPERATURE,
    _PCIE_TRANSMITTED,
    _PCIE_RECEIVED,
    _NVLINK_TRANSMITTED,
    _NVLINK_RECEIVED,
    *_NVLINK5_TRANSMITTED,
    *_NVLINK5_RECEIVED,
)

_ECC: Mapping[Field, str] = {(3, 0): "corrected", (4, 0): "uncorrected"}
_RETIRED: Mapping[Field, str] = {(29, 0): "single_bit", (30, 0): "double_bit"}
_PCIE_REPLAYS: Field = (94, 0)
_REMAPPED: Mapping[Field, str] = {(142, 0): "corrected", (143, 0): "uncorrected"}
_REMAP_PENDING: Field = (144, 0)
_REMAP_FAILED: Field = (145, 0)
# Newer id first, then the older ones that it stands for.
_NVLINK_ERRORS: Mapping[str, tuple[Field, ...]] = {
    "replay": ((161, ALL_LINKS), (52, 0)),
    "recovery": ((162, ALL_LINKS), (59, 0)),
    "crc": ((163, ALL_LINKS), (38, 0), (45, 0)),
}
_NVLINK_ERROR_FIELDS = tuple(field for fields in _NVLINK_ERRORS.values() for field in fields)
_NVLINK_COUNT: Field = (91, 0)
_NVLINK_STATE = 165
_NVLINK_UP = frozenset({1, 2})
"""Active, and asleep to save power; inactive and "traffic disabled" are down."""
_HEALTH_FIELDS = (
    *_ECC,
    *_RETIRED,
    _PCIE_REPLAYS,
    *_REMAPPED,
    _REMAP_PENDING,
    _REMAP_FAILED,
    *_NVLINK_ERROR_FIELDS,
    _NVLINK_COUNT,
    *((_NVLINK_STATE, link) for link in range(NVLINKS)),
)


class FieldBatch:
    """Fields of one GPU that are queried in one call; those that it refuses only now and then."""

    def __init__(
        self, call: FieldCall, fields: tuple[Field, ...], retry: Retry, monotonic: Callable[[], float]
    ) -> None:
        """Note what to query.

        Args:
            call: makes a driver call for the GPU.
            fields: the fields.
            retry: keeps the refusals.
            monotonic: clock, seconds.
        """
        self._call = call
        self._fields = fields
        self._retry = retry
        self._monotonic = monotonic
        self._answered: set[Field] = set()

    def ask(self) -> dict[Field, int | float]:
        """Return the values of those fields whose own return code says success; no call where no field is due.

        Raises:
            DriverError: the whole call failed otherwise than for want of support.
        """
        now = self._monotonic()
        due = self._retry.select(self._fields, now)
        if not due:
            return {}
        try:
            answers = self._call("nvmlDeviceGetFieldValues", due)
        except Unsupported:
            answers = [(NOT_SUPPORTED, None)] * len(due)
        found: dict[Field, int | float] = {}
        for field, (code, value) in zip(due, answers, strict=True):
            if value is not None:
                found[field] = value
            elif code in UNSUPPORTED or code == INVALID_ARGUMENT:  # the latter: an id, or a link, that is not there
                self._retry.refused(field, now)
        self._retry.answered(*found)
        self._answered.update(found)
        return found

    def answered(self, fields: Iterable[Field]) -> list[Field]:
        """Return those of the fields that were ever answered: what is summed is complete only with all of them."""
        return [field for field in fields if field in self._answered]

    def leave_out(self, fields: Iterable[Field]) -> None:
        """Do not query these any more."""
        gone = set(fields)
        self._fields = tuple(field for field in self._fields if field not in gone)

    def include(self, fields: Iterable[Field]) -> None:
        """Query these too from now on."""
        self._fields = (*self._fields, *fields)


BatchOf = Callable[[tuple[Field, ...]], FieldBatch]
"""Makes a batch for one GPU."""


class CounterFields:
    """What the driver counts by itself, in one call."""

    def __init__(self, batch_of: BatchOf, scrutiny: Scrutiny, served: dict[str, str]) -> None:
        """Prepare for one GPU; `served` receives the field that serves each signal."""
        self._batch = batch_of(_COUNTER_FIELDS)
        self._scrutiny = scrutiny
        self._served = served
        self._received = _LinkBytes(_NVLINK_RECEIVED, _NVLINK5_RECEIVED)
        self._transmitted = _LinkBytes(_NVLINK_TRANSMITTED, _NVLINK5_TRANSMITTED)

    def read(self) -> Counters:
        """Ask, and take what can be meant."""
        answers = self._batch.ask()
        number, served = self._scrutiny.number, self._served
        energy = number(answers.get(_ENERGY), MOST_MILLIJOULES)
        throttled: dict[str, float] = {}
        for field, reason in _THROTTLED.items():
            nanoseconds = number(answers.get(field), _MOST_NANOSECONDS)
            if nanoseconds is not None:
                throttled[reason] = nanoseconds / 1e9
        # GPUs without that sensor were seen to answer 0 instead of "not supported".
        celsius = number(answers.get(_MEMORY_TEMPERATURE), MOST_CELSIUS) or None
        pcie_received = number(answers.get(_PCIE_RECEIVED), MOST_COUNT)
        pcie_transmitted = number(answers.get(_PCIE_TRANSMITTED), MOST_COUNT)
        nvlink_received = self._received.of(answers, self._batch, self._scrutiny)
        nvlink_transmitted = self._transmitted.of(answers, self._batch, self._scrutiny)
        if energy is not None:
            served["energy_joules_total"] = _ENERGY_CALL
        if throttled:
            served["throttled_seconds_total"] = _THROTTLED_CALL
        if pcie_received is not None:
            served["pcie_receive_bytes_total"] = _PCIE_RECEIVED_CALL
        if pcie_transmitted is not None:
            served["pcie_transmit_bytes_total"] = _PCIE_TRANSMITTED_CALL
        if nvlink_received is not None:
            served["nvlink_receive_bytes_total"] = self._received.call
        if nvlink_transmitted is not None:
            served["nvlink_transmit_bytes_total"] = self._transmitted.call
        return Counters(
            energy=None if energy is None else energy / 1000,
            throttled=throttled,
            memory_temperature=None if celsius is None else float(celsius),
            pcie_received=_whole(pcie_received),
            pcie_transmitted=_whole(pcie_transmitted),
            nvlink_received=nvlink_received,
            nvlink_transmitted=nvlink_transmitted,
        )


class HealthFields:
    """Error counts and states, in one call; what is missing here may have an older call of its own."""

    def __init__(self, batch_of: BatchOf, scrutiny: Scrutiny, served: dict[str, str]) -> None:
        """As `CounterFields`."""
        self._batch = batch_of(_HEALTH_FIELDS)
        self._scrutiny = scrutiny
        self._served = served
        self._links: list[Field] = []

    @property
    def counts_links(self) -> bool:
        """True once the state of an NVLink was answered."""
        return bool(self._links)

    def read(self) -> Health:
        """Ask, and take what can be meant."""
        answers = self._batch.ask()
        states = self._states(answers)
        found = Health(
            ecc_errors=self._several(answers, _ECC, MOST_COUNT),
            remapped_rows=self._several(answers, _REMAPPED, MOST_ROWS),
            row_remap_pending=self._flag(answers, _REMAP_PENDING),
            row_remap_failed=self._flag(answers, _REMAP_FAILED),
            retired_pages=self._several(answers, _RETIRED, MOST_ROWS),
            pcie_replays=_whole(self._scrutiny.number(answers.get(_PCIE_REPLAYS), MOST_COUNT)),
            nvlink_errors=self._link_errors(answers),
            nvlink_links=len(states) or None,
            nvlink_links_active=sum(state in _NVLINK_UP for state in states) if states else None,
        )
        for signal, told, fields in (
            ("ecc_errors_total", found.ecc_errors, _ECC),
            ("remapped_rows", found.remapped_rows, _REMAPPED),
            ("row_remap_pending", found.row_remap_pending is not None, (_REMAP_PENDING,)),
            ("row_remap_failed", found.row_remap_failed is not None, (_REMAP_FAILED,)),
            ("retired_pages", found.retired_pages, _RETIRED),
            ("pcie_replays_total", found.pcie_replays is not None, (_PCIE_REPLAYS,)),
            ("nvlink_errors_total", found.nvlink_errors, [f for f in _NVLINK_ERROR_FIELDS if f in answers]),
            ("nvlink_links", states, ((_NVLINK_STATE, 0),)),
            ("nvlink_links_active", states, ((_NVLINK_STATE, 0),)),
        ):
            if told:
                self._served[signal] = _call_of(*fields)
        return found

    def _several(self, answers: Answers, fields: Mapping[Field, str], most: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for field, name in fields.items():
            value = self._scrutiny.number(answers.get(field), most)
            if value is not None:
                found[name] = int(value)
        return found

    def _flag(self, answers: Answers, field: Field) -> bool | None:
        value = self._scrutiny.number(answers.get(field), 1)
        return None if value is None else bool(value)

    def _link_errors(self, answers: Answers) -> dict[str, int]:
        found: dict[str, int] = {}
        for kind, (newer, *older) in _NVLINK_ERRORS.items():
            # Whichever answers first is kept to: the two need not count alike.
            if newer in answers:
                self._batch.leave_out(older)
                fields = [newer]
            else:
                fields = self._batch.answered(older)
                if all(field in answers for field in fields) and fields:
                    self._batch.leave_out([newer])
            count = _sum(fields, answers, self._scrutiny)
            if count is not None:
                found[kind] = count
        return found

    def _states(self, answers: Answers) -> list[int | float]:
        links = self._scrutiny.number(answers.get(_NVLINK_COUNT), _MOST_NVLINKS)
        if links is not None:
            self._batch.leave_out([_NVLINK_COUNT])  # it does not change
            self._batch.include((_NVLINK_STATE, link) for link in range(NVLINKS, int(links)))
        self._links += [field for field in answers if field[0] == _NVLINK_STATE and field not in self._links]
        states = [self._scrutiny.number(answers.get(link), 0xFF) for link in self._links]
        found = [state for state in states if state is not None]
        return found if len(found) == len(states) else []  # a part of the links would look like fewer links


class _LinkBytes:
    """Bytes over all NVLinks in one direction: by the total or else summed; whichever answers first is kept to."""

    def __init__(self, total: Field, links: tuple[Field, ...]) -> None:
        self._total: Field | None = total
        self._links = links

    @property
    def call(self) -> str:
        """What serves it."""
        return _call_of(*self._links[:1] if self._total is None else [self._total])

    def of(self, answers: Answers, batch: FieldBatch, scrutiny: Scrutiny) -> int | None:
        """The bytes; None unless every link's are told and sound."""
        if self._total is not None and self._total in answers:
            if self._links:
                batch.leave_out(self._links)
                self._links = ()
            kibibytes = scrutiny.number(answers[self._total], MOST_COUNT)
            return None if kibibytes is None else int(kibibytes) * 1024
        count = _sum(batch.answered(self._links), answers, scrutiny)
        if count is not None and self._total is not None:
            batch.leave_out([self._total])
            self._total = None
        return count


def _sum(fields: Sequence[Field], answers: Answers, scrutiny: Scrutiny) -> int | None:
    """The sum over fields; None where one is missing or can't be meant, since a sum without it would go back."""
    if not fields or any(field not in answers for field in fields):
        return None
    counts = [scrutiny.number(answers[field], MOST_COUNT) for field in fields]
    return None if None in counts else sum(int(count) for count in counts if count is not None)


def _call_of(*fields: Field) -> str:
    ids = dict.fromkeys(str(field) for field, _ in fields)
    return f"nvmlDeviceGetFieldValues({', '.join(ids)})"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


_ENERGY_CALL = _call_of(_ENERGY)
_THROTTLED_CALL = _call_of(*_THROTTLED)
_PCIE_RECEIVED_CALL = _call_of(_PCIE_RECEIVED)
_PCIE_TRANSMITTED_CALL = _call_of(_PCIE_TRANSMITTED)
