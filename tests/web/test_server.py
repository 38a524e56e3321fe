"""The server on real sockets: what slow, broken and greedy clients can and can't do."""

from __future__ import annotations

import contextlib
import errno
import gc
import http.client
import resource
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stallscope.common.address import Address, all_interfaces, sender_of
from stallscope.node.web.http import server as server_module
from stallscope.node.web.http.request import Request
from stallscope.node.web.http.response import TEXT, Response
from stallscope.node.web.http.server import ListenError, Server, connection_limit
from stallscope.training.protocol.vocabulary import MAX_BYTES
from tests.free_ports import free_port
from tests.waiting import until

BODY = b"x" * 60_000
WORKERS = 4
MakeServer = Callable[..., Server]


@pytest.fixture(autouse=True)
def _a_slow_machine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the limit set a shorter one."""
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 120.0)


def answer(request: Request, client: str) -> Response:
    if request.path == "/raise":
        raise RuntimeError("broken on purpose")
    if request.path == "/client":
        return Response(200, TEXT, client.encode())
    if request.path == "/echo":
        return Response(413 if request.oversized else 200, TEXT, request.body)
    if request.path == "/empty":
        return Response(204, "", b"")
    return Response(200, TEXT, BODY)


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    with contextlib.ExitStack() as stack:

        def make(host: str = "127.0.0.1", **arguments: Any) -> Server:
            server = Server(Address(host, 0), answer, **{"threads": WORKERS, **arguments})
            stack.callback(server.stop)
            server.start()
            return server

        yield make


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    return make_server()


@contextlib.contextmanager
def connected(server: Server, host: str = "127.0.0.1", source: str = "") -> Iterator[socket.socket]:
    place = (host, server.address.port)
    with socket.create_connection(place, timeout=60, source_address=(source, 0) if source else None) as connection:
        yield connection


def get(server: Server, path: str = "/", method: str = "GET", host: str = "127.0.0.1") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, server.address.port, timeout=60)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def everything(connection: socket.socket) -> bytes:
    """Return all bytes received until the server closes."""
    data = bytearray()
    while piece := connection.recv(65_536):
        data += piece
    return bytes(data)


def test_a_connection_is_kept_for_the_next_request(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=60)
    connection.connect()
    first = connection.sock
    for _ in range(3):
        connection.request("GET", "/")
        assert connection.getresponse().read() == BODY
        assert connection.sock is first
    connection.close()


def test_a_connection_is_closed_on_the_clients_request(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert everything(connection).endswith(BODY)


def test_a_closed_connection_leaves_nothing_for_the_garbage_collector(server: Server) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            get(server)
        until(
            lambda: not any(type(each).__name__ == "_Connection" for each in gc.get_objects()), "connections are kept"
        )
    finally:
        gc.enable()


def test_head_returns_the_length_and_no_body(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(b"HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(BODY)}".encode() in head
    assert body == b""


def test_an_answer_without_content_has_no_length_and_the_connection_goes_on(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(
            b"POST /empty HTTP/1.1\r\nHost: h\r\n\r\nGET /client HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        first, _, rest = everything(connection).partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"Content-Length" not in first
    assert rest.endswith(b"127.0.0.1")


def test_pipelined_requests_are_all_answered_in_order(server: Server) -> None:
    requests = [b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n%02d" % number for number in range(40)]
    with connected(server) as connection:
        connection.sendall(b"".join(requests) + b"GET /client HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        bodies = [part[:2] for part in everything(connection).split(b"\r\n\r\n")[1:-1]]
    assert bodies == [b"%02d" % number for number in range(40)]


def test_a_client_with_endless_requests_does_not_block_another(make_server: MakeServer) -> None:
    server = make_server(threads=1)
    answered = threading.Event()
    with connected(server) as endless, connected(server) as patient:
        requests = b"GET /client HTTP/1.1\r\nHost: h\r\n\r\n" * 1000

        def send() -> None:
            while not answered.is_set():
                endless.sendall(requests)

        def listen() -> None:
            with contextlib.suppress(ConnectionError):  # the server may still answer when it ends
                while endless.recv(1 << 20):
                    pass

        sending, listening = threading.Thread(target=send), threading.Thread(target=listen)
        sending.start()
        listening.start()
        try:
            for _ in range(3):
                patient.sendall(b"GET /empty HTTP/1.1\r\nHost: h\r\n\r\n")
                assert patient.recv(1000).startswith(b"HTTP/1.1 204 ")
        finally:
            answered.set()
            sending.join(60)
            endless.shutdown(socket.SHUT_RDWR)
            listening.join(60)


@pytest.mark.timed
def test_requests_sent_ahead_take_no_more_memory_than_one_may() -> None:
    server = Server(Address("127.0.0.1", 0), answer, threads=1)
    with traced(server), connected(server) as client:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 500):
                pass
        client.settimeout(60)
        left = 200 * len(BODY)
        while left > 0:
            left -= len(client.recv(65_536))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20


def test_many_clients_at_once_are_all_answered(server: Server) -> None:
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: get(server), range(200)))
    assert answers == [(200, BODY)] * 200


def test_garbage_is_refused_and_the_next_client_served(server: Server) -> None:
    for garbage in (b"\x00\xff" * 50 + b"\r\n\r\n", b"\x16\x03\x01\x00\x05hello\n", b"GET\r\n\r\n"):
        with connected(server) as connection:
            connection.sendall(garbage)
            assert everything(connection).startswith(b"HTTP/1.1 400 ")
    assert get(server)[0] == 200


def test_an_oversized_head_is_refused_though_the_client_keeps_sending(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nA: " + b"a" * 500_000)
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection).startswith(b"HTTP/1.1 431 ")
    assert get(server)[0] == 200


def test_an_oversized_body_is_refused_though_the_client_keeps_sending(server: Server) -> None:
    with connected(server) as connection:
        size = 50 * MAX_BYTES
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size + b"b" * size)
        assert everything(connection).startswith(b"HTTP/1.1 413 ")
    assert get(server)[0] == 200


def test_a_body_of_just_the_limit_is_taken(server: Server) -> None:
    with connected(server) as connection:
        body = b"b" * MAX_BYTES
        connection.sendall(
            b"POST /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % MAX_BYTES + body
        )
        assert everything(connection).endswith(b"\r\n\r\n" + body)


def test_silent_and_half_finished_clients_hold_no_worker(make_server: MakeServer) -> None:
    server = make_server(threads=1)
    with contextlib.ExitStack() as stack:
        for number in range(20):
            connection = stack.enter_context(connected(server))
            if number % 2:
                connection.sendall(b"GET / HTTP/1.1\r\nHos")
        assert get(server) == (200, BODY)


def test_a_client_that_sends_a_byte_at_a_time_is_cut_off(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.3)
    server = make_server()
    with connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nA: ")
        connection.settimeout(0.02)
        deadline = time.monotonic() + 60
        data = None
        while data is None:
            assert time.monotonic() < deadline, "it may send for ever"
            try:
                data = connection.recv(1000)
            except TimeoutError:
                with contextlib.suppress(ConnectionError):  # the answer may be there already
                    connection.send(b"a")
            except ConnectionError:  # closed in the face of a byte that had just come
                data = b""
    assert data == b"" or data.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_never_reads_is_cut_off(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(threads=1)
    with greedy_client(server) as greedy:
        with monkeypatch.context() as impatient:
            impatient.setattr(server_module, "REQUEST_SECONDS", 1.0)
            greedy.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 500)
            # If the machine pauses, a request that is only read late counts as one that arrived too late.
            until(lambda: "refused a client" in caplog.text, "it may keep its answers waiting")
        assert get(server) == (200, BODY)


def test_a_response_that_takes_long_to_compute_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()

    def answer_late(request: Request, _client: str) -> Response:
        if request.path == "/late":
            began.set()
            assert go_on.wait(60)
        return Response(200, TEXT, b"answered")

    server = Server(Address("127.0.0.1", 0), answer_late)
    server.start()
    try:
        with connected(server) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert connection.recv(1000).endswith(b"answered")
            # On an open connection only: a new one has as long to send its request.
            with monkeypatch.context() as impatient:
                impatient.setattr(server_module, "REQUEST_SECONDS", 1.0)
                connection.sendall(b"GET /late HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                assert began.wait(60)
                connection.settimeout(1.5)
                with pytest.raises(TimeoutError):  # neither a response nor an end
                    connection.recv(1)
            go_on.set()
            connection.settimeout(60)
            assert everything(connection).endswith(b"answered")
    finally:
        go_on.set()
        server.stop()


def greedy_client(server: Server) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", server.address.port))
    return client


def test_clients_that_never_read_hold_no_worker(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 60)
    server = make_server(threads=1)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(greedy_client(server)).sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 500)
        assert get(server) == (200, BODY)


@contextlib.contextmanager
def traced(server: Server) -> Iterator[None]:
    """Run the server, and trace the memory that is allocated meanwhile."""
    server.start()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        server.stop()


@pytest.mark.timed
def test_clients_that_never_read_share_one_copy_of_a_page() -> None:
    """Each with a copy of its own, they took the memory of the node's exporter: a page is several megabytes."""
    clients, size = 16, 8 << 20
    page = b"x" * size
    answered = threading.Semaphore(0)

    def answer_with_the_page(_request: Request, _client: str) -> Response:
        answered.release()
        return Response(200, TEXT, page)

    server = Server(Address("127.0.0.1", 0), answer_with_the_page, threads=WORKERS)
    with contextlib.ExitStack() as stack:
        stack.enter_context(traced(server))
        for _ in range(clients):
            stack.enter_context(connected(server)).sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        for _ in range(clients):
            assert answered.acquire(timeout=60)
        assert tracemalloc.get_traced_memory()[1] < size
        assert get(server) == (200, page)


