"""Looks at the GPUs for `stallscope pick`, chooses some, and claims them."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from stallscope.capacity.choice import Wanted, choose, host_against, judge, never
from stallscope.capacity.claims import Claims, ClaimsFailed, shared_folder
from stallscope.capacity.exporter import WANTED, with_exporter
from stallscope.capacity.gpu import GpuNow
from stallscope.capacity.host import host, processor_time
from stallscope.capacity.reading import read
from stallscope.capacity.visible import visible
from stallscope.cli._exporter import DEFAULT_EXPORTER
from stallscope.cli._picked import Picked, refusal
from stallscope.clients.exporter import ExporterClient, ExporterError
from stallscope.clients.exposition import Page
from stallscope.doctor.drivers import pci_gpus
from stallscope.drivers.device import Driver, DriverError
from stallscope.drivers.nvidia.nvml import NvmlDriver

_POLL_SECONDS = 10.0
"""Between two looks while waiting; one takes the driver some milliseconds a GPU."""
_NO_DRIVER = (
    "pick chooses among GPUs of NVIDIA's driver: `nvidia-smi` must work first (install or load the driver, and start "
    "containers with their GPUs: docker run --gpus all)"
)
_NO_ALLOTMENT = "a Slurm job sees those alone that it was given: ask for some, such as with sbatch --gpus=1"
_AMD = (
    "this machine's GPUs are AMD's, and pick chooses among NVIDIA's alone: see in `stallscope top` which are idle, and "
    "name them in ROCR_VISIBLE_DEVICES"
)


class PickFailed(Exception):
    """Nothing can be chosen at all; the message is for people."""


class Picker:
    """Looks for what the command line asks for."""

    def __init__(
        self,
        parsed: argparse.Namespace,
        *,
        running: bool,
        driver: Callable[[], Driver] = NvmlDriver,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Find the folder of claims; nothing is looked at yet.

        Args:
            parsed: the command line.
            running: whether a command is to run on the GPUs, and so claims them as long as it runs.
            driver: makes a connection to the driver.
            pause: waits.

        Raises:
            ClaimsFailed: there is no folder for claims, or it is not safe.
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
        told = os.environ.get("STALLSCOPE_LOCK_FOLDER")
        self._claims = Claims(parsed.lock_folder or (Path(told) if told else shared_folder()))
        self._client = ExporterClient(parsed.exporter or DEFAULT_EXPORTER, timeout=2.0, certificate=parsed.certificate)
        self._must_answer = parsed.exporter is not None
        self._driver = driver
        self._pause = pause

    def until_found(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> Picked:
        """Look again and again, until there is room or the time is over.

        Raises:
            PickFailed: as `look` does, and where there never will be room.
        """
        began = clock()
        said = ""
        found: Picked | str = self.look()
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
                    raise PickFailed(f"{reasons}\n  waiting is of no use: {why}")
            # Figures change all the time; what stands in the way does not.
            if (gist := re.sub(r"[\d.]+", "", reasons)) != said:
                print(f"stallscope pick: waiting: {reasons}", file=sys.stderr, flush=True)
                said = gist
            self._pause(_POLL_SECONDS if left is None else min(_POLL_SECONDS, left))
            found = self._look_again()

    def _look_again(self) -> Picked | str:
        """Look once more; in words where what answered before does not: a driver is loaded anew, the lock is held."""
        try:
            return self.look()
        except (ClaimsFailed, PickFailed) as problem:
            return str(problem)

    def look(self) -> Picked:
        """Look once, and claim what is chosen.

        Raises:
            PickFailed: there is no driver that answers.
            ClaimsFailed: claims can't be made.
            ValueError: the environment contradicts itself.
        """
        before = processor_time()
        gpus = self._gpus()
        machine = host(before, processor_time())
        allowed = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), gpus, os.environ.get("CUDA_DEVICE_ORDER"))
        lacking = host_against(machine, self.wanted)
        with self._claims.choosing():
            claims, complaints = self._claims.standing()
            judged = judge(gpus, self.wanted, claims, allowed)
            chosen = () if lacking else choose(judged, self.wanted)
            if self._indices and any(gpu.identity.mig for gpu in chosen):
                raise ValueError("a MIG instance has no index: use --format uuids")
            descriptors = [] if self._seconds == 0 else [self._claim(gpu) for gpu in chosen]
        return Picked(judged, machine, lacking, chosen, complaints, descriptors)

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
            # A missing package is told with its remedy.
            raise PickFailed(str(error) if error.reason.startswith("binding_") else f"{error}; {_NO_DRIVER}") from None
        if not gpus:
            remedy = _NO_ALLOTMENT if "SLURM_JOB_ID" in os.environ else _NO_DRIVER
            raise PickFailed(f"the NVIDIA driver shows no GPU; {remedy}")
        later = self._page() if earlier is not None else None
        return gpus if earlier is None or later is None else with_exporter(gpus, earlier, later, time.time())

    def _page(self) -> Page | None:
        try:
            return Page(self._client.read(), WANTED)
        except ExporterError as error:
            if self._must_answer:
                print(f"stallscope pick: {self._client.name}: {error}; going on without", file=sys.stderr)
                self._must_answer = False  # it was said
            return None
