"""A driver of dynamic resource allocation without devices, for a pod of the test of a cluster.

It registers with the kubelet, and reports for each claim the device that has the claim's name. It requires h2, which
the exporter's image has.
"""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

SERVICE = "v1.DRAPlugin"
"""Version of the service, of Kubernetes 1.34 and newer."""


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields of a protobuf message; numbers are skipped."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 0x7F) << shift
            at += 1
            if message[at - 1] < 0x80:
                return value
            shift += 7

    while at < len(message):
        number, kind = divmod(varint(), 8)
        length = varint()
        if kind == 2:
            yield number, message[at : at + length]
            at += length


def field(number: int, content: str | bytes) -> bytes:
    """Return a field of a protobuf message."""
    encoded = content.encode() if isinstance(content, str) else content
    length, rest = bytearray(), len(encoded)
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((number << 3 | 2, *length, rest)) + encoded


class Driver:
    """Answers of a driver with one pool of devices."""

    def __init__(self, name: str, pool: str, endpoint: Path) -> None:
        self._name = name
        self._pool = pool
        self._endpoint = endpoint
        self.registered = threading.Event()

    def answer(self, method: str, request: bytes) -> bytes | None:
        """Return the response to a call, or None for an unknown method."""
        if method == "/pluginregistration.Registration/GetInfo":
            endpoint = field(3, str(self._endpoint))
            return field(1, "DRAPlugin") + field(2, self._name) + endpoint + field(4, SERVICE)
        if method == "/pluginregistration.Registration/NotifyRegistrationStatus":
            if problem := dict(fields(request)).get(2):
                print(f"the kubelet rejected the driver: {problem.decode()}", flush=True)
            else:
                self.registered.set()
            return b""
        if method.endswith(("/NodePrepareResources", "/NodeUnprepareResources")):
            prepared = method.endswith("/NodePrepareResources")
            return b"".join(self._claim(dict(fields(claim)), prepared) for _, claim in fields(request))
        return None

    def _claim(self, claim: dict[int, bytes], prepared: bool) -> bytes:
        device = field(1, field(2, self._pool) + field(3, claim[3]))
        return field(1, field(1, claim[2]) + field(2, device if prepared else b""))


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class _Connection(socketserver.BaseRequestHandler):
    driver: ClassVar[Driver]

    def handle(self) -> None:
        connection: socket.socket = self.request
        http = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        http.initiate_connection()
        methods: dict[int, str] = {}
        bodies: dict[int, bytes] = {}
        while True:
            connection.sendall(http.data_to_send())
            received = connection.recv(65536)
            if not received:
                return
            for event in http.receive_data(received):
                if isinstance(event, RequestReceived):
                    methods[event.stream_id] = dict(event.headers)[b":path"].decode()
                    bodies[event.stream_id] = b""
                elif isinstance(event, DataReceived):
                    bodies[event.stream_id] += event.data
                    http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    stream = event.stream_id
                    self._answer(http, stream, methods.pop(stream), bodies.pop(stream)[5:])

    def _answer(self, http: H2Connection, stream: int, method: str, request: bytes) -> None:
        response = self.driver.answer(method, request)
        print(f"{method}: {'unknown' if response is None else 'answered'}", flush=True)
        http.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        if response is not None:
            http.send_data(stream, struct.pack(">BI", 0, len(response)) + response)
        unimplemented = "12"
        http.send_headers(stream, [("grpc-status", unimplemented if response is None else "0")], end_stream=True)


def main(name: str, pool: str, kubelet: Path, ready: Path) -> None:
    """Serve for ever.

    Args:
        name: the driver's name.
        pool: the pool of its devices.
        kubelet: the kubelet's folder.
        ready: a file that is created when the kubelet has registered the driver.
    """
    endpoint, registration = kubelet / "plugins" / name / "dra.sock", kubelet / "plugins_registry" / f"{name}.sock"
    driver = _Connection.driver = Driver(name, pool, endpoint)
    for path in (endpoint, registration):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        threading.Thread(target=_Server(str(path), _Connection).serve_forever, daemon=True).start()
    driver.registered.wait()
    ready.touch()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], os.environ["POOL"], Path("/var/lib/kubelet"), Path("/tmp/registered"))
