"""Steps of the test of a cluster: an exporter with too little memory, with every rank that it accepts, or rejected."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.cluster_commands import EXPORTERS, Failed, apply, exporter_on, metrics_of, pod, run, wait_for

_RANKS = 1024
"""Default of `--report.max-ranks`."""
_SENDER = ("stallscope-ranks", "--namespace", "training")
_SEND = f"""
import socket, time
from stallscope.lab.simulation.simulated_run import SimulatedRun
from stallscope.node.sampling.clock import ScriptedClock
address = (socket.gethostbyname("stallscope-exporter.stallscope.svc"), 19400)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def send(report):
    sender.sendto(report, address)
    time.sleep(0.003)
for number in range({_RANKS}):
    clock = ScriptedClock(time.time() - 3)
    gpus = [{{"gpu": str(number % 8), "uuid": f"GPU-{{number:08x}}-0000-0000-0000-000000000000"}}]
    run = SimulatedRun(f"stallscope-ranks-{{number // 64:02}}", rank=number % 64, world_size=64, gpus=gpus, clock=clock,
                       samples_per_step=256, sender=send, process=None, pid=0)
    for _ in range(3):
        for phase in ("data_wait", "forward", "backward", "communication", "optimizer"):
            with run.phase(phase):
                clock.advance(0.2)
        run.step()
"""
_REASON = "jsonpath={.items[*].status.containerStatuses[0]['state','lastState'].terminated.reason}"
_RESTARTS = "jsonpath={.status.containerStatuses[0].restartCount}"


def check_killed() -> None:
    """Wait until the pods report that they were killed because of their memory.

    Raises:
        Failed: they do not.
    """
    if not wait_for(lambda: "OOMKilled" in run(("kubectl", "get", "pods", *EXPORTERS, "--output", _REASON)), 120):
        raise Failed("no pod of the exporter reports OOMKilled after 2 minutes with a limit of 24 MiB")


def check_rejected(runtime_class: str) -> None:
    """Wait for the event that names the missing runtime class.

    Raises:
        Failed: there is none.
    """
    events = ("kubectl", "get", "events", "--namespace", "stallscope", "--field-selector", "reason=FailedCreate")
    message = f'RuntimeClass "{runtime_class}" not found'
    if not wait_for(lambda: message in run((*events, "--output", "jsonpath={.items[*].message}")), 120):
        raise Failed(f"no event says {message} after 2 minutes")


def check_full(image: str, node: str, file: Path) -> None:
    """Send reports of as many ranks as an exporter accepts.

    Raises:
        Failed: it has no ranks, or its container was restarted.
    """
    exporter = exporter_on(node)
    before = _restarts(exporter)
    try:
        apply([pod("training", _SENDER[0], image, node)], file)
        run(("kubectl", "wait", f"pod/{_SENDER[0]}", *_SENDER[1:], "--for=condition=ready", "--timeout=2m"))
        run(("kubectl", "exec", f"pod/{_SENDER[0]}", *_SENDER[1:], "--", "python", "-c", _SEND))
        series = metrics_of(exporter)
    finally:
        run(("kubectl", "delete", "pod", *_SENDER, "--ignore-not-found", "--timeout=2m"))
    if not any(labels.get("run", "").startswith(_SENDER[0]) for _, labels, _ in series):
        raise Failed(f"the exporter has none of {_RANKS} ranks; see its log")
    if _restarts(exporter) != before:
        raise Failed(f"the exporter was restarted while {_RANKS} ranks reported; see kubectl describe {exporter}")


def _restarts(exporter: str) -> str:
    return run(("kubectl", "get", exporter, "--namespace", "stallscope", "--output", _RESTARTS))
