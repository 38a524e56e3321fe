"""Write rules and dashboards as Kubernetes objects: `python -m deploy.generate`.

The PrometheusRule objects contain the rule files line by line, comments included. The dashboards stay in their folder,
next to a kustomization that creates ConfigMaps from them.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RULES = Path("deploy/kubernetes/components/prometheus-operator/rules")
DASHBOARDS = Path("grafana/dashboards")

_WRITTEN = "# Written by `make generate`"


def rule_files() -> dict[str, Path]:
    """Return every file of rules and alerts by the name of its object."""
    alerts = (path for path in (ROOT / "alerts").glob("*.yml") if path.name != "alertmanager.yml")
    found = [("rules", path) for path in (ROOT / "prometheus/rules").glob("*.yml")]
    found += [("alerts", path) for path in alerts]
    return {f"stallscope-{kind}-{path.stem.replace('_', '-')}": path for kind, path in sorted(found)}


def prometheus_rule(name: str, path: Path) -> str:
    """Return the PrometheusRule object of one file."""
    text = "".join(f"  {line}" if line.strip() else line for line in path.read_text(encoding="utf-8").splitlines(True))
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
