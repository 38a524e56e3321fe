"""The landing page: what this exporter is, how GPUs and sources are, and where to go from here. Reads memory only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from html import escape
from typing import NamedTuple

from stallscope.sampling.sampler import SourceStatus
from stallscope.version import __version__
from stallscope.web.application import HEALTHY_PATH, READY_PATH, RELEASE_PATH, RESUME_PATH

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --good: #1a7f37; --bad: #cf222e; --quiet: #6e7781; }
@media (prefers-color-scheme: dark) { :root { --good: #3fb950; --bad: #ff7b72; --quiet: #9198a1; } }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); } .quiet { color: var(--quiet); }
""".strip()


class ListedGpu(NamedTuple):
    """A GPU or MIG instance as the page shows it."""

    number: str
    model: str
    uuid: str
    mig: str
    """Profile of the instance; empty for a whole GPU."""
    trouble: str | None
    """Why it is down, as in `lost_info`; empty where it is up, None before its first reading."""


def landing_page(
    *,
    telemetry_path: str,
    ready: bool,
    gpus: Iterable[ListedGpu] | None,
    statuses: Iterable[SourceStatus],
    runs: Mapping[str, int],
    simulated: str = "",
    now: float | None = None,
) -> bytes:
    """Write the page.

    Args:
        telemetry_path: where the metrics are.
        ready: whether a first round of readings is done.
        gpus: every GPU met so far; None where no source of GPUs runs.
        statuses: the sources.
        runs: number of ranks held, by run.
        simulated: the scenario, where the GPUs are simulated.
        now: Unix time; the machine's own if left out.
    """
    now = time.time() if now is None else now
    notice = (
        f'<p class="bad"><strong>Simulated node</strong>: the GPUs, and the runs whose names begin with simulated-, '
        f"are not real; they play the scenario {escape(simulated)}.</p>"
        if simulated
        else ""
    )
    sources = "".join(_source_row(status, now) for status in statuses)
    sources = sources or '<tr><td colspan="4" class="quiet">No source is switched on.</td></tr>'
    ranks = "".join(
        f"<tr><td>{escape(run)}</td><td>{count}</td></tr>" for run, count in sorted(runs.items(), key=lambda item: item)
    )
    ranks = ranks or '<tr><td colspan="2" class="quiet">No training run has reported.</td></tr>'
    devices = "".join(map(_gpu_row, gpus or ()))
    if gpus is None:
        nothing = "No source of GPUs is switched on."
    elif ready:
        nothing = "No GPU on this machine answers; the sources below say why. All else is served."
    else:
        nothing = "Not read yet."
    devices = devices or f'<tr><td colspan="4" class="quiet">{nothing}</td></tr>'
    state = '<span class="good">ready</span>' if ready else '<span class="quiet">starting</span>'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Stallscope exporter</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>Stallscope exporter</h1>
<p>Version {escape(__version__)}, {state}. Where does my GPU time go, and what do I change?</p>
{notice}
<ul>
<li><a href="{escape(telemetry_path)}">Metrics</a></li>
<li><a href="{HEALTHY_PATH}">Health</a></li>
<li><a href="{READY_PATH}">Readiness</a></li>
</ul>
<h2>GPUs</h2>
<table>
<thead><tr><th scope="col">GPU</th><th scope="col">Model</th><th scope="col">State</th>
<th scope="col">UUID</th></tr></thead>
<tbody>{devices}</tbody>
</table>
<h2>Sources</h2>
<table>
<thead><tr><th scope="col">Source</th><th scope="col">State</th><th scope="col">Last reading</th>
<th scope="col">Why</th></tr></thead>
<tbody>{sources}</tbody>
</table>
<p class="quiet">To reload a GPU driver under the exporter: <code>POST {RELEASE_PATH}?for=2m</code> or SIGUSR1 lets go
of the device files for a while, <code>POST {RESUME_PATH}</code> or SIGUSR2 takes them up again.</p>
<h2>Training runs</h2>
<table>
<thead><tr><th scope="col">Run</th><th scope="col">Ranks</th></tr></thead>
<tbody>{ranks}</tbody>
</table>
</main>
</body>
</html>
""".encode()


def _gpu_row(gpu: ListedGpu) -> str:
    css, word = ("quiet", "not read yet") if gpu.trouble is None else ("bad", f"down: {gpu.trouble}")
    if gpu.trouble == "":
        css, word = "good", "up"
    name = f"{gpu.number} MIG {gpu.mig}" if gpu.mig else gpu.number
    return (
        f'<tr><td>{escape(name)}</td><td>{escape(gpu.model)}</td><td class="{css}">{escape(word)}</td>'
        f"<td>{escape(gpu.uuid)}</td></tr>"
    )


def _source_row(status: SourceStatus, now: float) -> str:
    css, word = {
        True: ("good", "up"),
        False: ("bad", "down"),
        None: ("quiet", "not here" if status.error else "not read yet"),
    }[status.up]
    last = "never" if status.last_success is None else f"{max(0.0, now - status.last_success):.1f} s ago"
    return (
        f'<tr><td>{escape(status.name)}</td><td class="{css}">{word}</td><td>{last}</td>'
        f"<td>{escape(status.error)}</td></tr>"
    )
