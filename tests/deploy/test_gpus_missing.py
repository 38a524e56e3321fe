"""The alert of the DaemonSet, evaluated by promtool from the PrometheusRule object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import ROOT, run

RULE = ROOT / "deploy/kubernetes/components/prometheus-operator/gpus-missing.yaml"
UP = 'up{job="stallscope", instance="node-7"}'
GPU = 'stallscope_gpu_up{job="stallscope", instance="node-7", gpu="0", uuid="GPU-1"}'
OTHER_NODE = GPU.replace("node-7", "node-8")


@pytest.mark.parametrize(
    ("series", "fires"),
    [
        ({UP: "1x20"}, True),
        ({UP: "1x20", OTHER_NODE: "1x20"}, True),
        ({UP: "1x20", GPU: "1x20"}, False),
        ({UP: "1x20", GPU: "0x20"}, False),  # lost, for which other alerts fire
        ({UP: "0x20"}, False),  # StallscopeExporterDown fires instead
        ({UP.replace("stallscope", "node"): "1x20"}, False),
    ],
)
def test_it_fires_for_a_node_that_responds_and_has_no_gpu(tmp_path: Path, series: dict[str, str], fires: bool) -> None:
    rule = yaml.safe_load(RULE.read_text())["spec"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule))
    alert = rule["groups"][0]["rules"][0]
    expected: list[dict[str, Any]] = []
    if fires:
        description = alert["annotations"]["description"].replace("{{ $labels.instance }}", "node-7")
        labels = {**alert["labels"], "job": "stallscope", "instance": "node-7"}
        expected = [{"exp_labels": labels, "exp_annotations": {**alert["annotations"], "description": description}}]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "15m", "alertname": alert["alert"], "exp_alerts": expected}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [case]}))
    assert "SUCCESS" in run("promtool", "test", "rules", str(tmp_path / "test.yml"))


def test_its_runbook_is_a_heading_of_the_readme() -> None:
    (rule,) = yaml.safe_load(RULE.read_text())["spec"]["groups"][0]["rules"]
    assert rule["annotations"]["runbook_url"].endswith("/deploy/kubernetes/README.md#no-gpus")
    assert "\n## No GPUs\n" in (ROOT / "deploy/kubernetes/README.md").read_text()
