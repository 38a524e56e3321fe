"""A server with status pages for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stallscope.common.address import Address
from stallscope.model.catalogue.metrics import FAMILIES
from stallscope.model.view.verdicts import RunName, Verdict, Verdicts, VerdictWatch
from stallscope.node.sampling.clock import ScriptedClock
from stallscope.node.sampling.reading import Distribution, Sample
from stallscope.node.sampling.sampler import Sampler
from stallscope.node.web.application import REFRESH_SECONDS, Application, Choices
from stallscope.node.web.http.server import Server
from stallscope.node.web.status.exporter_state import ExporterState
from stallscope.node.web.status.history import POINT_SECONDS, POINTS, History
from stallscope.node.web.status.page import StatusPage
from tests.web.status_page import BUSY, NOW, ScriptedVerdicts, gpu, held, look, status

PHASES = {
    "data_wait": 31.0,
    "host_copy": 2.0,
    "forward": 19.0,
    "backward": 38.0,
    "communication": 6.0,
    "optimizer": 4.0,
}
WORLD = {"world_size": "16", "namespace": "research"}
HOSTILE = (
    "<script>document.title='taken'</script>",
    '"><img src=/taken onerror="document.title=1">',
    "</style></title></svg></template><b id=taken>bold</b>",
    "\u202eright to left \u05d0\u05d1\u05d2\n\r\t\u0000",
    "🐌" * 300,
    "k" * 1024,
)


def nothing() -> ExporterState:
    """An exporter that has just started."""
    return look(ready=False, statuses=(status("nvidia", None, "", None),))


def busy_node() -> ExporterState:
    """Eight GPUs (six busy, one split into instances, one lost), two runs, and a failing source."""
    owner = ("research", "imagenet-worker-0", "trainer", "", "")
    samples = [each for index in range(6) for each in gpu(index, **BUSY, owners=[owner])]
    samples += gpu(6, sharing="mig", up=1, temperature_celsius=38, power_watts=90)
    samples += gpu(6, mig="1g.10gb", up=1, memory_used_bytes=1 << 30, memory_total_bytes=10 << 30)
    samples += gpu(6, mig="2g.20gb", up=1, utilization_ratio=0.4, owners=[("", "", "", "4711", "ada")])
    samples += gpu(7, up=0, lost_info="gpu_lost", last_reading_timestamp_seconds=NOW - 340)
    ranks = [held("imagenet", rank, phases=PHASES, info=WORLD, steps=1200, arrived=NOW - 1) for rank in range(8)]
    ranks[5] = held("imagenet", 5, phases=PHASES, info=WORLD, steps=1188, arrived=NOW - 48)
    ranks[7] = held("imagenet", 7, phases=PHASES, info=WORLD, lost=True, ended=1.0)
    ranks.append(held("tokenizer", phases={"data_wait": 1.0, "augment": 5.0}, gauges={"step": 12.0}))
    statuses = (
        status("cpu", True),
        status("nfs", None, "no NFS mount", None),
        status("nvidia", False, "DriverError: a GPU does not say what it is: no answer"),
        status("owners", True),
    )
    return look(samples=samples, statuses=statuses, held=ranks)


def hostile_node() -> ExporterState:
    """Hostile names."""
    samples = [
        each
        for index, text in enumerate(HOSTILE)
        for each in gpu(index, **BUSY, model=text, owners=[(text, text, text, "", ""), ("", "", "", text, text)])
    ]
    samples += [each for text in HOSTILE for each in gpu(0, mig=text, up=1, sharing="mig")]
    samples += gpu(50, up=0, lost_info=HOSTILE[1], model=HOSTILE[2])
    names = [text if text.isprintable() else ascii(text) for text in (text[:128] for text in HOSTILE)]
    ranks = [held(name, rank, phases={name: 3.0, "forward": 1.0}) for name in names for rank in range(2)]
    statuses = tuple(status(text, False, text) for text in HOSTILE)
    return look(samples=samples, statuses=statuses, held=ranks, simulated=HOSTILE[0])


def flood() -> ExporterState:
    """More GPUs and ranks than a page shows."""
    samples = tuple(each for index in range(64) for each in gpu(index, **BUSY))
    ranks = [held(f"run-{number:02}", rank, info=WORLD) for number in range(64) for rank in range(16)]
    return look(samples=samples, held=ranks)


def verdicts() -> VerdictWatch:
    """Verdicts on the busy node."""
    runs = {RunName("imagenet", "research"): Verdict("input_disk_bound", 0.31, 0.37)}
    gpus = {"GPU-0": Verdict("healthy", 0.0), "GPU-2": Verdict("thermal_throttle", 0.12), "GPU-7": Verdict("lost", 1.0)}
    return ScriptedVerdicts(Verdicts("http://prometheus:9090", runs, frozenset(), gpus, 95.0, "no answer within 5 s"))


def five_minutes() -> History:
    """GPUs with varying activity and a gap."""
    clock = ScriptedClock()
    history = History(clock.monotonic)
    samples_family = FAMILIES["stallscope_gpu_utilization_samples"]
    total = 0.0
    for number in range(POINTS + 1):
        total += 9.0 - number % 7
        samples = [
            Sample(samples_family, (str(index), f"GPU-{index}"), Distribution((), total, 10 * number))
            for index in range(6)
        ]
        history.note(() if 20 < number < 25 else samples)
        clock.advance(POINT_SECONDS)
    return history


class Site:
    """Serves its current page."""

    def __init__(self, refresh_seconds: int = REFRESH_SECONDS) -> None:
        self.look = busy_node()
        self.requests: list[str] = []
        self.page = StatusPage(
            lambda: self.look, host="node1", telemetry_path="/metrics", history=five_minutes(), verdicts=verdicts()
        )
        application = Application(
            Sampler(),
            post_report=lambda _body, _client: (204, b""),
            post_request=lambda *_: (204, b""),
            status_page=self._render,
            release=lambda _seconds: "",
            refresh_seconds=refresh_seconds,
        )
        self.server = Server(Address("127.0.0.1", 0), application.answer)

    @property
    def url(self) -> str:
        """The address."""
        return self.server.url

    def _render(self, choices: Choices) -> bytes:
        self.requests.append("reloaded" if choices.refreshing else "paused")
        return self.page.render(choices, NOW)


@contextmanager
def site(refresh_seconds: int = REFRESH_SECONDS) -> Iterator[Site]:
    """Run the site; browsers reload it after `refresh_seconds`."""
    made = Site(refresh_seconds)
    made.server.start()
    try:
        yield made
    finally:
        made.server.stop()
