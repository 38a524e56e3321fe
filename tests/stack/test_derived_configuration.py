"""The bundle's own configuration, changed for one machine and nothing more; judged by promtool and amtool."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.common.bundle import bundle_folder
from stallscope.lab.stack.components import build_components
from stallscope.lab.stack.configuration import write_alertmanager, write_prometheus
from stallscope.lab.stack.errors import StackError
from stallscope.lab.stack.ports import Port
from stallscope.lab.stack.programs import find_programs
from tests.stack_settings import stack_settings

EXPORTER = Port("the exporter", 29400, "--exporter.port")
ALERTMANAGER = Port("Alertmanager", 29093, "--alertmanager.port")


def derive(folder: Path, bundle: Path | None = None, **thresholds: float) -> dict[str, Any]:
    file = write_prometheus(
        bundle or bundle_folder("prometheus"),
        folder,
        exporter=EXPORTER,
        alertmanager=ALERTMANAGER,
        thresholds=thresholds,
    )
    return load(file)


def load(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return content


def test_promtool_accepts_it_also_in_a_folder_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "with space [and] *stars?"
    folder.mkdir()
    derive(folder, warmup_seconds=30)
    done = subprocess.run(
        ["promtool", "check", "config", str(folder / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for file in (folder / "thresholds.yml", bundle_folder("alerts") / "gpu_use.yml"):
        assert f"Checking {file}\n  SUCCESS" in done.stdout


@pytest.mark.parametrize("webhook", [None, "http://127.0.0.1:1234/"])
def test_amtool_accepts_it(tmp_path: Path, webhook: str | None) -> None:
    file = write_alertmanager(bundle_folder("alerts"), tmp_path, webhook=webhook)
    done = subprocess.run(["amtool", "check-config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_templates_are_the_bundles_also_of_a_folder_with_odd_characters(tmp_path: Path) -> None:
    bundle = tmp_path / "with space [and] stars?"
    shutil.copytree(bundle_folder("alerts"), bundle)
    file = write_alertmanager(bundle, tmp_path, webhook=None)
    done = subprocess.run(["amtool", "check-config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " - 1 templates\n" in done.stdout
    (bundle / "templates" / "links.tmpl").write_text("{{ nonsense", encoding="utf-8")
    done = subprocess.run(["amtool", "check-config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode != 0, "they were never read"


def test_it_scrapes_the_exporter_and_sends_alerts_to_the_stacks_alertmanager(tmp_path: Path) -> None:
    configuration = derive(tmp_path)
    (job,) = configuration["scrape_configs"]
    assert job["job_name"] == "stallscope"
    assert job["static_configs"] == [
        {"targets": ["127.0.0.1:29400"], "labels": {"instance": f"{platform.node()}:29400"}}
    ]
    assert configuration["alerting"]["alertmanagers"] == [{"static_configs": [{"targets": ["127.0.0.1:29093"]}]}]


def test_what_the_bundle_says_of_the_job_is_kept(tmp_path: Path) -> None:
    (original,) = load(bundle_folder("prometheus") / "prometheus.yml")["scrape_configs"]
    (job,) = derive(tmp_path)["scrape_configs"]
    assert job["honor_labels"] is original["honor_labels"] is True


def test_every_rule_file_of_the_bundle_is_loaded_once(tmp_path: Path) -> None:
    loaded = derive(tmp_path)["rule_files"]
    bundled = {*(bundle_folder("prometheus") / "rules").glob("*.yml"), *bundle_folder("alerts").glob("*.yml")}
    derived = {bundle_folder("prometheus") / "rules" / "thresholds.yml": tmp_path / "thresholds.yml"}
    expected = [str(derived.get(path, path)) for path in bundled if path.name != "alertmanager.yml"]
    assert sorted(loaded) == sorted(expected)


def test_a_stack_has_the_thresholds_of_the_bundle(tmp_path: Path) -> None:
    build_components(stack_settings(), find_programs(), tmp_path, None)
    original = thresholds(bundle_folder("prometheus") / "rules" / "thresholds.yml")
    (loaded,) = (name for name in load(tmp_path / "prometheus.yml")["rule_files"] if name.endswith("thresholds.yml"))
    assert thresholds(Path(loaded)) == original


def test_a_threshold_is_changed_and_the_others_are_not(tmp_path: Path) -> None:
    derive(tmp_path, warmup_seconds=30)
    changed = thresholds(tmp_path / "thresholds.yml")
    original = thresholds(bundle_folder("prometheus") / "rules" / "thresholds.yml")
    assert changed == {**original, "warmup_seconds": "vector(30)"}


def test_a_threshold_that_the_bundle_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="no threshold named warm_up"):
        derive(tmp_path, warm_up=30)


def test_a_bundle_without_the_scrape_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text("scrape_configs: [{job_name: other}]\n", encoding="utf-8")
    with pytest.raises(StackError, match="no scrape job named stallscope"):
        derive(tmp_path, bundle=tmp_path)


def test_no_notification_is_sent_without_a_webhook(tmp_path: Path) -> None:
    silent = load(write_alertmanager(bundle_folder("alerts"), tmp_path, webhook=None))
    assert [list(receiver) for receiver in silent["receivers"]] == [["name"]] * len(silent["receivers"])


def test_a_file_that_may_hold_a_webhooks_password_is_private(tmp_path: Path) -> None:
    (tmp_path / "alertmanager.yml").touch(mode=0o644)
    file = write_alertmanager(bundle_folder("alerts"), tmp_path, webhook="http://ada:s3cret@127.0.0.1:1234/")
    assert file.stat().st_mode & 0o077 == 0


def test_a_webhook_takes_the_place_of_whom_the_bundle_notifies(tmp_path: Path) -> None:
    original = load(bundle_folder("alerts") / "alertmanager.yml")
    reported = load(write_alertmanager(bundle_folder("alerts"), tmp_path, webhook="http://127.0.0.1:1234/"))
    posts = {"webhook_configs": [{"url": "http://127.0.0.1:1234/", "send_resolved": True}]}
    assert reported["receivers"] == [
        {"name": receiver["name"], **(posts if len(receiver) > 1 else {})} for receiver in original["receivers"]
    ]


def test_routing_and_inhibition_are_the_bundles(tmp_path: Path) -> None:
    original = load(bundle_folder("alerts") / "alertmanager.yml")
    derived = load(write_alertmanager(bundle_folder("alerts"), tmp_path, webhook=None))
    assert derived["inhibit_rules"] == original["inhibit_rules"]
    assert without_waiting(derived["route"]) == without_waiting(original["route"])


def without_waiting(route: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in route.items() if key not in ("group_wait", "group_interval")}
    return {**kept, "routes": [without_waiting(child) for child in route.get("routes", [])]}


def thresholds(file: Path) -> dict[str, str]:
    return {rule["labels"]["name"]: rule["expr"] for group in load(file)["groups"] for rule in group["rules"]}
