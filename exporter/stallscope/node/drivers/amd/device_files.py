"""Reader of one GPU's files, with the meaning of the kernel's errors."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable

from stallscope.node.drivers.device import DeviceLost, DriverError, Unsupported
from stallscope.node.drivers.plausibility import Plausibility

_CHUNK = 65536
# What amdgpu answers where this GPU, or its firmware, has no such value.
_LACKING = frozenset({errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EISDIR})
_GONE = frozenset({errno.ENODEV, errno.ENXIO})
# Everyone may read these files: EPERM is the driver's own, while it resets the GPU or puts it to sleep.
_REASONS = {
    errno.EPERM: "busy",
    errno.EBUSY: "busy",
    errno.EAGAIN: "busy",
    errno.EACCES: "no_permission",
    errno.ETIME: "timeout",
    errno.ETIMEDOUT: "timeout",
}


class DeviceFiles:
    """The files of one GPU under its PCI device's folder. Belongs to one thread; anyone may read the counts."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.calls = 0
        """Files read so far."""
        self.plausibility = Plausibility(time.monotonic, time.time)

    def read(self, name: str) -> bytes:
        """Return the content of the file.

        Args:
            name: Relative to the device's folder, or absolute.

        Raises:
            Unsupported: this GPU has no such file, or no value in it.
            DeviceLost: the GPU is gone.
            DriverError: it can't be read now.
        """
        path = os.path.join(self.folder, name)  # noqa: PTH118 - on the sampling path, where a Path costs more than the read
        self.calls += 1
        try:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                content = piece = os.read(descriptor, _CHUNK)
                while piece:
                    piece = os.read(descriptor, _CHUNK)
                    content += piece
            finally:
                os.close(descriptor)
        except OSError as problem:
            raise self._meaning(problem, path) from None
        return content

    def text(self, name: str) -> str:
        """Return the file's text, fit for a label. Raises as `read` does, and Unsupported for an empty file."""
        found = self.plausibility.text(self.read(name).rstrip(b"\n\0"))
        if not found:
            raise Unsupported(f"{self.folder}/{name} is empty")
        return found

    def number(self, name: str, most: float, least: float = 0, parse: Callable[[bytes], int] = int) -> int:
        """Return the number in the file. `parse` extracts it, and raises ValueError without one.

        Raises:
            As `read` does, and:
            Unsupported: the file is empty.
            DriverError: the file has no number, or an implausible one.
        """
        text = self.read(name).strip()
        if not text:
            raise Unsupported(f"{self.folder}/{name} is empty")
        try:
            value = parse(text)
        except ValueError:
            self.plausibility.reject("not_a_number")
            raise DriverError("implausible", f"{self.folder}/{name} has {text[:40]!r}, which is not a number") from None
        return self.plausibility.needed(f"{self.folder}/{name}", value, most, least)

    def number_of(
        self, names: Iterable[str], most: float, least: float = 0, parse: Callable[[bytes], int] = int
    ) -> tuple[str, int]:
        """Return the first of these files that this GPU has, and its number. Raises as `number` does."""
        lacking = Unsupported(f"{self.folder} has no such file")
        for name in names:
            try:
                return name, self.number(name, most, least, parse)
            except Unsupported as problem:  # noqa: PERF203 - two files at most
                lacking = problem
        raise lacking

    def stay_asleep(self) -> None:
        """Raise an error if the GPU is suspended: reading most of its files would wake it.

        Raises:
            DeviceLost: the kernel has suspended it because it is idle; or it is gone.
        """
        try:
            state = self.read("power/runtime_status").strip()
        except Unsupported:
            return
        if state == b"suspended":
            raise DeviceLost("suspended", f"{self.folder}: the GPU is suspended, and reading any file would wake it")

    def _meaning(self, problem: OSError, path: str) -> DriverError:
        code = problem.errno
        if code in (errno.ENOENT, errno.ENOTDIR):
            if not os.path.isdir(self.folder):  # noqa: PTH112 - as above
                return DeviceLost(
                    "gpu_not_found", f"{self.folder} is gone: the GPU was removed, or its driver unloaded"
                )
            return Unsupported(f"there is no {path}")
        message = f"can't read {path}: {problem.strerror}"
        if code in _GONE:
            return DeviceLost("gpu_lost", message)
        if code in _LACKING:
            return Unsupported(message)
        return DriverError(_REASONS.get(code or 0, "driver_error"), message)
