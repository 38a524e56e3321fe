from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallscope.common.address import Address
from stallscope.node import configuration as configuration_module
from stallscope.node.configuration import Configuration, ConfigurationError, load, parse_duration
from stallscope.node.intake.service import IntakeSettings

SOURCES = {"disk": "Physical disks.", "nvidia": "NVIDIA GPUs through NVML."}


def loaded(*flags: str, environment: Mapping[str, str] | None = None, file: Path | None = None) -> Configuration:
    arguments = [*flags, *([f"--config.file={file}"] if file else [])]
    return load(arguments, environment or {}, SOURCES)


def refusal(*flags: str, environment: Mapping[str, str] | None = None, file: Path | None = None) -> str:
    with pytest.raises(ConfigurationError) as problem:
        loaded(*flags, environment=environment, file=file)
    message = str(problem.value)
    assert len(message.splitlines()) == 1
    return message


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "exporter.yml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_the_defaults_are_the_documented_ones() -> None:
    configuration = loaded()
    assert configuration.listen_addresses == (Address("", 19400),)
    assert configuration.telemetry_path == "/metrics"
    assert configuration.sampling_interval == 1.0
    assert configuration.exit_after_hang == 0.0
    assert configuration.release_time == 60.0
    assert not configuration.pcie_throughput
    assert configuration.report_unix_socket == Path("/run/stallscope/report.sock")
    assert configuration.report_udp_address == Address("127.0.0.1", 19400)
    assert configuration.report_state_file is None
    assert not configuration.allow_remote_reports


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", ""),
        ("http://prometheus:9090/", "http://prometheus:9090"),
        ("https://ada:secret@[::1]:9090/prefix", "https://ada:secret@[::1]:9090/prefix"),
    ],
)
def test_the_address_of_prometheus_may_have_a_prefix_and_a_password(text: str, url: str) -> None:
    assert loaded(f"--prometheus.url={text}").prometheus_url == url


def test_the_report_path_has_the_same_defaults_by_itself() -> None:
    configuration, intake = loaded(), IntakeSettings()
    assert configuration.report_expiry == intake.expiry
    assert (configuration.report_max_runs, configuration.report_max_ranks) == (intake.limits.runs, intake.limits.ranks)
    assert configuration.report_unix_socket == intake.socket
    assert configuration.report_udp_address == intake.udp


def test_a_flag_beats_the_file_which_beats_the_environment_which_beats_the_default(tmp_path: Path) -> None:
    variables = {
        "STALLSCOPE_EXPORTER_LOG_LEVEL": "error",
        "STALLSCOPE_EXPORTER_SAMPLING_INTERVAL": "2s",
        "STALLSCOPE_EXPORTER_REPORT_EXPIRY": "1h",
        "HOME": "/root",
    }
    file = write(tmp_path, "log.level: warning\nsampling: {interval: 3s}\n")
    configuration = loaded("--log.level=debug", environment=variables, file=file)
    assert configuration.log_level == "debug"
    assert configuration.sampling_interval == 3.0
    assert configuration.report_expiry == 3600.0
    assert configuration.telemetry_path == "/metrics"


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "log: {level: error}")
    assert loaded(environment={"STALLSCOPE_EXPORTER_CONFIG_FILE": str(file)}).log_level == "error"


@pytest.mark.parametrize(
    "text",
    [
        "web:\n  listen-address: ['127.0.0.1:1', '[::1]:2']\n  telemetry-path: /m\n",
        "web.listen-address:\n- 127.0.0.1:1\n- '[::1]:2'\nweb.telemetry-path: /m\n",
    ],
)
def test_the_file_takes_nested_and_dotted_keys(tmp_path: Path, text: str) -> None:
    configuration = loaded(file=write(tmp_path, text))
    assert configuration.listen_addresses == (Address("127.0.0.1", 1), Address("::1", 2))
    assert configuration.telemetry_path == "/m"


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert loaded(file=write(tmp_path, "# all defaults\n")) == loaded()