def test_a_connection_that_is_kept_does_not_keep_the_page_that_it_took() -> None:
    clients, size = 16, 1 << 20
    server = Server(Address("127.0.0.1", 0), lambda _request, _client: Response(200, TEXT, bytes(size)), threads=1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(traced(server))
        for _ in range(clients):
            client = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=60)
            stack.callback(client.close)
            client.request("GET", "/")
            assert len(client.getresponse().read()) == size
        until(lambda: tracemalloc.get_traced_memory()[0] <= 2 * size, "pages are kept")


def test_answers_that_are_taken_late_come_whole_and_in_order(make_server: MakeServer) -> None:
    server = make_server(threads=1)
    with greedy_client(server) as client:
        client.sendall(
            b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 300 + b"GET /client HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        assert get(server) == (200, BODY)  # the answers have filled what the kernel keeps, and the server went on
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        taken = everything(client)
    assert taken.count(b"HTTP/1.1 200 OK") == 301
    assert taken.count(BODY) == 300
    assert taken.endswith(b"127.0.0.1")


def test_without_means_for_another_connection_those_that_are_open_go_on_and_later_ones_come_in(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = threading.Event()

    def full(_listening: socket.socket) -> tuple[int, object]:
        refused.set()
        raise OSError(errno.EMFILE, "Too many open files")

    with connected(server) as early:
        early.sendall(b"GET /client HTTP/1.1\r\nHost: h\r\n\r\n")
        assert early.recv(1000).endswith(b"127.0.0.1")
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "_accept", full)
            with connected(server) as late:
                assert refused.wait(60)
                for _ in range(3):
                    early.sendall(b"GET /client HTTP/1.1\r\nHost: h\r\n\r\n")
                    assert early.recv(1000).endswith(b"127.0.0.1")
                patched.undo()
                late.sendall(b"GET /client HTTP/1.1\r\nHost: h\r\n\r\n")
                assert late.recv(1000).endswith(b"127.0.0.1")
    assert caplog.text.count("no new connection can be taken: Too many open files") == 1


def test_over_the_limit_the_connection_goes_that_was_silent_for_longest(make_server: MakeServer) -> None:
    server = make_server(max_connections=5)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(8)]
        for connection in connections[:3]:
            assert connection.recv(1) == b""
        for connection in connections[3:]:
            connection.sendall(b"GET /client HTTP/1.1\r\nHost: h\r\n\r\n")
            assert connection.recv(20).startswith(b"HTTP/1.1 200 ")


