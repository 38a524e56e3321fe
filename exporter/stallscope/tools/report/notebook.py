"""The notebook for a report: it builds the same report and shows the run's data frames."""

from __future__ import annotations

import json
from pathlib import Path

from stallscope.tools.report.options import Options
from stallscope.tools.report.subject import Subject

TEMPLATE = Path(__file__).with_name("report.ipynb")
PARAMETERS = "parameters"
"""Tag of the cell whose values are replaced, as in papermill."""


def written(subject: Subject, server: str, options: Options) -> bytes:
    """Return the notebook with a report's parameters filled in.

    Args:
        subject: the subject, which must be a run.
        server: address of the server, without a password.
        options: options of the report.
    """
    run = subject.run
    if run is None:
        raise ValueError(f"{subject.title} is not a run; a notebook is available for runs only")
    base = options.against
    values = {
        "SERVER": server,
        "RUN": run.name,
        "NAMESPACE": run.namespace,
        "CLUSTER": run.cluster,
        "START": subject.start,
        "END": None if subject.live else subject.end,
        "AGAINST": base and {name: getattr(base, name) for name in ("name", "start", "end", "cluster", "namespace")},
        "GPU_HOUR_PRICE": options.gpu_hour_price,
        "KILOWATT_HOUR_PRICE": options.kilowatt_hour_price,
        "CURRENCY": options.currency,
        "ZONE": options.zone,
    }
    notebook = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    cell = next(cell for cell in notebook["cells"] if PARAMETERS in cell["metadata"].get("tags", ()))
    # Python literals, not JSON: they differ in None and in quotes.
    cell["source"] = "\n".join(f"{name} = {value!r}" for name, value in values.items()).splitlines(keepends=True)
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()