def test_listen_addresses_are_repeated_as_flags_and_separated_by_commas_in_the_environment() -> None:
    expected = (Address("127.0.0.1", 1), Address("", 2))
    assert loaded("--web.listen-address=127.0.0.1:1", "--web.listen-address", ":2").listen_addresses == expected
    variables = {"STALLSCOPE_EXPORTER_WEB_LISTEN_ADDRESS": "127.0.0.1:1, :2"}
    assert loaded(environment=variables).listen_addresses == expected


@pytest.mark.parametrize("flags", [("--report.unix-socket=", "--report.udp-address="), ()])
def test_a_receiver_for_reports_is_closed_by_an_empty_value(flags: tuple[str, ...]) -> None:
    variables = {"STALLSCOPE_EXPORTER_REPORT_UNIX_SOCKET": "", "STALLSCOPE_EXPORTER_REPORT_UDP_ADDRESS": ""}
    configuration = loaded(*flags, environment={} if flags else variables)
    assert configuration.report_unix_socket is None
    assert configuration.report_udp_address is None


@pytest.mark.parametrize(
    ("flags", "disk"),
    [
        ((), True),
        (("--no-collector.disk",), False),
        (("--collector.disk=false",), False),
        (("--collector.disable-defaults",), False),
        (("--collector.disable-defaults", "--collector.disk"), True),
        (("--no-collector.disk", "--collector.disk"), True),
    ],
)
def test_a_source_runs_unless_it_or_all_are_switched_off(flags: tuple[str, ...], disk: bool) -> None:
    configuration = loaded(*flags)
    assert configuration.enabled("disk", by_default=True) is disk
    assert not configuration.enabled("nvidia", by_default=False)


def test_a_source_is_switched_by_file_and_environment_too(tmp_path: Path) -> None:
    file = write(tmp_path, "collector: {nvidia: false, disable-defaults: false}")
    configuration = loaded(file=file, environment={"STALLSCOPE_EXPORTER_COLLECTOR_DISK": "false"})
    assert configuration.collectors == {"disk": False, "nvidia": False}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1.0), ("500ms", 0.5), ("0.5s", 0.5), ("15m", 900.0), ("1h30m", 5400.0), ("2d", 172800.0)],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "s", "-1s", "1 s", "1x", "1s ", "1e3s", "nan", "infs", "1s2", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration with its unit"):
        parse_duration(text)


MALFORMED = [
    ("web.listen-address", "19400", "HOST:PORT"),
    ("web.telemetry-path", "metrics", "begins with /"),
    ("web.telemetry-path", "/-/ready", "other than the server's own"),
    ("web.telemetry-path", "/-/release", "other than the server's own"),
    ("gpu.release-time", "0s", "a duration from 1s to 1d"),
    ("sampling.exit-after-hang", "never", "a duration with its unit"),
    ("web.telemetry-path", "/", "other than the server's own"),
    ("prometheus.url", "prometheus:9090", "http://HOST:PORT"),
    ("prometheus.url", "ftp://prometheus", "http://HOST:PORT"),
    ("prometheus.url", "http://", "http://HOST:PORT"),
    ("prometheus.url", "http://prometheus:port", "http://HOST:PORT"),
    ("prometheus.url", "http://prometheus:99999", "http://HOST:PORT"),
    ("prometheus.url", "http://[::1", "http://HOST:PORT"),
    ("prometheus.url", "http://prometheus/?query=up", "http://HOST:PORT"),
    ("prometheus.url", "http://prome theus", "http://HOST:PORT"),
    ("web.telemetry-path", "/a?b", "begins with /"),
    ("web.max-threads", "0", "from 1 to 64"),
    ("web.max-threads", "four", "from 1 to 64"),
    ("web.max-threads", "\u0664", "from 1 to 64"),
    ("web.allow-remote-reports", "maybe", "true or false"),
    ("log.level", "loud", "one of debug, info, warning, error"),
    ("log.format", "xml", "one of plain, json"),
    ("collector.disk", "on", "true or false"),
    ("sampling.interval", "1", "did you mean 1s?"),
    ("sampling.interval", "50ms", "from 100ms to 60s"),
    ("sampling.interval", "2m", "from 100ms to 60s"),
    ("sampling.stale-intervals", "1", "from 2 to 100"),
    ("path.rootfs", "", "a path"),
    ("report.unix-socket", "report.sock", "an absolute path"),
    ("report.udp-address", "localhost", "HOST:PORT"),
    ("report.udp-address", "::19400", "HOST:PORT"),
    ("report.expiry", "0s", "from 1s to 30d"),
    ("report.max-runs", "-1", "from 1 to 10000"),
    ("report.max-ranks", "1e3", "from 1 to 100000"),
    ("report.state-file", "state", "an absolute path"),
    ("simulation.scenario", "../x", "the name of a scenario"),
    ("simulation.host", "", "true or false"),
    ("simulation.onset", "60", "did you mean 60s?"),
]


