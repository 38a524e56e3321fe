from __future__ import annotations

from html.parser import HTMLParser

from stallscope.sampling.sampler import SourceStatus
from stallscope.version import __version__
from stallscope.web.landing import ListedGpu, landing_page


class Checked(HTMLParser):
    """Fails where tags don't match, and remembers tags and text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page.decode())
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def status(name: str, up: bool | None, error: str = "", last_success: float | None = 990.0) -> SourceStatus:
    return SourceStatus(name=name, up=up, error=error, read_seconds=0.1, last_success=last_success, failures=0)


def page(**changes: object) -> Checked:
    values: dict[str, object] = {
        "telemetry_path": "/metrics",
        "ready": True,
        "gpus": [ListedGpu("0", "NVIDIA L40S", "GPU-1", "", "")],
        "statuses": [status("cpu", True), status("nvidia", False, "DriverUnavailable: no library", None)],
        "runs": {"resnet50": 8},
        "now": 1000.0,
    }
    return Checked(landing_page(**{**values, **changes}))  # type: ignore[arg-type]


def test_tells_how_gpus_are_released() -> None:
    assert {"POST /-/release?for=2m", "POST /-/resume"} <= set(page().texts)


def test_tells_version_sources_runs_and_the_way_to_the_metrics() -> None:
    shown = page()
    assert any(__version__ in text for text in shown.texts)
    for text in (
        "cpu",
        "up",
        "10.0 s ago",
        "nvidia",
        "down",
        "never",
        "DriverUnavailable: no library",
        "resnet50",
        "8",
    ):
        assert text in shown.texts
    assert ("a", {"href": "/metrics"}) in shown.seen


def test_tells_each_gpu_and_what_became_of_it() -> None:
    shown = page(
        gpus=[
            ListedGpu("0", "NVIDIA L40S", "GPU-1", "", ""),
            ListedGpu("1", "NVIDIA L40S", "GPU-2", "", "gpu_lost"),
            ListedGpu("2", "NVIDIA H200", "MIG-3", "1g.18gb", None),
        ]
    )
    for text in ("NVIDIA L40S", "up", "down: gpu_lost", "2 MIG 1g.18gb", "MIG-3", "not read yet"):
        assert text in shown.texts


def test_tells_why_there_is_no_gpu() -> None:
    reason = "the NVIDIA driver does not answer: Driver Not Loaded"
    shown = page(gpus=[], statuses=[status("nvidia", None, reason, None)])
    assert any(text.startswith("No GPU on this machine answers") for text in shown.texts)
    assert {"not here", reason} <= set(shown.texts)
    assert "No source of GPUs is switched on." in page(gpus=None).texts
    assert "No source of GPUs is switched on." not in shown.texts


def test_claims_nothing_before_the_first_reading() -> None:
    shown = page(gpus=[], ready=False, statuses=[status("nvidia", None, "", None)])
    assert shown.texts.count("not read yet") == 1
    assert "Not read yet." in shown.texts


def test_says_so_where_there_is_no_source_and_no_run() -> None:
    shown = page(statuses=[], runs={})
    assert "No source is switched on." in shown.texts
    assert "No training run has reported." in shown.texts


def test_a_simulated_node_is_labelled_and_a_real_one_is_not() -> None:
    assert "Simulated node" in page(simulated="gpu_lost").texts
    assert "Simulated node" not in page().texts


def test_names_and_errors_from_outside_stay_text() -> None:
    hostile = '<script>alert("x")</script>'
    gpu = ListedGpu(*[hostile] * 5)
    shown = page(
        gpus=[gpu],
        statuses=[status("x", False, hostile)],
        runs={hostile: 1},
        telemetry_path='/"><b>',
        simulated=hostile,
    )
    assert not {"script", "b"} & {tag for tag, _ in shown.seen}


def test_has_a_language_a_viewport_and_both_colour_schemes() -> None:
    text = landing_page(telemetry_path="/metrics", ready=False, gpus=[], statuses=[], runs={}).decode()
    shown = Checked(text.encode())
    assert ("html", {"lang": "en"}) in shown.seen
    assert any(tag == "meta" and attributes.get("name") == "viewport" for tag, attributes in shown.seen)
    assert "prefers-color-scheme: dark" in text
    assert "starting" in shown.texts
