from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import StreamEnded

from stallscope.node.owners.pod_resources import (
    Allocation,
    ClaimedDevice,
    Container,
    PodResources,
    PodResourcesFailed,
    decoded,
)
from stallscope.node.owners.protobuf import Malformed
from tests.owners.kubelet import Kubelet, claim, container, devices, field, kubelet_at, number_field, pod

GPU = "GPU-7e1c3a52-0f4b-4d6e-9a3c-51d2b8e0f001"
TRAINER = pod("research", "resnet-0", container("trainer", devices("nvidia.com/gpu", GPU)))
MINE = Container("research", "resnet-0", "trainer")
PATIENCE = 60.0


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    with kubelet_at() as kubelet:
        kubelet.hand_out(TRAINER)
        yield kubelet


@pytest.fixture
def client(kubelet: Kubelet) -> Iterator[PodResources]:
    with closing(PodResources(kubelet.root)) as client:
        yield client


def names(*pods: bytes) -> list[tuple[str, ...]]:
    return [allocation.names for allocation in decoded(b"".join(pods))]


def test_every_gpu_of_every_container_is_listed(kubelet: Kubelet, client: PodResources) -> None:
    kubelet.hand_out(
        TRAINER,
        pod(
            "inference",
            "bert",
            container("server", devices("nvidia.com/mig-1g.10gb", "MIG-a", "MIG-b")),
            container("sidecar"),
        ),
    )
    assert client.present()
    assert client.allocations(PATIENCE) == (
        Allocation(MINE, (GPU,)),
        Allocation(Container("inference", "bert", "server"), ("MIG-a",)),
        Allocation(Container("inference", "bert", "server"), ("MIG-b",)),
    )


def test_a_node_without_pods_has_no_allocations(kubelet: Kubelet, client: PodResources) -> None:
    kubelet.hand_out()
    assert client.allocations(PATIENCE) == ()


def test_the_next_call_sees_what_changed(kubelet: Kubelet, client: PodResources) -> None:
    assert len(client.allocations(PATIENCE)) == 1
    kubelet.hand_out(TRAINER, TRAINER)
    assert len(client.allocations(PATIENCE)) == 2
    assert kubelet.calls == 2


def test_an_answer_of_four_thousand_pods_comes_through_whole(kubelet: Kubelet, client: PodResources) -> None:
    kubelet.hand_out(
        *(
            pod(
                f"team-{number % 7}",
                f"worker-{number}-{'x' * 200}",
                container("main", devices("nvidia.com/gpu", f"GPU-{number}")),
            )
            for number in range(4000)
        )
    )
    found = client.allocations(PATIENCE)
    assert [allocation.names for allocation in found] == [(f"GPU-{number}",) for number in range(4000)]


def test_an_answer_beyond_the_limit_is_refused(kubelet: Kubelet, client: PodResources) -> None:
    kubelet.answer = lambda _: field(9, bytes(17 * 2**20))
    with pytest.raises(PodResourcesFailed, match="over 16777216 bytes") as failed:
        client.allocations(PATIENCE)
    assert failed.value.reason == "malformed"
    kubelet.hand_out(TRAINER)
    assert client.allocations(PATIENCE) == (Allocation(MINE, (GPU,)),)


def test_a_slow_kubelet_times_out_and_is_queried_again(kubelet: Kubelet, client: PodResources) -> None:
    kubelet.answer = kubelet.hang
    with pytest.raises(PodResourcesFailed, match=r"kubelet.sock: no answer within 0.2 s") as failed:
        client.allocations(0.2)
    assert failed.value.reason == "unavailable"
    kubelet.hand_out(TRAINER)
    assert client.allocations(PATIENCE) == (Allocation(MINE, (GPU,)),)


def test_a_kubelet_that_was_started_again_is_found_at_once(kubelet: Kubelet, client: PodResources) -> None:
    client.allocations(PATIENCE)
    kubelet.stop()
    assert not client.present()
    kubelet.start()
    assert client.present()
    assert client.allocations(PATIENCE) == (Allocation(MINE, (GPU,)),)