@pytest.mark.parametrize(("name", "value", "expected"), MALFORMED)
def test_a_malformed_value_is_refused_with_what_where_and_what_is_expected(
    name: str, value: str, expected: str, tmp_path: Path
) -> None:
    variable = configuration_module.environment_variable(name)
    file = write(tmp_path, f'# a comment\n{name}: "{value}"\n')
    for message, place in (
        (refusal(f"--{name}={value}"), f"flag --{name}: "),
        (refusal(environment={variable: value}), f"environment variable {variable}: "),
        (refusal(file=file), f"{file}:2: "),
    ):
        assert message.startswith(place)
        assert f"{name} can't be {value!r}" in message
        assert expected in message


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--web.listen-adress=:1"], "unknown flag --web.listen-adress; did you mean --web.listen-address?"),
        (["--no-collector.dsk"], "unknown flag --no-collector.dsk; did you mean --no-collector.disk?"),
        (["--web.listen=:1"], "unknown flag --web.listen"),
        (["--no-log.level"], "unknown flag --no-log.level; did you mean --log.level?"),
        (["--log.lev=debug"], "unknown flag --log.lev"),
        (["start"], "unexpected argument start"),
        (["--log.level"], "expected one argument"),
        (["--simulation.host"], "simulation.host needs a scenario"),
        (["--simulation.host", "--simulation.scenario=x", "--path.rootfs=/host"], "leave path.rootfs out"),
    ],
)
def test_what_the_command_line_says_in_vain_is_refused_by_name(flags: Sequence[str], expected: str) -> None:
    assert expected in refusal(*flags)


def test_an_unknown_variable_is_refused_and_others_are_nobodys_business() -> None:
    message = refusal(environment={"STALLSCOPE_EXPORTER_LOG_LEVLE": "info"})
    assert "unknown variable STALLSCOPE_EXPORTER_LOG_LEVLE; did you mean STALLSCOPE_EXPORTER_LOG_LEVEL?" in message
    assert loaded(environment={"STALLSCOPE_RUN": "x", "PATH": "/bin"}) == loaded()


def test_what_kubernetes_says_of_a_service_named_after_the_exporter_is_no_setting() -> None:
    environment = {
        "SERVICE_HOST": "10.0.0.11",
        "SERVICE_PORT": "19400",
        "SERVICE_PORT_HTTP_METRICS": "19400",
        "PORT": "tcp://10.0.0.11:19400",
        "PORT_19400_TCP": "tcp://10.0.0.11:19400",
        "PORT_19400_TCP_PROTO": "tcp",
        "PORT_19400_TCP_PORT": "19400",
        "PORT_19400_TCP_ADDR": "10.0.0.11",
    }
    assert loaded(environment={f"STALLSCOPE_EXPORTER_{name}": value for name, value in environment.items()}) == loaded()
    assert "unknown variable" in refusal(environment={"STALLSCOPE_EXPORTER_PORT_NUMBER": "1"})


