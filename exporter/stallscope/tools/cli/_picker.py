"""Poll the GPUs for `stallscope pick`, choose some, and claim them."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from stallscope.model.clients.address import default_exporter
from stallscope.model.clients.exporter import ExporterClient, ExporterError
from stallscope.model.clients.exposition import Page
from stallscope.node.drivers.device import Driver, DriverError
from stallscope.node.drivers.nvidia.nvml import NvmlDriver
from stallscope.node.drivers.pci import pci_gpus
from stallscope.tools.capacity.choice import Wanted, choose, host_against, judge, never
from stallscope.tools.capacity.claims import Claims, ClaimsFailed, shared_folder
from stallscope.tools.capacity.exporter import WANTED, with_exporter
from stallscope.tools.capacity.gpu import GpuNow
from stallscope.tools.capacity.host import cpu_time, host
from stallscope.tools.capacity.reading import read
from stallscope.tools.capacity.visible import visible
from stallscope.tools.cli._picked import Picked, refusal
from stallscope.tools.cli._progress import progress

_POLL_SECONDS = 10.0
"""Interval between two polls while waiting. One poll takes the driver a few milliseconds per GPU."""
_NO_DRIVER = (
    "pick needs NVIDIA's driver: `nvidia-smi` must work first (install or load the driver, and start containers with "
    "their GPUs: docker run --gpus all)"
)
_NO_GPU_IN_JOB = "a Slurm job sees only its allocated GPUs; request some, for example with sbatch --gpus=1"
_AMD = (
    "this machine's GPUs are AMD's, and pick supports only NVIDIA's; find idle ones with `stallscope top` and set "
    "ROCR_VISIBLE_DEVICES"
)


class PickFailed(Exception):
    """No GPU can be chosen at all; the message is shown to the user."""


class Picker:
    """Search for GPUs that fit the command line."""

    def __init__(
        self,
        parsed: argparse.Namespace,
        *,
        running: bool,
        driver: Callable[[], Driver] = NvmlDriver,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Find the folder of claims. The GPUs are not polled yet.

        Args:
            parsed: the command line.
            running: True if a command will run on the GPUs; it holds the claims while it runs.
            driver: connects to the driver.
            pause: sleeps for some seconds.

        Raises:
            ClaimsFailed: the folder for claims is missing or not safe.
        """
        self.wanted = Wanted(
            count=parsed.count,
            memory=parsed.memory or 0,
            exclusive=parsed.exclusive or parsed.memory is None,
            max_utilization=parsed.max_utilization,
            cores=parsed.cpus,
            host_memory=parsed.host_memory,
            spread=parsed.spread,
        )
        self._indices = parsed.format == "indices"
        self._over: float = parsed.over
        self._seconds: float | None = None if running else parsed.reserve
        folder = os.environ.get("STALLSCOPE_LOCK_FOLDER")
        self._claims = Claims(parsed.lock_folder or (Path(folder) if folder else shared_folder()))
        self._client = ExporterClient(
            parsed.exporter or default_exporter(), timeout=2.0, certificate=parsed.certificate
        )
        self._must_answer = parsed.exporter is not None
        self._driver = driver
        self._pause = pause
        self._quiet: bool = parsed.quiet

    def until_found(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> Picked:
        """Poll until GPUs are free or the timeout is over.

        Raises:
            PickFailed: as in `poll`, or the requirements can never be met.
        """
        began = clock()
        printed = ""
        found: Picked | str = self.measure()
        while True:
            left = None if timeout is None else began + timeout - clock()
            over = left is not None and left <= 0
            if isinstance(found, str):
                reasons = found
                if over:
                    raise PickFailed(reasons)
            else:
                if found.chosen or over:
                    return found
                reasons = refusal(found, self.wanted)
                if why := never(found.judged, found.host, self.wanted):
                    raise PickFailed(f"{reasons}\n  waiting will not help: {why}")
            # Printed again only when a reason changes: the numbers in it change all the time.
            if (without_numbers := re.sub(r"[\d.]+", "", reasons)) != printed and not self._quiet:
                print(f"stallscope pick: waiting: {reasons}", file=sys.stderr, flush=True)
                printed = without_numbers
            self._pause(_POLL_SECONDS if left is None else min(_POLL_SECONDS, left))
            found = self._poll_again()

    def measure(self) -> Picked:
        """Poll, and show on a terminal that this takes some seconds."""
        with progress("Measuring the GPUs", quiet=self._quiet):
            return self.poll()

    def _poll_again(self) -> Picked | str:
        """Poll; return the error message if the driver is being reloaded or the lock is held."""
        try:
            return self.poll()
        except (ClaimsFailed, PickFailed) as problem:
            return str(problem)

    def poll(self) -> Picked:
        """Read the GPUs once, choose, and claim the chosen ones.

        Raises:
            PickFailed: no driver responds.
            ClaimsFailed: the GPUs cannot be claimed.
            ValueError: the environment is contradictory.
        """
        before = cpu_time()
        gpus = self._gpus()
        machine = host(before, cpu_time())
        allowed = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), gpus, os.environ.get("CUDA_DEVICE_ORDER"))
        host_problems = host_against(machine, self.wanted)
        with self._claims.choosing():
            claims, warnings = self._claims.standing()
            judged = judge(gpus, self.wanted, claims, allowed)
            chosen = () if host_problems else choose(judged, self.wanted)
            if self._indices and any(gpu.identity.mig for gpu in chosen):
                raise ValueError("--format indices: a MIG instance has no index; use --format uuids")
            descriptors = [] if self._seconds == 0 else [self._claim(gpu) for gpu in chosen]
        return Picked(judged, machine, host_problems, chosen, warnings, descriptors)

    def _claim(self, gpu: GpuNow) -> int:
        return self._claims.make(
            gpu.identity.uuid, memory=self.wanted.memory, exclusive=self.wanted.exclusive, seconds=self._seconds
        )

    def _gpus(self) -> list[GpuNow]:
        earlier = self._page()
        try:
            gpus = read(self._driver(), look=self._over, pause=self._pause)
        except DriverError as error:
            if pci_gpus(Path("/")).keys() == {"AMD"}:
                raise PickFailed(_AMD) from None
            # The error of a missing package already says what to install.
            raise PickFailed(str(error) if error.reason.startswith("binding_") else f"{error}; {_NO_DRIVER}") from None
        if not gpus:
            remedy = _NO_GPU_IN_JOB if "SLURM_JOB_ID" in os.environ else _NO_DRIVER
            raise PickFailed(f"NVIDIA's driver reports no GPU; {remedy}")
        later = self._page() if earlier is not None else None
        return gpus if earlier is None or later is None else with_exporter(gpus, earlier, later, time.time())

    def _page(self) -> Page | None:
        try:
            return Page(self._client.read(), WANTED)
        except ExporterError as error:
            if self._must_answer:
                print(f"stallscope pick: {self._client.name}: {error}; continuing without", file=sys.stderr)
                self._must_answer = False  # the warning was printed
            return None
