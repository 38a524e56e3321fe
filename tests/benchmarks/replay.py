"""One server that answers as hundreds of nodes would: the pages of a few live simulated nodes, under other names.

Every second it reads each simulated node's page; `/node0017` serves the newest of one of them, in which
GPUs, run, ranks and host are that node's own: eight nodes are a run of 64 ranks. Compressed, as scrapers request it.

`python -m tests.benchmarks.replay PORT PORT_OF_HEALTHY PORT_OF_TROUBLE …` serves on the first port.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import re
import sys
import threading

NODES_A_RUN = 8
GPUS_A_NODE = 8
TROUBLED = 5
"""One run of this many is in trouble, each kind in turn."""
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
_SECONDS = 1.0
_GZIP_LEVEL = 1
"""The exporter's own."""
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"


def name_of(node: int) -> str:
    """Return the name of a node, as an instance and in its address."""
    return f"node{node:04}"


def run_of(node: int) -> str:
    """The run that a node is part of."""
    return f"pretrain-{node // NODES_A_RUN:03}"


def kind_of(node: int, kinds: int) -> int:
    """Which of the simulated nodes a node is like."""
    run = node // NODES_A_RUN
    return 1 + run // TROUBLED % (kinds - 1) if kinds > 1 and run % TROUBLED == 1 else 0


def page_of(node: int, page: bytes) -> bytes:
    """A simulated node's page as that node's."""

    def own(found: re.Match[bytes]) -> bytes:
        if found["rank"] is None:
            return b'run="%b"' % run
        return b'run="%b",rank="%d"' % (run, first + int(found["rank"]))

    run, first = run_of(node).encode(), node % NODES_A_RUN * GPUS_A_NODE
    page = re.sub(rb'run="simulated-[^"]*"(?:,rank="(?P<rank>\d+)")?', own, page)
    page = page.replace(b"GPU-simulated-00000001-", b"GPU-%08x-5ca1-4b1e-a5a5-" % node)
    page = page.replace(b'hostname="simulated"', b'hostname="%b"' % name_of(node).encode())
    return page.replace(b'world_size="8"', b'world_size="%d"' % (NODES_A_RUN * GPUS_A_NODE))


class _Sources:
    """The newest page of each simulated node."""

    def __init__(self, ports: list[int]) -> None:
        self.content_type = b""
        self.pages = [b""] * len(ports)
        self._connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=10) for port in ports]
        self.take()
        threading.Thread(target=self._take_for_ever, daemon=True).start()

    def take(self) -> None:
        """Read each node's page."""
        for number, connection in enumerate(self._connections):
            connection.request("GET", "/metrics", headers={"Accept": ACCEPT})
            answer = connection.getresponse()
            self.pages[number] = answer.read()
            self.content_type = (answer.getheader("Content-Type") or "").encode()

    def _take_for_ever(self) -> None:
        waiting = threading.Event()
        while not waiting.wait(_SECONDS):
            self.take()


async def _serve(port: int, sources: _Sources) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                node = int(request.split(b" ", 2)[1].removeprefix(b"/node"))
                page = sources.pages[kind_of(node, len(sources.pages))]
                body = gzip.compress(page_of(node, page), _GZIP_LEVEL)
                writer.write(_HEAD % (sources.content_type, len(body)) + body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print("answering", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), _Sources([int(port) for port in sys.argv[2:]])))
