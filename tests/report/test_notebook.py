"""The notebook of a report, executed on a Prometheus with half an hour of a small run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stallscope.lab.replay.series import Series
from stallscope.model.analysis import frames
from stallscope.model.analysis.runs import Run, find_run
from stallscope.model.clients.prometheus import Prometheus
from stallscope.tools.report import from_frames, notebook
from stallscope.tools.report.document import Areas, Figure, HeatMap, Histogram, Notice, Section
from stallscope.tools.report.options import Options
from stallscope.tools.report.subject import of_everything, of_run
from tests.analysis.scrapes import BUSY, DATA_WAIT, INTERVAL, SCRAPES, of_gpu, of_rank, scraped
from tests.deferred import Deferred

nbclient = Deferred("nbclient")
nbformat = Deferred("nbformat")

LIBRARIES = {"stallscope", "pandas", "pyarrow", "matplotlib", "jinja2", "requests"}
"""Libraries of `stallscope[analysis]`."""


def everything() -> Iterator[Series]:
    for rank in (0, 1):
        yield from of_rank("plain", rank, instance="plain:19400", uuid=f"GPU-{rank}", world_size=2)
        yield from of_gpu("plain:19400", rank, f"GPU-{rank}")
    yield from of_rank("without-gpus")
    yield from of_rank("earlier", namespace="other", only=range(20))


@pytest.fixture(scope="module")
def server() -> Iterator[Prometheus]:
    with scraped(list(everything())) as held:
        yield held.server


def run_of(server: Prometheus, name: str) -> Run:
    return find_run(server, name, server.now() - 86_400, server.now())


def sections(server: Prometheus, name: str) -> dict[str, Section]:
    run = run_of(server, name)
    data = frames(run, prometheus=server, start=run.start, end=run.end)
    return {section.key: section for section in from_frames.sections(data)}


def test_the_notebook_makes_the_report_of_its_run(server: Prometheus, tmp_path: Path) -> None:
    subject = of_run(server, run_of(server, "plain"))
    late = replace(subject, start=subject.start + 30 * INTERVAL)  # after the end of the other run
    options = Options(gpu_hour_price=2.5, currency="EUR", against=run_of(server, "earlier"))
    text = notebook.written(late, server.name, options).decode()
    cells = nbformat.reads(text, 4)
    client = nbclient.NotebookClient(
        cells,
        startup_timeout=240,
        timeout=240,
        iopub_timeout=240,  # by default, output that is late by four seconds is left out
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    shown = [output["data"] for cell in cells.cells for output in cell.get("outputs", ()) if "data" in output]
    assert not [
        output for cell in cells.cells for output in cell.get("outputs", ()) if output["output_type"] == "error"
    ]
    pages = [data["text/html"] for data in shown if "srcdoc" in data.get("text/html", "")]
    assert len(pages) == 2
    assert "Run plain" in pages[0]
    assert "Compared with earlier" in pages[0]
    assert "GPUs, scrape by scrape" in pages[1]
    page = (tmp_path / "report-from-frames.html").read_text(encoding="utf-8")
    assert "Phases, scrape by scrape" in page
    assert "<h1>Run plain" in page


def test_the_notebook_needs_only_the_libraries_of_the_analysis_extra() -> None:
    cells = nbformat.reads(notebook.TEMPLATE.read_text(encoding="utf-8"), 4).cells
    nodes = [node for cell in cells if cell.cell_type == "code" for node in ast.walk(ast.parse(cell.source))]
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= LIBRARIES | sys.stdlib_module_names
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)


def test_only_a_run_has_a_notebook() -> None:
    with pytest.raises(ValueError, match="is not a run"):
        notebook.written(of_everything(0.0, 60.0), "http://localhost:9090", Options())


def plot_of(section: Section, kind: type[Any]) -> Any:
    return next(block.plot for block in section.blocks if isinstance(block, Figure) and isinstance(block.plot, kind))


def test_figures_of_data_frames_have_the_values_of_the_scrapes(server: Prometheus) -> None:
    found = sections(server, "plain")
    areas = plot_of(found["phases-from-frames"], Areas)
    shares = {part.name: {round(value, 6) for value in part.values if value is not None} for part in areas.parts}
    assert shares == {"data_wait": {DATA_WAIT}, "forward": {1 - DATA_WAIT}}
    heat = plot_of(found["gpus-from-frames"], HeatMap)
    assert heat.rows == ("plain:19400 0", "plain:19400 1")
    assert {round(value, 6) for row in heat.values for value in row if value is not None} == {BUSY}
    assert {later - earlier for earlier, later in zip(heat.times, heat.times[1:], strict=False)} == {float(INTERVAL)}
    steps = plot_of(found["steps-from-frames"], Histogram)
    # Of two ranks, between any two scrapes.
    assert sum(steps.counts) == pytest.approx(2 * (SCRAPES - 1) * 60)


def test_missing_data_of_frames_is_noted(server: Prometheus) -> None:
    (block,) = sections(server, "without-gpus")["gpus-from-frames"].blocks
    assert block == Notice("warning", "The data frames contain no GPU activity data in this time.")
