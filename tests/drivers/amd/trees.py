"""Assembled trees of AMD hosts, and errors of the kernel's that a file system can't be made to give."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from stallscope.node.drivers.amd.kernel import AmdDevice, AmdDriver

TREES = Path(__file__).parents[2] / "recorded_trees"


def copy_of(tree: str, folder: Path) -> Path:
    """A copy that a test may change; its links stay links."""
    return Path(shutil.copytree(TREES / tree, folder / tree, symlinks=True))


def gpus(root: Path) -> list[AmdDevice]:
    """The GPUs of a tree."""
    return [device for device in AmdDriver(root).devices() if isinstance(device, AmdDevice)]


def device_folder(root: Path, card: str = "card1") -> Path:
    """The folder of a card's PCI device."""
    return (root / "sys/class/drm" / card / "device").resolve()


def sensor_folder(root: Path, card: str = "card1") -> Path:
    """The folder of a card's sensors."""
    (folder,) = (device_folder(root, card) / "hwmon").iterdir()
    return folder


@contextmanager
def refusing(code: int, *names: str) -> Iterator[None]:
    """Let files of these names answer with an error, as drivers do from within the read: no disk file can."""
    really: Callable[..., int] = os.open

    def opened(path: str, flags: int, *others: object) -> int:
        if Path(path).name in names:
            raise OSError(code, errno.errorcode[code], path)
        return really(path, flags, *others)

    with mock.patch("os.open", opened):
        yield
