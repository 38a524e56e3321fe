"""The Compose files are valid and confined, and the real programs accept and run their configuration."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stallscope.common.version import __version__
from stallscope.node.collectors.base import available
from stallscope.node.configuration import load
from tests.deferred import Deferred
from tests.deploy import dockerfile
from tests.free_ports import free_ports
from tests.waiting import until

jsonschema = Deferred("jsonschema")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/compose"
FILES = sorted(FOLDER.glob("compose*.yml"))
VARIANTS = (("compose.yml",), ("compose.yml", "compose.nvidia.yml"), ("compose.yml", "compose.long-term.yml"))
SCHEMA = json.loads((ROOT / "tests/deploy/compose_schema/compose-spec.json").read_text(encoding="utf-8"))


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found


def services(*names: str) -> dict[str, dict[str, Any]]:
    """Return the services of several files, merged as Compose merges them."""
    merged: dict[str, dict[str, Any]] = {}
    for name in names:
        for service, settings in read(name)["services"].items():
            into = merged.setdefault(service, {})
            mounts = {target(each): each for each in [*into.get("volumes", []), *settings.get("volumes", [])]}
            into.update(settings)
            if mounts:
                into["volumes"] = list(mounts.values())
    return merged


def source(mount: str) -> str:
    return mount.split(":")[0]


def target(mount: str) -> str:
    return mount.split(":")[1]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_a_file_is_valid_by_the_specification(file: Path) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(read(file.name))


def test_the_schema_rejects_an_unknown_key() -> None:
    wrong = {"services": {"exporter": {"image": "x", "cap_dropp": ["ALL"]}}}
    with pytest.raises(jsonschema.ValidationError, match="cap_dropp"):
        jsonschema.Draft7Validator(SCHEMA).validate(wrong)


@pytest.mark.parametrize("names", VARIANTS, ids=lambda names: names[-1])
def test_every_service_is_confined(names: tuple[str, ...]) -> None:
    for name, service in services(*names).items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.keys() & {"privileged", "cap_add", "devices", "network_mode", "ipc", "env_file"}, name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        for mount in service.get("volumes", ()):
            assert not source(mount).endswith(".sock"), name
            assert mount.count(":") == 1 if source(mount)[0] not in "./" else ":ro" in mount, mount


def test_only_services_that_report_processes_see_those_of_the_host() -> None:
    for names in VARIANTS:
        seeing = {name for name, service in services(*names).items() if service.get("pid") == "host"}
        assert seeing == {"node-exporter"} | ({"exporter"} if "compose.nvidia.yml" in names else set())


def test_only_the_database_with_a_volume_of_root_runs_as_root() -> None:
    merged = services(*(path.name for path in FILES))
    users = {name: service.get("user", dockerfile.last("USER")) for name, service in merged.items()}
    assert {name for name, user in users.items() if user.startswith("0")} == {"victoriametrics"}


def test_images_are_pinned_and_named_without_a_server() -> None:
    for name, service in services(*(path.name for path in FILES)).items():
        assert re.fullmatch(r"[a-z-]+/[a-z-]+:v?\d+\.\d+\.\d+", service["image"]), name
    assert read("compose.yml")["services"]["exporter"]["image"].endswith(f":{__version__}")


@pytest.mark.parametrize("names", VARIANTS, ids=lambda names: names[-1])
def test_every_mounted_path_exists(names: tuple[str, ...]) -> None:
    volumes = {volume for name in names for volume in read(name).get("volumes", {})}
    for service in services(*names).values():
        for mount in service.get("volumes", ()):
            if source(mount).startswith("."):
                assert (FOLDER / source(mount)).exists(), mount
            elif not source(mount).startswith("/"):
                assert source(mount) in volumes, mount
        if "build" in service:
            context = FOLDER / service["build"]["context"]
            assert context.resolve() == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()


def test_the_exporter_accepts_its_flags_and_stores_reports_in_the_image_s_folder() -> None:
    exporter = services("compose.yml")["exporter"]
    summaries = {name: each.summary for name, each in available().items()}
    configured = load(exporter["command"], {}, summaries)
    assert str(configured.report_state_file) == "/var/lib/stallscope/reports"
    assert "/var/lib/stallscope" in [target(mount) for mount in exporter["volumes"]]
    assert any("/var/lib/stallscope" in each.text for each in dockerfile.stages()[-1] if each.name == "RUN")


def test_prometheus_differs_from_the_bundles_only_by_addresses() -> None:
    bundle = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text())
    ours = read("prometheus.yml")
    assert ours["scrape_configs"].pop()["job_name"] == "node"
    text = json.dumps(ours).replace("alertmanager:9093", "127.0.0.1:19093").replace("exporter:19400", "127.0.0.1:19400")
    assert json.loads(text) == bundle


def test_the_long_term_prometheus_adds_only_remote_write() -> None:
    longer = read("prometheus-long-term.yml")
    (written,) = longer.pop("remote_write")
    assert longer == read("prometheus.yml")
    service = services("compose.yml", "compose.long-term.yml")["victoriametrics"]
    assert written["url"].startswith("http://victoriametrics:8428/")
    assert "-httpListenAddr=:8428" in service["command"]
    assert read("datasource-long-term.yml")["datasources"][0]["url"] == "http://victoriametrics:8428"


def test_grafanas_data_sources_differ_from_the_bundles_only_by_addresses() -> None:
    bundle = yaml.safe_load((ROOT / "grafana/provisioning/datasources/stallscope.yml").read_text())
    text = json.dumps(read("datasources.yml"))
    text = text.replace("http://prometheus:9090", "http://127.0.0.1:19090")
    assert json.loads(text.replace("http://alertmanager:9093", "http://127.0.0.1:19093")) == bundle


def test_grafanas_provider_reads_the_folder_with_the_dashboards() -> None:
    grafana = services("compose.yml")["grafana"]
    provider = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/stallscope.yml").read_text())["providers"][0]
    (mounted,) = [each for each in grafana["volumes"] if target(each) == provider["options"]["path"]]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == target(mounted)
    assert (FOLDER / source(mounted) / home.name).is_file()


def test_grafana_has_no_account_with_a_default_password() -> None:
    settings = services("compose.yml")["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"


def tree(service: dict[str, Any], folder: Path) -> Path:
    """Build the container's mounted files below the folder."""
    for mount in service["volumes"]:
        place = folder / target(mount).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if source(mount).startswith("."):
            here = FOLDER / source(mount)
            if here.is_dir():
                shutil.copytree(here, place, dirs_exist_ok=True)
            else:
                shutil.copy2(here, place)
        else:
            place.mkdir(exist_ok=True)
    return folder