def test_a_malformed_value_is_refused_also_where_another_place_beats_it(tmp_path: Path) -> None:
    file = write(tmp_path, "log.level: loud\n")
    assert refusal("--log.level=debug", file=file).startswith(f"{file}:1: log.level can't be 'loud'")
    variable = {"STALLSCOPE_EXPORTER_LOG_LEVEL": "loud"}
    assert "environment variable" in refusal("--log.level=debug", environment=variable)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("web: {listen-adress: ':1'}", ":1: unknown key web.listen-adress; did you mean web.listen-address?"),
        ("a: 1", ":1: unknown key a"),
        ('"a\\nb\\e[31m": 1', ":1: unknown key a\\nb\\x1b[31m"),
        ("web: :1", ":1: unknown key web"),
        ("config.file: /x", ":1: config.file can't be set in the file itself"),
        ('web.config.file: "a\\0b"', ":1: web.config.file can't be"),
        ("log.level: info\nlog:\n  level: debug\n", ":3: log.level is set twice, first in line 1"),
        ("log.level:", ':1: log.level has no value; write "" for an empty one'),
        ("log.level: [info, debug]", ":1: log.level takes one value, not a list"),
        ("log.level: []", ":1: log.level takes a value or a list of values"),
        ("web.listen-address: [[a]]", ":1: web.listen-address takes a value or a list of values"),
        ("[1, 2]", ":1: expected settings as `name: value`"),
        ("text", ":1: expected settings as `name: value`"),
        ("? [a]\n: b", ":1: a key must be a plain text"),
        ("a: [", "is not valid YAML"),
        ("a: b\n\tc: d", ":2: is not valid YAML"),
        ("a: 1\n---\nb: 2", "is not valid YAML"),
        ("a: *nowhere", "is not valid YAML"),
        ("&a {web: *a}", "unknown key web.web.web"),
        (b"\xff\xfe\xfa", "is not valid YAML"),
        (b"log.level: \x00", "is not valid YAML"),
        (b"[" * 50_000, "nested too deeply"),
        (b"#" * 70_000, "longer than 65536 bytes"),
    ],
)
@pytest.mark.usefixtures("nothing_collected")
def test_a_file_that_is_not_understood_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, expected: str
) -> None:
    file = write(tmp_path, text)
    message = refusal(file=file)
    assert message.startswith(str(file))
    assert expected in message


def test_an_alias_is_a_value_like_any_other(tmp_path: Path) -> None:
    file = write(tmp_path, "report.expiry: &t 20s\nsampling.interval: *t\n")
    assert loaded(file=file).sampling_interval == 20.0


@pytest.mark.parametrize(("name", "expected"), [("missing.yml", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    assert expected in refusal(file=tmp_path / name)


@given(st.text(max_size=60) | st.binary(max_size=60))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_no_file_brings_anything_but_a_configuration_or_one_line(tmp_path: Path, text: str | bytes) -> None:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    outcome: Configuration | ConfigurationError
    try:
        outcome = loaded(file=write(tmp_path, data))
    except ConfigurationError as problem:
        outcome = problem
    assert len(str(outcome).splitlines()) == 1


def test_changes_are_separated_by_whether_a_reload_applies_them() -> None:
    running = loaded()
    newer = loaded("--log.level=debug", "--no-collector.disk", "--web.listen-address=:1", "--report.expiry=1h")
    live, waiting = running.changes(newer)
    assert live == {"log_level": "debug", "report_expiry": 3600.0, "collectors": {"disk": False}}
    assert waiting == ["web.listen-address"]
    assert running.changes(running) == ({}, [])


def test_help_lists_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        loaded("--help")
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for setting in configuration_module.settings(SOURCES).values():
        assert f"--{setting.name}" in text
        assert setting.help in text
        if setting.default and not setting.switch:
            assert f"Default: {setting.default}." in text


def test_every_setting_has_a_default_that_it_accepts_itself() -> None:
    entries: list[Any] = [entry.metadata.get("setting") for entry in fields(Configuration)]
    for setting in filter(None, entries):
        setting.parse(setting.default)
