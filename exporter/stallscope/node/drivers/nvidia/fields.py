"""Batches of field values: one driver call for many numbers, each with a return code of its own.

NVLinks are here too: drivers report them in two ways, over all links and by link, one of which is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from stallscope.node.drivers.device import Unsupported
from stallscope.node.drivers.nvidia.library import NOT_SUPPORTED, constant
from stallscope.node.drivers.nvidia.session import INVALID_ARGUMENT, UNSUPPORTED
from stallscope.node.drivers.nvidia.signals import called
from stallscope.node.drivers.plausibility import Plausibility
from stallscope.node.drivers.retry import Retry

Field = tuple[int, int]
"""Field id and scope (NVML_FI_*, nvmlFieldValue_t.scopeId)."""
Answers = Mapping[Field, "int | float"]
FieldCall = Callable[..., list[tuple[int, "int | float | None"]]]
"""Calls a function by its name, for one GPU."""

ALL_LINKS = 0xFFFF_FFFF
"""The scope that sums an NVLink field over all links."""
NVLINKS = 18
"""Links that are queried before their number is known."""
_MOST_NVLINKS = 72
_MOST_COUNT = 1 << 62

# Newer field first, then the older ones that it stands for.
_ERRORS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "replay": (
        ("NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", ALL_LINKS),
        ("NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 0),
    ),
    "recovery": (
        ("NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY", ALL_LINKS),
        ("NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 0),
    ),
    "crc": (
        ("NVML_FI_DEV_NVLINK_ERROR_DL_CRC", ALL_LINKS),
        ("NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 0),
        ("NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 0),
    ),
}
_UP = frozenset({1, 2})
"""States that count as up: active, and suspended to save power; inactive and "traffic disabled" are down."""


class FieldBatch:
    """Fields of one GPU that are queried in one call; refused fields only from time to time."""

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

    def query(self) -> dict[Field, int | float]:
        """Return the values of those fields whose own return code says success; no call if no field is due.

        Raises:
            DriverError: the whole call failed, other than by missing support.
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
        """Return the fields that have had a value; a sum is complete only with all of them."""
        return [field for field in fields if field in self._answered]

    def leave_out(self, fields: Iterable[Field]) -> None:
        """Stop querying these fields."""
        gone = set(fields)
        self._fields = tuple(field for field in self._fields if field not in gone)

    def include(self, fields: Iterable[Field]) -> None:
        """Also query these fields from now on."""
        self._fields = (*self._fields, *fields)


