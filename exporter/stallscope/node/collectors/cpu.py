"""CPU time from `/proc/stat`, and once the names of the kernel and the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterable

from stallscope.model.catalogue.metrics import family
from stallscope.node.collectors.base import Collector, Environment, register
from stallscope.node.collectors.files import malformed, read_if_answered, read_text
from stallscope.node.sampling.reading import Sample

INFO = family("stallscope_host_info")
CPUS = family("stallscope_host_cpus")
SECONDS = family("stallscope_host_cpu_seconds_total")
BUSIEST = family("stallscope_host_busiest_cpu_seconds_total")

_MODES = ("user", "system", "iowait", "idle", "other")
_TICKS = os.sysconf("SC_CLK_TCK")
_RESET = 3 * _TICKS
"""Ticks. A counter that decreases by more was reset; smaller decreases are corrections of the kernel."""
_CPUINFO_HEAD = 4096
"""Enough of `/proc/cpuinfo` for the first CPU; each further one costs an interrupt on that CPU."""


@register
class Cpu(Collector):
    """Time of all CPUs by mode, and of the busiest CPU.

    `user` is user and nice time (guests are in it already), `system` is system, irq and softirq time, `other` is time
    stolen by the hypervisor. Busy is everything but `idle` and `iowait`.
    """

    name = "cpu"
    summary = "CPUs: time by mode and of the busiest one (/proc/stat)."

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._stat = str(environment.root / "proc/stat")
        self._release = str(environment.root / "proc/sys/kernel/osrelease")
        self._cpuinfo = str(environment.root / "proc/cpuinfo")
        self._info: tuple[Sample, ...] | None = None
        self._modes = tuple(_Rising() for _ in _MODES)
        self._busy: dict[str, int] = {}
        self._read_at = 0.0
        self._busiest = 0.0

    def read(self) -> Iterable[Sample]:
        """Read `/proc/stat` once.

        Raises:
            OSError: there is no `/proc/stat`: no Linux, or the wrong root.
            ValueError: it is not as the kernel writes it.
        """
        text = read_text(self._stat)
        now = self.environment.clock.monotonic()
        total, busy = self._parse(text)
        self._add_busiest(busy, now)
        if self._info is None:
            self._info = self._describe()
        return (
            *self._info,
            Sample(CPUS, (), len(busy)),
            *(
                Sample(SECONDS, (mode,), rising.update(ticks) / _TICKS)
                for mode, rising, ticks in zip(_MODES, self._modes, total, strict=True)
            ),
            Sample(BUSIEST, (), self._busiest),
        )

    def _parse(self, text: str) -> tuple[tuple[int, ...], dict[str, int]]:
        """Return ticks of all CPUs in the order of the modes, and busy ticks by CPU."""
        total: tuple[int, ...] | None = None
        busy: dict[str, int] = {}
        for line in text.split("\n"):
            if not line.startswith("cpu"):
                break  # the CPUs come first, and the rest can be long
            try:
                name, *fields = line.split(None, 9)
                user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields[:8])
            except ValueError:
                raise malformed(self._stat, line, "expected a CPU's name and 8 or more counts of ticks") from None
            if name == "cpu":
                total = (user + nice, system + irq + softirq, iowait, idle, steal)
            else:
                busy[name] = user + nice + system + irq + softirq + steal
        if total is None or not busy:
            raise malformed(self._stat, text.partition("\n")[0], "expected the lines cpu, cpu0, … at the top")
        return total, busy

    def _add_busiest(self, busy: dict[str, int], now: float) -> None:
        """Add the busy time of the busiest CPU since the last reading; without new CPUs."""
        before = self._busy
        gains = (ticks - before[name] for name, ticks in busy.items() if name in before)
        gain = max(gains, default=0) / _TICKS
        # Ticks are coarse: no CPU was busy for longer than the elapsed time.
        self._busiest += min(max(gain, 0.0), now - self._read_at)
        self._busy, self._read_at = busy, now

    def _describe(self) -> tuple[Sample, ...]:
        release = read_if_answered(self._release)
        if release is None:
            return ()
        return (Sample(INFO, (release.strip(), self._model()), 1),)

    def _model(self) -> str:
        """Return the first CPU's model; empty if the kernel has none, as on most ARM machines."""
        try:
            with open(self._cpuinfo, "rb", buffering=0) as cpuinfo:
                head = cpuinfo.read(_CPUINFO_HEAD).decode(errors="replace")
        except FileNotFoundError:
            return ""
        for line in head.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
        return ""


class _Rising:
    """Keeps a count monotonic: iowait and idle decrease slightly at times, and much when CPUs go offline."""

    def __init__(self) -> None:
        self._value = 0
        self._offset = 0

    def update(self, count: int) -> int:
        if count + self._offset < self._value - _RESET:
            self._offset = self._value - count
        self._value = max(self._value, count + self._offset)
        return self._value