def test_a_kubelet_that_is_gone_is_unavailable_and_found_when_it_is_back(
    kubelet: Kubelet, client: PodResources
) -> None:
    client.allocations(PATIENCE)
    kubelet.stop()
    with pytest.raises(PodResourcesFailed, match=r"kubelet.sock: No such file") as failed:
        client.allocations(PATIENCE)
    assert failed.value.reason == "unavailable"
    kubelet.start()
    assert client.allocations(PATIENCE) == (Allocation(MINE, (GPU,)),)


def test_a_socket_without_a_listener_is_unavailable(kubelet: Kubelet, client: PodResources) -> None:
    kubelet.stop()
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(kubelet.path))
    assert client.present()
    with pytest.raises(PodResourcesFailed, match="Connection refused") as failed:
        client.allocations(PATIENCE)
    assert failed.value.reason == "unavailable"


@pytest.mark.parametrize("closed", [False, True], ids=["socket", "folder"])
def test_a_socket_that_may_not_be_opened_is_unavailable_and_not_absent(
    kubelet: Kubelet, client: PodResources, closed: bool
) -> None:
    kubelet.root.chmod(0o755)
    place = kubelet.path.parent if closed else kubelet.path
    place.chmod(0o600)
    try:
        with as_another_user():
            assert client.present()
            with pytest.raises(PodResourcesFailed, match="Permission denied") as failed:
                client.allocations(PATIENCE)
    finally:
        place.chmod(0o755)
    assert failed.value.reason == "unavailable"