def moved(service: dict[str, Any], folder: Path) -> list[str]:
    """Return the service's flags, with the container's paths moved below the folder."""
    return [re.sub(r"=(?=/\w)", f"={folder}", word) for word in service["command"]]


def installed(*names: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    raise AssertionError(f"{names[0]} is not on PATH; sh tests/install_tools.sh installs it")


@pytest.mark.parametrize("names", [VARIANTS[0], VARIANTS[2]], ids=lambda names: names[-1])
def test_promtool_accepts_the_mounted_configuration_with_every_rule(names: tuple[str, ...], tmp_path: Path) -> None:
    service = services(*names)["prometheus"]
    (file,) = [word.split("=")[1] for word in moved(service, tree(service, tmp_path)) if "--config.file" in word]
    done = subprocess.run(
        [installed("promtool"), "check", "config", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    rule_files = len(re.findall(r"SUCCESS: \d+ rules found", done.stdout))
    mounted = [*(ROOT / "prometheus/rules").glob("*.yml"), *(ROOT / "alerts").glob("*.yml")]
    assert rule_files == len(mounted) - 1  # all except Alertmanager's own


def test_amtool_accepts_the_mounted_configuration_and_templates(tmp_path: Path) -> None:
    service = services("compose.yml")["alertmanager"]
    (file,) = [word.split("=")[1] for word in moved(service, tree(service, tmp_path)) if "--config.file" in word]
    done = subprocess.run(
        [installed("amtool"), "check-config", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(Path(file).parent.glob("templates/*.tmpl"))


def answer(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as page:
        return json.load(page)


@contextlib.contextmanager
def started(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[None]:
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def exporter_in(folder: Path, command: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the exporter's entry point and environment, with the container's paths moved below the folder."""
    python, isolated, script = services("compose.yml")["exporter"]["entrypoint"]
    assert python == "python"
    programs = Path(sys.executable).parent
    return (
        [sys.executable, isolated, script.replace("/var/lib", f"{folder}/var/lib"), *command],
        {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
    )


def test_only_reports_with_the_generated_token_are_accepted(tmp_path: Path) -> None:
    (web, udp) = free_ports(2)
    service = services("compose.yml")["exporter"]
    folder = tree(service, tmp_path)
    command = [word.replace("udp-address=:19400", f"udp-address=127.0.0.1:{udp}") for word in moved(service, folder)]
    command = [word.replace("=:19400", f"=127.0.0.1:{web}") for word in command]
    file = folder / "var/lib/stallscope/token"
    arguments, environment = exporter_in(folder, command)
    for _start in range(2):  # the second pass is a restarted container with its old volume
        kept = file.read_text() if file.exists() else ""
        with started(arguments, tmp_path / "exporter.log", environment):

            def page() -> str:
                with urllib.request.urlopen(f"http://127.0.0.1:{web}/metrics", timeout=30) as answered:
                    return str(answered.read(), "utf-8")

            until(page)
            for run, token in (("signed", file.read_text().strip()), ("unsigned", ""), ("forged", "0" * 64)):
                training = {**os.environ, "STALLSCOPE_ADDRESS": f"udp://127.0.0.1:{udp}", "STALLSCOPE_TOKEN": token}
                report = f"import stallscope; stallscope.Run({run!r}, rank=0).finish()"
                subprocess.run([sys.executable, "-c", report], env=training, check=True, timeout=60)

            def refused(page: str) -> set[str]:
                return set(re.findall(r'reports_rejected_total\{reason="(\w+)"\} [1-9]', page))

            def accepted(page: str) -> set[str]:
                return set(re.findall(r'training_rank_info{run="([^"]*)"', page))

            until(lambda: (refused(text := page()), accepted(text)) == ({"unsigned", "unknown_token"}, {"signed"}))
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text() == kept or not kept


def test_the_services_find_each_other_with_their_commands(tmp_path: Path) -> None:
    found = services("compose.yml")
    ports = dict(zip(("exporter:19400", "prometheus:9090", "alertmanager:9093"), free_ports(3), strict=True))
    own = {address.split(":")[1]: number for address, number in ports.items()}

    def local(text: str) -> str:
        for address, number in ports.items():
            text = text.replace(address, f"127.0.0.1:{number}")
        return text

    folders = {}
    for name in ("exporter", "prometheus", "alertmanager"):
        (tmp_path / name).mkdir()
        folders[name] = tree(found[name], tmp_path / name)
    configuration = folders["prometheus"] / "etc/stallscope/prometheus/prometheus.yml"
    configuration.write_text(local(configuration.read_text()).replace("scrape_interval: 15s", "scrape_interval: 1s"))
    exporter = [local(word) for word in moved(found["exporter"], folders["exporter"])]
    exporter = [re.sub(r"=(0\.0\.0\.0)?:19400", f"=127.0.0.1:{own['19400']}", word) for word in exporter]
    command, environment = exporter_in(folders["exporter"], exporter)
    with (
        started(command, tmp_path / "exporter.log", environment),
        started(
            [
                installed("prometheus"),
                *moved(found["prometheus"], folders["prometheus"]),
                f"--web.listen-address=127.0.0.1:{own['9090']}",
            ],
            tmp_path / "prometheus.log",
        ),
        started(
            [
                installed("prometheus-alertmanager", "alertmanager"),
                *moved(found["alertmanager"], folders["alertmanager"]),
                f"--web.listen-address=127.0.0.1:{own['9093']}",
            ],
            tmp_path / "alertmanager.log",
        ),
    ):
        url = f"http://127.0.0.1:{own['9090']}/api/v1"

        def healthy() -> set[str]:
            active = answer(f"{url}/targets")["data"]["activeTargets"]
            return {each["labels"]["job"] for each in active if each["health"] == "up"}

        assert until(healthy) == {"stallscope"}
        (manager,) = until(lambda: answer(f"{url}/alertmanagers")["data"]["activeAlertmanagers"])
        assert f":{own['9093']}/" in manager["url"]
        assert until(lambda: answer(f"http://127.0.0.1:{own['9093']}/api/v2/status"))["config"]["original"]
