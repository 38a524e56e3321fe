"""Update the status of a TrainJob: in a process of its own during the training, and once more at its end."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallscope.training.protocol.report import Report
from stallscope.training.shim.stored_reports import SETTINGS
from stallscope.training.shim.trainjob_process import trainjob_of

if TYPE_CHECKING:
    from stallscope.training.shim.trainjob import Updater


def main(folder: str) -> None:
    """Update the status until the training ends. Called in a process of its own."""
    logging.disable(logging.CRITICAL)  # problems are lines
    settings = json.loads(Path(folder, SETTINGS).read_text(encoding="utf-8"))
    updater = _updater(folder, settings)
    if updater is not None:
        from stallscope.training.shim.trainjob import watch

        watch(updater)


def finish(folder: Path, settings: Mapping[str, Any]) -> None:
    """Update the status a last time, before the reports are deleted."""
    updater = _updater(str(folder), settings)
    if updater is not None:
        updater.update()


def _updater(folder: str, settings: Mapping[str, Any]) -> Updater | None:
    trainjob = trainjob_of(os.environ)
    if trainjob is None:
        return None
    from stallscope.training.shim.trainjob import StatusServer, Updater  # not needed outside of a TrainJob

    prometheus = str(settings["prometheus"])
    verdict = (lambda report: _verdict(report, prometheus)) if prometheus else None
    return Updater(folder, StatusServer(*trainjob), verdict)


def _verdict(report: Report, prometheus: str) -> Mapping[str, str]:
    from stallscope.tools.summary.evidence import verdicts_of  # loads the clients, for Prometheus alone
    from stallscope.tools.summary.measured import RankTime, RunTime

    found = verdicts_of([RunTime(report.run, (RankTime(report, None),))], prometheus)[0].get(report.run)
    if found is None:
        return {}
    lost = {} if found.lost is None else {"lost_share": f"{found.lost:.3g}"}
    return {"verdict": found.cause, "verdict_share": f"{found.share:.3g}", **lost}