@contextmanager
def as_another_user() -> Iterator[None]:
    """Without root's right to open everything, where the tests run as root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_an_error_status_is_reported_with_its_message(kubelet: Kubelet, client: PodResources) -> None:
    def declined(context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit: 100 % of ∞")
        raise AssertionError

    kubelet.answer = declined
    with pytest.raises(PodResourcesFailed, match=r"EXHAUSTED \(8\): rejected by rate limit: 100 % of ∞") as failed:
        client.allocations(PATIENCE)
    assert failed.value.reason == "unavailable"


def test_a_server_without_the_service_is_reported(kubelet: Kubelet, client: PodResources) -> None:
    kubelet.stop()
    server = grpc.server(None)
    server.add_insecure_port(f"unix:{kubelet.path}")
    server.start()
    try:
        with pytest.raises(PodResourcesFailed, match="UNIMPLEMENTED"):
            client.allocations(PATIENCE)
    finally:
        server.stop(grace=None).wait()


def test_an_answer_that_breaks_off_is_malformed_and_the_next_is_read(kubelet: Kubelet, client: PodResources) -> None:
    kubelet.answer = lambda _: TRAINER[:-3]
    with pytest.raises(PodResourcesFailed, match=r"kubelet.sock: the list .* breaks off") as failed:
        client.allocations(PATIENCE)
    assert failed.value.reason == "malformed"
    kubelet.hand_out(TRAINER)
    assert client.allocations(PATIENCE) == (Allocation(MINE, (GPU,)),)


def test_names_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(Malformed, match="field 1 holds a number"):
        decoded(field(1, number_field(1, 7)))


@pytest.mark.parametrize(
    "answer",
    [
        pod("research", "p" * 254, container("main")),
        pod("n" * 254, "trainer", container("main")),
        pod("research", "trainer", container("c" * 254)),
    ],
)
def test_names_longer_than_kubernetes_has_are_refused(answer: bytes) -> None:
    with pytest.raises(Malformed, match="a name of 254 characters"):
        decoded(answer)


def test_of_a_devices_endless_name_only_the_beginning_is_taken() -> None:
    claimed = claim("gpu.nvidia.com", "d" * 100_000, "k8s.gpu.nvidia.com/claim=" + "i" * 100_000)
    answer = pod("research", "trainer", container("main", devices("nvidia.com/gpu", "g" * 100_000), claimed))
    assert [len(name) for each in decoded(answer) for name in each.names] == [253, 253, 253]


def test_unknown_fields_are_passed_over() -> None:
    later = field(1, field(99, "later") + field(1, "p") + field(3, field(1, "c") + devices("nvidia.com/gpu", GPU)))
    assert names(number_field(8, 1), field(7, "of later versions"), later) == [(GPU,)]


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.shared", "amd.com/gpu"],
)
def test_resources_of_gpus_are_known(resource: str) -> None:
    assert names(pod("n", "p", container("c", devices(resource, "0000:19:00.0")))) == [("0000:19:00.0",)]


@pytest.mark.parametrize(
    "resource", ["nvidia.com/hostdev", "intel.com/qat", "rdma/hca_shared_devices_a", "amd.com/dpu"]
)
def test_other_devices_are_left_out(resource: str) -> None:
    assert names(pod("n", "p", container("c", devices(resource, "0000:19:00.0")))) == []


def test_a_renamed_resource_is_known_by_its_devices() -> None:
    assert names(pod("n", "p", container("c", devices("example.com/a100", GPU, "MIG-x", "disk-1")))) == [
        (GPU,),
        ("MIG-x",),
    ]


def test_a_claimed_gpu_is_listed_with_all_its_names() -> None:
    held = claim("gpu.nvidia.com", "gpu-1", "k8s.gpu.nvidia.com/claim=0f1e-gpu-1")
    assert names(pod("n", "p", container("c", held))) == [("gpu-1", "0f1e-gpu-1")]


def test_a_claimed_device_is_known_by_driver_pool_and_device() -> None:
    held = claim("gpu.nvidia.com", "gpu-1", "k8s.gpu.nvidia.com/claim=0f1e-gpu-1")
    plugin = devices("nvidia.com/gpu", GPU)
    found = decoded(pod("n", "p", container("c", held, plugin)))
    assert {each.claimed for each in found} == {ClaimedDevice("gpu.nvidia.com", "gpu-node-3", "gpu-1"), None}


def test_a_claim_of_an_older_kubelet_is_known_by_its_cdi_name() -> None:
    old = field(5, field(4, field(1, field(1, f"nvidia.com/gpu={GPU}"))))
    assert names(pod("n", "p", container("c", old))) == [(GPU,)]


def test_a_claimed_device_of_another_driver_has_no_name_that_could_be_a_gpus() -> None:
    held = claim("compute-domain.nvidia.com", "channel-0", "k8s.compute-domain.nvidia.com/claim=0f1e-channel-0")
    found = decoded(pod("n", "p", container("c", held)))
    assert [each.names for each in found] == [()]
    assert found[0].claimed == ClaimedDevice("compute-domain.nvidia.com", "gpu-node-3", "channel-0")


def test_a_claim_without_a_driver_and_without_a_gpus_name_is_left_out() -> None:
    other = field(5, field(4, field(1, field(1, "nic.example.com/port=0"))))
    assert decoded(pod("n", "p", container("c", other))) == ()


# What no gRPC library would send, from a server that speaks HTTP/2 and less.

GRPC = [(":status", "200"), ("content-type", "application/grpc")]
Script = Callable[[H2Connection, int], None]


@pytest.fixture
def serve(kubelet: Kubelet) -> Iterator[Callable[[Script | bytes], PodResources]]:
    """Puts a server in the kubelet's place that answers every call with the given response, or with plain bytes."""
    kubelet.stop()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(kubelet.path))
    listener.listen()
    client = PodResources(kubelet.root)
    threads: list[threading.Thread] = []

    def run(script: Script | bytes) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(ConnectionError):  # of a client that has received enough
                _answer(connection, script)

    def begin(script: Script | bytes) -> PodResources:
        thread = threading.Thread(target=run, args=(script,), daemon=True)
        thread.start()
        threads.append(thread)
        return client

    yield begin
    client.close()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def _answer(connection: socket.socket, script: Script | bytes) -> None:
    if isinstance(script, bytes):
        connection.recv(65536)
        connection.sendall(script)
        return
    http = H2Connection(H2Configuration(client_side=False))
    http.initiate_connection()
    while received := connection.recv(65536):
        for event in http.receive_data(received):
            if isinstance(event, StreamEnded):
                script(http, event.stream_id)
        connection.sendall(http.data_to_send())


def answered(body: bytes, *trailers: tuple[str, str]) -> Script:
    def script(http: H2Connection, stream: int) -> None:
        http.send_headers(stream, GRPC)
        http.send_data(stream, body, end_stream=not trailers)
        if trailers:
            http.send_headers(stream, trailers, end_stream=True)

    return script