class LinkTraffic:
    """Bytes over all NVLinks in both directions, by name of the signal."""

    def __init__(self) -> None:
        """Look up the fields; they follow those of the query's table."""
        self._directions = {
            f"nvlink_{direction}_bytes_total": _LinkBytes(
                (constant(f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{short}"), ALL_LINKS),
                tuple((constant(f"NVML_FI_DEV_NVLINK_COUNT_{long}_BYTES"), link) for link in range(NVLINKS)),
            )
            for direction, short, long in (("transmit", "TX", "XMIT"), ("receive", "RX", "RCV"))
        }
        both = self._directions.values()
        self.fields = (*(each.total for each in both), *(link for each in both for link in each.links))

    def read(
        self, answers: Answers, batch: FieldBatch, plausibility: Plausibility, served: dict[str, str]
    ) -> dict[str, float]:
        """Return the known bytes of both directions, and store their fields in `served`."""
        found: dict[str, float] = {}
        for signal, direction in self._directions.items():
            count = direction.read(answers, batch, plausibility)
            if count is not None:
                found[signal], served[signal] = count, direction.call
        return found


class LinkHealth:
    """Errors and states of NVLinks."""

    def __init__(self) -> None:
        """Look up the fields; they follow those of the query's table."""
        self._errors = {
            kind: tuple((constant(name), scope) for name, scope in fields) for kind, fields in _ERRORS.items()
        }
        self._count: Field = (constant("NVML_FI_DEV_NVLINK_LINK_COUNT"), 0)
        self._state = constant("NVML_FI_DEV_NVLINK_GET_STATE")
        self._links: list[Field] = []
        self.fields = (
            *(field for fields in self._errors.values() for field in fields),
            self._count,
            *((self._state, link) for link in range(NVLINKS)),
        )

    @property
    def counts_links(self) -> bool:
        """True if the state of an NVLink is known."""
        return bool(self._links)

    def read(
        self, answers: Answers, batch: FieldBatch, plausibility: Plausibility, served: dict[str, str]
    ) -> dict[str, float | Mapping[str, float]]:
        """Return the known values by signal, and store their fields in `served`."""
        found: dict[str, float | Mapping[str, float]] = {}
        states = self._states(answers, batch, plausibility)
        errors = self._counts(answers, batch, plausibility)
        if errors:
            ids = [field[0] for fields in self._errors.values() for field in fields if field in answers]
            found["nvlink_errors_total"], served["nvlink_errors_total"] = errors, called(*ids)
        if states:
            found |= {"nvlink_links": len(states), "nvlink_links_active": sum(state in _UP for state in states)}
            served["nvlink_links"] = served["nvlink_links_active"] = called(self._state)
        return found

    def _counts(self, answers: Answers, batch: FieldBatch, plausibility: Plausibility) -> dict[str, float]:
        found: dict[str, float] = {}
        for kind, (newer, *older) in self._errors.items():
            # Whichever answers first is kept to: the two need not count alike.
            if newer in answers:
                batch.leave_out(older)
                fields = [newer]
            else:
                fields = batch.answered(older)
                if all(field in answers for field in fields) and fields:
                    batch.leave_out([newer])
            count = _sum(fields, answers, plausibility)
            if count is not None:
                found[kind] = count
        return found

    def _states(self, answers: Answers, batch: FieldBatch, plausibility: Plausibility) -> list[int | float]:
        links = plausibility.number(answers.get(self._count), _MOST_NVLINKS)
        if links is not None:
            batch.leave_out([self._count])  # it does not change
            batch.include((self._state, link) for link in range(NVLINKS, int(links)))
        self._links += [field for field in answers if field[0] == self._state and field not in self._links]
        states = [plausibility.number(answers.get(link), 0xFF) for link in self._links]
        found = [state for state in states if state is not None]
        return found if len(found) == len(states) else []  # a part of the links would look like fewer links


class _LinkBytes:
    """Bytes over all NVLinks in one direction: the total or the sum over links, whichever has a value first."""

    def __init__(self, total: Field, links: tuple[Field, ...]) -> None:
        # KiB since the driver was loaded, over all links; where they are lacking, bytes of each NVLink 5 link.
        self.total = total
        self.links = links
        self._by_total = self._by_link = True
        """Those of the two that may still have a value."""

    @property
    def call(self) -> str:
        """Calls of the chosen one."""
        return called(self.total[0] if self._by_total else self.links[0][0])

    def read(self, answers: Answers, batch: FieldBatch, plausibility: Plausibility) -> int | None:
        """Return the bytes; None unless every link has a plausible value."""
        if self._by_total and self.total in answers:
            if self._by_link:
                batch.leave_out(self.links)
                self._by_link = False
            kibibytes = plausibility.number(answers[self.total], _MOST_COUNT)
            return None if kibibytes is None else int(kibibytes) * 1024
        count = _sum(batch.answered(self.links), answers, plausibility) if self._by_link else None
        if count is not None and self._by_total:
            batch.leave_out([self.total])
            self._by_total = False
        return count


def _sum(fields: Sequence[Field], answers: Answers, plausibility: Plausibility) -> int | None:
    """Return the sum over fields; None where one is missing or implausible, because a sum without it would decrease."""
    if not fields or any(field not in answers for field in fields):
        return None
    counts = [plausibility.number(answers[field], _MOST_COUNT) for field in fields]
    return None if None in counts else sum(int(count) for count in counts if count is not None)
