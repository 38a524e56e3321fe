"""Write a run's verdict and losses to its run in MLflow, TensorBoard or W&B."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from stallscope.model.clients.trackers import TRACKERS, TrackerError, write
from stallscope.tools.cli import _prometheus, _times
from stallscope.tools.cli._extras import missing
from stallscope.tools.cli._parser import Parser
from stallscope.tools.cli._progress import add_flag, progress

if TYPE_CHECKING:
    from stallscope.model.analysis.runs import Run
    from stallscope.tools.report.document import Document

_SINCE = "30d"
_PREFIX = "stallscope/"
_NUMBERS = ("lost_ratio", "gpu_hours", "lost_gpu_hours", "rank_hours", "lost_rank_hours")
_CAUSES = 5
_EVENTS = 10


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        "annotate",
        usage="stallscope annotate RUN --to TRACKER [flags]",
        description="Write the numbers of `stallscope report` to the run's page in an experiment tracker: verdict, "
        "lost share, GPU-hours, what to change first, and hardware events such as Xids and throttling. All keys begin "
        "with stallscope/. A second call replaces the values. The tracker's own library must be installed; it finds "
        "its server and credentials, for example by MLFLOW_TRACKING_URI or WANDB_API_KEY.",
        examples={
            "stallscope annotate resnet50 --to mlflow --experiment vision": "MLflow: the run of the same name",
            "stallscope annotate resnet50 --to mlflow --target RUN_ID": "MLflow: by the id of its run",
            "stallscope annotate resnet50 --to tensorboard --target logs/resnet50": "a folder with event files",
            "stallscope annotate resnet50 --to wandb --target team/vision/1a2b3c4d": "Weights & Biases",
            "stallscope annotate resnet50 --to mlflow --dry-run": "show what would be written",
        },
        notes="Exit status: 0 if the values were written or shown, 1 if that failed, 2 for an invalid command line.",
    )
    made.add_argument("run", metavar="RUN", help="name of the run; CLUSTER/NAMESPACE/RUN if it is not unique")
    made.add_argument("--to", required=True, choices=tuple(TRACKERS), help="the tracker")
    made.add_argument(
        "--target", default="", help="the tracker's run: MLflow's run id, TensorBoard's log folder, ENTITY/PROJECT/ID"
    )
    made.add_argument(
        "--experiment", default="", metavar="NAME", help="MLflow: the experiment that has a run of the same name"
    )
    made.add_argument(
        "--grafana-url", type=_prometheus.address, metavar="URL", help="Grafana, to link the run's dashboard"
    )
    made.add_argument("--report-url", metavar="URL", help="published HTML report, to link it")
    made.add_argument("--dry-run", action="store_true", help="show the values, and write nothing")
    _prometheus.add_run_flags(made, "the run", "a run of that name")
    _times.add_flags(made, since=_SINCE)
    add_flag(made)
    _prometheus.add_flags(made)
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status that `parser` describes."""
    reader = parser()
    parsed = reader.parse_args(arguments)
    if not (parsed.target or (parsed.to == "mlflow" and parsed.experiment) or parsed.dry_run):
        reader.error(f"--to {parsed.to}: requires --target{' or --experiment' if parsed.to == 'mlflow' else ''}")
    try:
        with closing(_prometheus.client(parsed)) as server, _prometheus.one_line_errors():
            document, run = _report(server, parsed)
        entries = _entries(document, run, parsed)
        if not parsed.dry_run:
            where = write(parsed.to, entries, parsed.target, experiment=parsed.experiment, name=run.name)
    except ModuleNotFoundError as error:
        return missing("annotate", error, "analysis")
    except (_prometheus.CommandFailed, TrackerError) as failed:
        print(f"stallscope annotate: {failed}", file=sys.stderr)
        return 1
    for part in document.incomplete:
        print(f"stallscope annotate: incomplete: {part}", file=sys.stderr)
    print("\n".join(f"{key}: {value}" for key, value in entries.items()) if parsed.dry_run else f"wrote to {where}")
    return 0


def _report(server: Any, parsed: Any) -> tuple[Document, Run]:
    from stallscope.model.analysis.over_time import require_rules
    from stallscope.model.analysis.runs import find_run
    from stallscope.tools.report.contents import PARTS, build
    from stallscope.tools.report.subject import of_run

    with progress("Querying Prometheus", total=PARTS + 1, quiet=parsed.quiet) as advance:
        start, end = _times.span(parsed, server.now())
        run = find_run(server, parsed.run, start, end, cluster=parsed.cluster, namespace=parsed.namespace)
        require_rules(server, server.name, start, end)
        return build(of_run(server, run), server, progress=lambda _: advance()), run


def _entries(document: Document, run: Run, parsed: Any) -> dict[str, float | str]:
    """Return the values by key; an unknown value has no key."""
    from stallscope.tools.report.json import values
    from stallscope.tools.report.words import percent, title_of

    report = values(document)
    first = document.first_recommendation
    losses = [f"{each['cause']} {percent(each['lost_ratio'])}" for each in report.get("causes", ())[:_CAUSES]]
    texts = {
        "verdict": report.get("main_verdict"),
        "change_first": f"{title_of(first.cause)}. {first.advice}" if first else "",
        "causes": ", ".join(losses),
        "hardware": "; ".join(_hardware(report.get("alerts", ()))),
    }
    numbers = {name: float(report[name]) for name in _NUMBERS if report.get(name) is not None}
    if not texts["verdict"] and not texts["hardware"]:
        raise _prometheus.CommandFailed(
            f"run {run.name}: neither a verdict nor a hardware event is known; see `stallscope why {run.name}`"
        )
    links = {"report": parsed.report_url, "dashboard": parsed.grafana_url and _dashboard(parsed.grafana_url, run)}
    found = {**texts, **numbers, **links, "run": "/".join(filter(None, (run.cluster, run.namespace, run.name)))}
    return {f"{_PREFIX}{name}": value for name, value in found.items() if value not in (None, "")}


def _hardware(alerts: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the alerts on hardware that fired, the most severe first."""
    from stallscope.common.formatting import duration
    from stallscope.model.catalogue.causes import CAUSES

    titles = {each.alert: each.title for each in CAUSES.values() if each.domain == "hardware"}
    found = [each for each in alerts if each["alert"] in titles]
    for each in found[:_EVENTS]:
        first = datetime.fromtimestamp(each["first_timestamp_seconds"], timezone.utc)
        lasting = f"{first:%Y-%m-%d %H:%M} UTC, for {duration(each['firing_seconds'])}"
        yield f"{titles[each['alert']]}: {each['subject']}, {lasting}"
    if len(found) > _EVENTS:
        yield f"{len(found) - _EVENTS} more"


def _dashboard(grafana: str, run: Run) -> str:
    """Return the address of the run's dashboard."""
    place = {"run": run.name, "namespace": run.namespace, "cluster": run.cluster}
    variables = {f"var-{name}": value for name, value in place.items() if value}
    times = {"from": int(run.start * 1000), "to": "now" if run.goes_on else int(run.end * 1000)}
    return f"{grafana.rstrip('/')}/d/stallscope-run?{urlencode({**variables, **times})}"
