"""Ports that servers under test may listen on."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Different ports of this machine's loopback that are free for TCP and UDP now."""
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as stream, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            stream.bind(("127.0.0.1", 0))
            number: int = stream.getsockname()[1]
            try:
                datagram.bind(("127.0.0.1", number))
            except OSError:
                continue
            if number not in ports:
                ports.append(number)
    return ports


def free_port() -> int:
    """One such port."""
    return free_ports(1)[0]