def test_idle_connections_of_others_do_not_block_a_new_client(make_server: MakeServer) -> None:
    server = make_server(max_connections=5)
    with contextlib.ExitStack() as stack:
        for _ in range(7):
            stranger = stack.enter_context(connected(server))
            stranger.sendall(b"GET /client HTTP/1.1\r\nHost: h\r\n\r\n")
            assert stranger.recv(20).startswith(b"HTTP/1.1 200 ")
        assert get(server, "/client") == (200, b"127.0.0.1")


CROWD = "127.0.0.2"


def is_served(connection: socket.socket) -> bool:
    connection.sendall(b"GET /client HTTP/1.1\r\nHost: h\r\n\r\n")
    return connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_over_the_limit_the_client_with_most_connections_loses_one_and_no_other(make_server: MakeServer) -> None:
    server = make_server(max_connections=5)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(server)) for _ in range(2)]
        for _ in range(30):
            stack.enter_context(connected(server, source=CROWD))
        assert all(map(is_served, silent))
        assert get(server, "/client") == (200, b"127.0.0.1")


def test_the_client_with_most_connections_loses_those_in_a_request_that_does_not_end_first(
    make_server: MakeServer,
) -> None:
    server = make_server(max_connections=5)
    with contextlib.ExitStack() as stack:
        idle = stack.enter_context(connected(server, source=CROWD))
        assert is_served(idle)
        slow = [stack.enter_context(connected(server, source=CROWD)) for _ in range(4)]
        for connection in slow:
            assert is_served(connection)
            connection.sendall(b"GET / HTTP/1.1\r\nHos")
        until(lambda: sum(each.in_request for each in server._connections) == len(slow), "the requests never came")
        assert get(server, "/client") == (200, b"127.0.0.1")
        assert everything(slow[0]) == b""
        assert is_served(idle)


