"""Write rules, dashboards and Alertmanager's configuration for Kubernetes: `python -m deploy.generate`.

The PrometheusRule objects contain the rule files line by line, comments included. The dashboards stay in their folder,
next to a kustomization that creates ConfigMaps from them.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RULES = Path("deploy/kubernetes/components/prometheus-operator/rules")
DASHBOARDS = Path("grafana/dashboards")
STACK_ALERTMANAGER = Path("deploy/kubernetes/kube-prometheus-stack/alertmanager.yaml")

_WRITTEN = "# Written by `make generate`"

_STACK_ROUTE = """\
    # kube-prometheus-stack's alert that only mutes others.
    - matchers: ['alertname = "InfoInhibitor"']
      receiver: none
"""
_STACK_INHIBITIONS = """\
  # -- kube-prometheus-stack's own, restricted to alerts that are not from this bundle: a lost GPU would otherwise mute
  # the alerts of all other nodes' GPUs, which have no namespace either.
  - source_matchers: ['severity = "critical"', 'cause = ""']
    target_matchers: ['severity =~ "warning|info"', 'cause = ""']
    equal: [namespace, alertname]
  - source_matchers: ['severity = "warning"', 'cause = ""']
    target_matchers: ['severity = "info"', 'cause = ""']
    equal: [namespace, alertname]
  - source_matchers: ['alertname = "InfoInhibitor"']
    target_matchers: ['severity = "info"', 'cause = ""']
    equal: [namespace]

"""


def rule_files() -> dict[str, Path]:
    """Return every file of rules and alerts by the name of its object."""
    alerts = (path for path in (ROOT / "alerts").glob("*.yml") if path.name != "alertmanager.yml")
    found = [("rules", path) for path in (ROOT / "prometheus/rules").glob("*.yml")]
    found += [("alerts", path) for path in alerts]
    return {f"stallscope-{kind}-{path.stem.replace('_', '-')}": path for kind, path in sorted(found)}


def prometheus_rule(name: str, path: Path) -> str:
    """Return the PrometheusRule object of one file."""
    text = _indented(path.read_text(encoding="utf-8"), 2)
    return f"""{_WRITTEN} from {path.relative_to(ROOT)}.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {name}
  labels:
    app.kubernetes.io/name: stallscope-rules
    app.kubernetes.io/part-of: stallscope
spec:
{text}"""


def dashboards_kustomization(names: list[str]) -> str:
    """Return a kustomization that creates a ConfigMap of each dashboard, with the label for Grafana's sidecar."""
    maps = "".join(f"  - name: {Path(name).stem}\n    files: [{name}]\n" for name in names)
    return f"""{_WRITTEN} from the dashboards in this folder.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
generatorOptions:
  disableNameSuffixHash: true
  labels:
    app.kubernetes.io/name: stallscope-dashboards
    app.kubernetes.io/part-of: stallscope
    grafana_dashboard: "1"
configMapGenerator:
{maps}"""


def stack_alertmanager() -> str:
    """Return values for kube-prometheus-stack: the routes, inhibition rules and templates of `alerts/`."""
    text = (ROOT / "alerts/alertmanager.yml").read_text(encoding="utf-8")
    text = text[text.index("route:\n") :]
    for place, addition in (("  routes:\n", _STACK_ROUTE), ("inhibit_rules:\n", _STACK_INHIBITIONS)):
        text = text.replace(place, place + addition, 1)
    templates = "".join(
        f"    {path.name}: |\n{_indented(path.read_text(encoding='utf-8'), 6)}"
        for path in sorted((ROOT / "alerts/templates").glob("*.tmpl"))
    )
    return f"""{_WRITTEN} from alerts/alertmanager.yml and alerts/templates.
# Values for kube-prometheus-stack. `receivers` are placeholders: list your own in a further values file.
alertmanager:
  config:
{_indented(text, 4)}
  templateFiles:
{templates}"""


def _indented(text: str, columns: int) -> str:
    return textwrap.indent(text, " " * columns)


def files() -> dict[Path, str]:
    """Return the generated texts by path in the checkout."""
    objects = rule_files()
    written = {RULES / f"{name}.yaml": prometheus_rule(name, path) for name, path in objects.items()}
    resources = "".join(f"  - {name}.yaml\n" for name in objects)
    written[RULES / "kustomization.yaml"] = (
        f"{_WRITTEN}.\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}"
    )
    names = sorted(path.name for path in (ROOT / DASHBOARDS).glob("*.json"))
    written[DASHBOARDS / "kustomization.yaml"] = dashboards_kustomization(names)
    written[STACK_ALERTMANAGER] = stack_alertmanager()
    return written


def main() -> None:
    """Write the files, and remove the objects of rule files that no longer exist."""
    written = files()
    (ROOT / RULES).mkdir(exist_ok=True)
    for path in (ROOT / RULES).glob("*.yaml"):
        if path.relative_to(ROOT) not in written:
            path.unlink()
    for name, text in written.items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
