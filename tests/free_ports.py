"""Ports that servers under test may listen on."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

_MOST = 12_000


def _candidates() -> Iterator[int]:
    """Return ports outside the kernel's automatic range, separate for each test process.

    A port may be probed long before it is bound. The kernel assigns clients and port-0 servers higher ports.
    """
    try:
        end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        end = 32_768
    ports = range(max(1024, end - _MOST), end)
    if len(ports) < _MOST // 2:  # the kernel's automatic range covers nearly all ports
        return itertools.repeat(0)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers
    own = ports[worker::workers]
    begin = secrets.randbelow(len(own))
    return itertools.cycle((*own[begin:], *own[:begin]))


_PORTS = _candidates()


def free_ports(count: int) -> list[int]:
    """Different ports of this machine's loopback that are free for TCP and UDP now."""
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as stream, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            try:
                stream.bind(("127.0.0.1", next(_PORTS)))
                number: int = stream.getsockname()[1]
                datagram.bind(("127.0.0.1", number))
            except OSError:
                continue
            if number not in ports:
                ports.append(number)
    return ports


def free_port() -> int:
    """One such port."""
    return free_ports(1)[0]
