"""One session with the driver, from `nvmlInit` to `nvmlShutdown`, and the meaning of NVML's return codes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from stallscope.node.drivers.device import DeviceLost, DriverError, DriverUnavailable, Unsupported
from stallscope.node.drivers.nvidia.library import Handle, Library, MissingFunction, NvmlFailure

# Return codes (nvml.h, nvmlReturn_t) by what they mean to a caller. Not supported, no permission, no such function in
# this library, no ECC under vGPU, versions that don't match, deprecated: none changes while the driver stays loaded.
UNSUPPORTED = frozenset({3, 4, 13, 22, 25, 26})
_LOST = {15: "gpu_lost", 16: "reset_required", 28: "gpu_not_found"}
_UNAVAILABLE = {
    1: "uninitialized",
    4: "no_permission",
    9: "driver_not_loaded",
    12: "library_not_found",
    18: "version_mismatch",
}
_NOT_FOUND = frozenset({6, 21})
INVALID_ARGUMENT = 2
TIMEOUT = "timeout"
_HIGHEST_KNOWN, _UNKNOWN = 30, 999
"""The return codes of nvml.h: all up to the first, and "unknown error"."""
_OTHER = {
    INVALID_ARGUMENT: "invalid_argument",
    7: "insufficient_size",
    10: TIMEOUT,
    14: "corrupted_inforom",
    17: "operating_system",
    20: "out_of_memory",
    23: "insufficient_resources",
    27: "not_ready",
    29: "invalid_state",
}


class NotFound(DriverError):
    """No result of the requested kind, such as no newer samples."""


class Session:
    """Forwards calls until it is closed, or until the driver reports that it is gone."""

    def __init__(self, library: Library) -> None:
        """Begin the session.

        Raises:
            DriverUnavailable: the library can't be loaded, or the driver does not respond.
        """
        self.over = False
        self._call = library.call
        self._releases: dict[object, Callable[[], None]] = {}
        library.load()
        try:
            library.call("nvmlInit")
        except NvmlFailure as failure:
            reason = _UNAVAILABLE.get(failure.code) or _reason(failure.code)
            raise DriverUnavailable(reason, f"the NVIDIA driver does not answer: {_text(failure)}") from None
        except MissingFunction as missing:
            raise DriverUnavailable("version_mismatch", str(missing)) from None

    def call(self, name: str, *arguments: Any) -> Any:
        """Call one NVML function, and convert its errors.

        Raises:
            Unsupported: this GPU, library or binding does not have it.
            NotFound: there is nothing of the kind.
            DeviceLost: the GPU is gone.
            DriverUnavailable: the session is over.
            DriverError: anything else.
        """
        if self.over:
            raise DriverUnavailable("uninitialized", "there is no open session with the NVIDIA driver")
        try:
            return self._call(name, *arguments)
        except NvmlFailure as failure:
            raise self._meaning(name, failure) from None
        except MissingFunction as missing:
            raise Unsupported(str(missing)) from None

    def keep(self, owner: object, release: Callable[[], None]) -> None:
        """Register `release`, which frees the owner's handles; called before the session ends."""
        self._releases[owner] = release

    def drop(self, owner: object) -> None:
        """Unregister `release`: the owner has freed its handles."""
        self._releases.pop(owner, None)

    def free(self, name: str, handle: Handle) -> None:
        """Call a function that frees a handle, also after the session's end; never raises."""
        with contextlib.suppress(NvmlFailure, MissingFunction):  # where the driver is gone, so is what it held
            self._call(name, handle)

    def close(self) -> None:
        """Free all handles, and end the session with the driver; never raises."""
        self.over = True  # first, so that no thread takes anything new meanwhile
        for release in list(self._releases.values()):
            release()
        self._releases = {}
        with contextlib.suppress(NvmlFailure, MissingFunction):  # where the driver was gone already
            self._call("nvmlShutdown")

    def _meaning(self, name: str, failure: NvmlFailure) -> DriverError:
        code = failure.code
        message = f"{name}: {_text(failure)}"
        if code in UNSUPPORTED:
            return Unsupported(message)
        if code in _NOT_FOUND:
            return NotFound("not_found", message)
        if code in _LOST:
            return DeviceLost(_LOST[code], message)
        if code in _UNAVAILABLE:
            self.over = True
            return DriverUnavailable(_UNAVAILABLE[code], message)
        return DriverError(_reason(code), message)


def _is_known(code: int) -> bool:
    return 0 <= code <= _HIGHEST_KNOWN or code == _UNKNOWN


def _reason(code: int) -> str:
    """Return the word of a return code, for a label."""
    return _OTHER.get(code, "driver_error") if _is_known(code) else f"unknown_error_{code}"


def _text(failure: NvmlFailure) -> str:
    return failure.text if _is_known(failure.code) else f"unknown error {failure.code}"