def test_a_storm_of_connections_from_one_client_keeps_another_one_in(make_server: MakeServer) -> None:
    server = make_server(max_connections=5)
    with contextlib.ExitStack() as stack:
        early = stack.enter_context(connected(server))
        for _ in range(40):
            stack.enter_context(connected(server, source=CROWD))
        late = stack.enter_context(connected(server))
        assert is_served(late)
        assert is_served(early)
        assert len(server._connections) <= 5


def test_while_one_client_floods_with_connections_another_one_is_answered_each_time(make_server: MakeServer) -> None:
    server = make_server(max_connections=20)
    ended = threading.Event()
    flooded = 0

    def flood() -> None:
        nonlocal flooded
        opened: deque[socket.socket] = deque()
        while not ended.is_set() and flooded < 20_000:
            with contextlib.suppress(OSError):
                opened.append(
                    socket.create_connection(("127.0.0.1", server.address.port), timeout=5, source_address=(CROWD, 0))
                )
                flooded += 1
            if len(opened) > 100:
                opened.popleft().close()
        for each in opened:
            each.close()

    attacker = threading.Thread(target=flood)
    attacker.start()
    try:
        with connected(server) as kept:
            assert is_served(kept)
            until(lambda: flooded > 100, "the flood never came")
            for _ in range(30):
                assert get(server, "/client") == (200, b"127.0.0.1")
            assert is_served(kept)
            assert len(server._connections) <= 20
    finally:
        ended.set()
        attacker.join()


