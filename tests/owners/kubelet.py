"""A kubelet for tests: a real gRPC server on a UNIX socket, and answers in protobuf's wire format."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from stallscope.node.owners.pod_resources import SOCKET

Content = str | bytes


def field(number: int, content: Content) -> bytes:
    """A field of a text or message."""
    encoded = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(encoded)) + encoded


def number_field(number: int, value: int) -> bytes:
    """A field of a whole number."""
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """A number in groups of seven bits."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def devices(resource: str, *ids: str) -> bytes:
    """The field of a container with what a device plugin handed out, beside its place in the machine."""
    topology = field(3, field(1, number_field(1, 1)))
    return field(2, field(1, resource) + b"".join(field(2, each) for each in ids) + topology)


def claim(driver: str, device: str, *interfaces: str) -> bytes:
    """The field of a container with one claimed device."""
    names = b"".join(field(1, field(1, each)) for each in interfaces)
    resource = names + field(2, driver) + field(3, "gpu-node-3") + field(4, device)
    return field(5, field(2, "claim-of-mine") + field(3, "research") + field(4, resource))


def container(name: str, *held: bytes) -> bytes:
    """The field of a pod with one container, its CPUs and memory."""
    memory = field(4, field(1, "memory") + number_field(2, 64 * 2**30))
    return field(3, field(1, name) + b"".join(held) + number_field(3, 12) + memory)


def pod(namespace: str, name: str, *containers: bytes) -> bytes:
    """The field of the answer with one pod."""
    return field(1, field(1, name) + field(2, namespace) + b"".join(containers))


Answer = Callable[[grpc.ServicerContext], bytes]


class Kubelet:
    """Serves `answer`, which a test may replace; counts calls and connections' ends."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / SOCKET
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.answer: Answer = lambda _: b""
        self.calls = 0
        self.released = threading.Event()
        self._server: Any = None

    def hand_out(self, *pods: bytes) -> None:
        """From now on, answer with these pods."""
        self.answer = lambda _: b"".join(pods)

    def hang(self, _: grpc.ServicerContext) -> bytes:
        """An answer that does not come before the test's end."""
        self.released.wait()
        return b""

    def start(self) -> None:
        """Serve on the socket."""

        def listed(request: bytes, context: grpc.ServicerContext) -> bytes:
            assert request == b""
            self.calls += 1
            return self.answer(context)

        handler = grpc.method_handlers_generic_handler(
            "v1.PodResourcesLister", {"List": grpc.unary_unary_rpc_method_handler(listed)}
        )
        options = [("grpc.max_send_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(2), handlers=(handler,), options=options)
        assert self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self) -> None:
        """End, connections and all, as a kubelet that is started again; the socket goes too."""
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None
        self.path.unlink(missing_ok=True)


@contextmanager
def kubelet_at(root: Path | None = None) -> Iterator[Kubelet]:
    """A kubelet that serves until the end of the block, below a root whose path is short enough for a socket's."""
    folder = Path(tempfile.mkdtemp(prefix="ss"))
    try:
        if root is not None:
            shutil.copytree(root, folder, dirs_exist_ok=True)
        kubelet = Kubelet(folder)
        kubelet.start()
        try:
            yield kubelet
        finally:
            kubelet.released.set()
            kubelet.stop()
    finally:
        shutil.rmtree(folder)