def only_headers(*headers: tuple[str, str]) -> Script:
    return lambda http, stream: http.send_headers(stream, headers, end_stream=True)


def test_an_answer_in_pieces_is_put_together(serve: Callable[[Script], PodResources]) -> None:
    def script(http: H2Connection, stream: int) -> None:
        http.send_headers(stream, GRPC)
        for byte in b"\0" + len(TRAINER).to_bytes(4, "big") + TRAINER:
            http.send_data(stream, bytes([byte]))
        http.send_headers(stream, [("grpc-status", "0")], end_stream=True)

    assert serve(script).allocations(PATIENCE) == (Allocation(MINE, (GPU,)),)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (b"\0\0\5\4\0\0\0\0\0hello", "not HTTP/2"),
        (only_headers((":status", "404"), ("content-type", "text/html")), "not gRPC: HTTP status 404"),
        (only_headers((":status", "200"), ("content-type", "text/html")), "content type 'text/html'"),
        (answered(b"\0\0\0\0\0"), "without a status"),
        (answered(b"\0\0\0\0\0", ("grpc-status", "well")), "without a status"),
        (answered(b"\0\0\0\0\0", ("grpc-status", "9" * 5000)), "without a status"),
        (answered(b"", ("grpc-status", "0")), "holds no message"),
        (answered(b"\1\0\0\0\1x", ("grpc-status", "0")), "compressed: True"),
        (answered(b"\0\0\0\0\2x", ("grpc-status", "0")), "1 bytes came, 2 were announced"),
        (answered(b"\0\0\0\0\0more", ("grpc-status", "0")), "4 bytes came, 0 were announced"),
    ],
)
def test_an_answer_that_is_no_grpc_is_malformed(
    serve: Callable[[Script | bytes], PodResources], script: Script | bytes, problem: str
) -> None:
    with pytest.raises(PodResourcesFailed, match=problem) as failed:
        serve(script).allocations(PATIENCE)
    assert failed.value.reason == "malformed"


def _reset(http: H2Connection, stream: int) -> None:
    http.reset_stream(stream, ErrorCodes.REFUSED_STREAM)


def _go_away(http: H2Connection, stream: int) -> None:
    http.close_connection()


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (only_headers(*GRPC, ("grpc-status", "14"), ("grpc-message", "not%20ready")), r"UNAVAILABLE \(14\): not ready"),
        (only_headers(*GRPC, ("grpc-status", "99")), r"status \(99\)"),
        (_reset, "reset the call"),
        (_go_away, "GOAWAY"),
        (b"", "closed the connection without an answer"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "closed the connection without an answer"),
    ],
)
def test_a_server_that_declines_or_leaves_is_unavailable(
    serve: Callable[[Script | bytes], PodResources], script: Script | bytes, problem: str
) -> None:
    with pytest.raises(PodResourcesFailed, match=problem) as failed:
        serve(script).allocations(PATIENCE)
    assert failed.value.reason == "unavailable"


def test_calls_share_one_connection(serve: Callable[[Script], PodResources]) -> None:
    streams: list[int] = []

    def script(http: H2Connection, stream: int) -> None:
        streams.append(stream)
        answered(b"\0\0\0\0\0", ("grpc-status", "0"))(http, stream)

    client = serve(script)
    for _ in range(3):
        assert client.allocations(PATIENCE) == ()
    assert streams == [1, 3, 5]


def test_a_connection_that_was_ended_after_an_answer_is_replaced_unnoticed(
    serve: Callable[[Script], PodResources],
) -> None:
    body = b"\0" + len(TRAINER).to_bytes(4, "big") + TRAINER

    def script(http: H2Connection, stream: int) -> None:
        answered(body, ("grpc-status", "0"))(http, stream)
        http.close_connection()

    client = serve(script)
    for _ in range(3):
        assert client.allocations(PATIENCE) == (Allocation(MINE, (GPU,)),)


def test_http2_is_imported_only_for_a_call(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from stallscope.node.collectors.owners import Owners;"
        "from stallscope.node.collectors.base import Environment; Owners(Environment(root=Path(sys.argv[1])));"
        "assert 'h2' not in sys.modules and 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