@pytest.mark.parametrize(
    ("files", "listeners", "connections"),
    [
        (1024, 1, 256),
        (resource.RLIM_INFINITY, 3, 256),
        (1024, 2, 256),
        (256, 1, 128),
        (64, 1, 8),
    ],
)
def test_the_limit_of_connections_follows_the_limit_of_open_files(
    files: int, listeners: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (files, resource.RLIM_INFINITY))
    assert connection_limit(listeners) == connections


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from stallscope.common.address import Address
from stallscope.node.web.http.response import TEXT, Response
from stallscope.node.web.http.server import Server, connection_limit
answer = lambda _request, _client: Response(200, TEXT, b"here")
server = Server(Address("127.0.0.1", 0), answer, max_connections=connection_limit(1))
server.start()
print(server.address.port, flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_with_few_open_files_a_flood_of_connections_leaves_some_for_everything_else() -> None:
    command = [sys.executable, "-c", LIMITED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        place = ("127.0.0.1", int(process.stdout.readline()))
        with contextlib.ExitStack() as stack:
            for _ in range(400):
                connection = stack.enter_context(socket.create_connection(place, timeout=60, source_address=(CROWD, 0)))
            connection.close()
            assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) <= 200 - 64
            with socket.create_connection(place, timeout=60) as other:
                assert is_served(other)
        process.stdin.close()
        assert b"no new connection can be taken" not in process.stderr.read()


def test_clients_are_identified_by_address_and_those_of_ipv6_by_network() -> None:
    assert sender_of("192.0.2.1") == sender_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert sender_of("2001:db8:0:1::1") == sender_of("2001:db8:0:1:ffff::2") != sender_of("2001:db8:0:2::1")
    assert sender_of("fe80::1%eth0") == sender_of("fe80::2%eth0")
    assert sender_of("") == ""


def test_an_answer_that_raises_is_a_500_and_logged(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    status, body = get(server, "/raise")
    assert status == 500
    assert b"broken on purpose" not in body
    assert "GET /raise could not be answered" in caplog.text
    assert get(server)[0] == 200


def test_a_busy_address_is_refused_by_name_with_the_remedy(server: Server) -> None:
    with pytest.raises(ListenError) as refusal:
        Server(server.address, answer)
    assert str(server.address) in str(refusal.value)
    assert "Address already in use" in str(refusal.value)
    assert "--web.listen-address" in str(refusal.value)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0.*no interface of this machine has it"):
        Server(Address("192.0.2.1", 0), answer)


def test_a_host_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ListenError, match=r"no-such-host\.invalid:0"):
        Server(Address("no-such-host.invalid", 0), answer)


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(ListenError, match="is not a known host"):
        Server(Address(host, 0), answer)


needs_ipv6 = pytest.mark.skipif(all_interfaces() != "::", reason="this machine has no IPv6")


@needs_ipv6
def test_listens_on_ipv6(make_server: MakeServer) -> None:
    server = make_server("::1")
    assert get(server, "/client", host="::1") == (200, b"::1")
    assert server.url == f"http://[::1]:{server.address.port}/"


@needs_ipv6
def test_an_address_without_a_host_isall_interfaces_of_both_kinds(make_server: MakeServer) -> None:
    server = make_server("")
    assert get(server, "/client", host="127.0.0.1") == (200, b"::ffff:127.0.0.1")
    assert get(server, "/client", host="::1") == (200, b"::1")
    assert str(server.address) == f":{server.address.port}"


def test_stopping_frees_the_address_and_ends_the_threads() -> None:
    before = set(threading.enumerate())
    # Not a port of the kernel's range, which a client of another test could get meanwhile.
    server = Server(Address("127.0.0.1", free_port()), answer)
    server.start()
    get(server)
    server.stop()
    # A stop does not wait for long, and the library waits for its workers.
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread.name
    again = Server(server.address, answer)
    again.stop()
