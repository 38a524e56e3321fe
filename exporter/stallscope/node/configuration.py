"""Every setting of the exporter, and the four places that it may come from.

A flag takes precedence over the configuration file, the file over the environment, and that over the default. All of
them use one name: `--web.telemetry-path=/m` is `web: {telemetry-path: /m}` or `web.telemetry-path: /m` in the file and
`STALLSCOPE_EXPORTER_WEB_TELEMETRY_PATH=/m` in the environment, where a list is separated by commas. An invalid setting
is an error with its name and place; it is never ignored.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from stallscope.common.address import Address, parse_address, split_url
from stallscope.common.formatting import without_password
from stallscope.common.logs import FORMATS, LEVELS
from stallscope.training.protocol.vocabulary import DEFAULT_PORT, DEFAULT_SOCKET

if TYPE_CHECKING:
    import yaml

ENVIRONMENT_PREFIX = "STALLSCOPE_EXPORTER_"
MAX_FILE_BYTES = 65_536
OWN_PATHS = (
    *("/", "/-/healthy", "/-/ready", "/-/release", "/-/resume"),
    *("/api/v1/report", "/api/v1/stacks", "/api/v1/stop", "/api/v1/trace"),
)
"""Paths of the web server that the metrics can't be moved to."""

_COLLECTOR = "collector."
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|[smhd])")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_SERVICE_VARIABLE = re.compile(
    ENVIRONMENT_PREFIX + r"(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes sets in every pod next to a Service named `stallscope-exporter`."""

_COLUMNS = 80
"""Maximum width of the help."""


class ConfigurationError(Exception):
    """A setting is wrong; the message is one line with what, where and what is expected."""

    def __init__(self, message: str) -> None:
        # It may quote user input, including line breaks and control characters.
        super().__init__(message if message.isprintable() else message.encode("unicode_escape").decode())


@dataclass(frozen=True)
class Setting:
    """One setting, for the flags, the file, the environment and the documentation."""

    name: str
    parse: Callable[[str], Any]
    """Raises ValueError with what was expected."""
    default: str
    help: str
    metavar: str
    repeatable: bool = False
    live: bool = False
    """True if a reload applies it; otherwise a restart is needed."""

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return environment_variable(self.name)

    @property
    def switch(self) -> bool:
        """True for a switch, with a `--no-` form of its flag."""
        return self.parse is parse_switch


def environment_variable(name: str) -> str:
    """The environment variable of the setting with that name."""
    return ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", name).upper()


def parse_duration(text: str) -> float:
    """Read `500ms`, `15m` or `1h30m` as seconds."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        hint = f"; did you mean {text}s?" if _NUMBER.fullmatch(text) else ""
        raise ValueError(f"a duration with its unit, such as 500ms, 1s, 15m or 1h30m{hint}")
    return math.fsum(float(number) * _UNITS[unit] for number, unit in parts)


def parse_switch(text: str) -> bool:
    """Read `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def parse_telemetry_path(text: str) -> str:
    """Read the path of the metrics, which must not be one of the server's own."""
    if not re.fullmatch(r"/[A-Za-z0-9._~/-]*", text):
        raise ValueError("a path that begins with / and holds only letters, digits and . _ ~ - /")
    if text in OWN_PATHS:
        raise ValueError(f"a path other than the server's own ({', '.join(OWN_PATHS)})")
    return text


def parse_optional_address(text: str) -> Address | None:
    """Parse `host:port`; None if empty."""
    if not text:
        return None
    try:
        return parse_address(text)
    except ValueError as problem:
        raise ValueError(f"{problem}, or empty to disable it") from None


def parse_optional_path(text: str) -> Path | None:
    """Parse an absolute path; None if empty."""
    if not text:
        return None
    if not text.startswith("/") or "\0" in text:
        raise ValueError("an absolute path, or empty to disable it")
    return Path(text)


def _parse_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("a path")
    return Path(text)


def _parse_file(text: str) -> Path | None:
    return _parse_path(text) if text else None


def _parse_group(text: str) -> str:
    if text:
        import grp  # which few exporters need

        try:
            grp.getgrnam(text)
        except KeyError:
            raise ValueError("the name of a group on this machine, or empty") from None
    return text


def parse_server(text: str) -> str:
    """Read the address of an HTTP server with its path prefix, if it has one; empty for no server."""
    if not text:
        return ""
    try:
        split_url(text)
        sound = "?" not in text and "#" not in text
    except ValueError:
        sound = False
    if not sound:
        raise ValueError("http://HOST:PORT or https://HOST:PORT, with its path prefix if it has one, or empty")
    return text.rstrip("/")


def _parse_node(text: str) -> str:
    if not re.fullmatch(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?", text):
        raise ValueError("the name of a node, such as gpu-node-7")
    return text


def _parse_word(text: str) -> str:
    if text and not re.fullmatch(r"[a-z0-9_-]+", text):
        raise ValueError("the name of a scenario, or empty for the real driver")
    return text


def _duration(low: str, high: str) -> Callable[[str], float]:
    lowest, highest = parse_duration(low), parse_duration(high)

    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if not lowest <= seconds <= highest:
            raise ValueError(f"a duration from {low} to {high}")
        return seconds

    return parse


parse_release_time = _duration("1s", "1d")
"""Parse the time of a release of GPUs."""


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def _choice(choices: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return parse


def _setting(
    name: str,
    parse: Callable[[str], Any],
    default: str,
    metavar: str,
    help_text: str,
    *,
    repeatable: bool = False,
    live: bool = False,
) -> dict[str, Setting]:
    return {"setting": Setting(name, parse, default, help_text, metavar, repeatable, live)}


@dataclass(frozen=True)
class Configuration:
    """All settings, checked. The fields are the one table that flags, file, environment and documentation share."""

    listen_addresses: tuple[Address, ...] = field(
        metadata=_setting(
            "web.listen-address",
            parse_address,
            ":19400",
            "ADDRESS",
            "Address to listen on for HTTP: HOST:PORT, :PORT for all interfaces, [IPV6]:PORT.",
            repeatable=True,
        )
    )
    telemetry_path: str = field(
        metadata=_setting("web.telemetry-path", parse_telemetry_path, "/metrics", "PATH", "Path of the metrics.")
    )
    web_config_file: Path | None = field(
        metadata=_setting(
            "web.config.file",
            _parse_file,
            "",
            "FILE",
            "TLS, client certificates, users with passwords, and headers, in the format that all Prometheus exporters "
            "share (`promtool check web-config` checks it); reloaded when it changes.",
        )
    )
    max_threads: int = field(
        metadata=_setting(
            "web.max-threads", _integer(1, 64), "4", "NUMBER", "Threads for HTTP requests, for each listen address."
        )
    )
    allow_remote_reports: bool = field(
        metadata=_setting(
            "web.allow-remote-reports",
            parse_switch,
            "false",
            "",
            "Accept training reports over HTTP from other machines too, not only from this one. Users and client "
            "certificates of --web.config.file can then also send requests to runs and release GPUs from there.",
            live=True,
        )
    )
    control_group: str = field(
        metadata=_setting(
            "web.control-group",
            _parse_group,
            "",
            "GROUP",
            "Group whose members may release GPUs, and request traces, stacks and the end of every run over HTTP, as "
            "root and the exporter's user may. Other users may send requests only to their own runs.",
            live=True,
        )
    )
    enable_status_page: bool = field(
        metadata=_setting("web.enable-status-page", parse_switch, "true", "", "Serve the status page at /.", live=True)
    )
    enable_reports: bool = field(
        metadata=_setting(
            "web.enable-reports",
            parse_switch,
            "true",
            "",
            "Accept training reports by POST /api/v1/report; the UNIX socket and UDP have their own settings.",
            live=True,
        )
    )
    enable_release: bool = field(
        metadata=_setting(
            "web.enable-release",
            parse_switch,
            "true",
            "",
            "Accept POST /-/release and /-/resume, which close and reopen GPUs; the signals always work.",
            live=True,
        )
    )
    log_level: str = field(
        metadata=_setting(
            "log.level", _choice(LEVELS), "info", "LEVEL", f"Lowest level to log: {', '.join(LEVELS)}.", live=True
        )
    )
    log_format: str = field(
        metadata=_setting(
            "log.format", _choice(FORMATS), "plain", "FORMAT", f"Format of the log: {' or '.join(FORMATS)}.", live=True
        )
    )
    disable_default_collectors: bool = field(
        metadata=_setting(
            "collector.disable-defaults",
            parse_switch,
            "false",
            "",
            "Run only collectors that are enabled explicitly; otherwise all collectors run.",
            live=True,
        )
    )
    sampling_interval: float = field(
        metadata=_setting(
            "sampling.interval",
            _duration("100ms", "60s"),
            "1s",
            "DURATION",
            "Interval of a collector's readings, 100ms to 60s.",
        )
    )
    stale_intervals: int = field(
        metadata=_setting(
            "sampling.stale-intervals",
            _integer(2, 100),
            "3",
            "NUMBER",
            "Age in intervals after which a reading is stale and no longer exported.",
            live=True,
        )
    )
    exit_after_hang: float = field(
        metadata=_setting(
            "sampling.exit-after-hang",
            _duration("0s", "1d"),
            "0s",
            "DURATION",
            "Exit with status 75 once a reading has been stuck for this long, so that a supervisor restarts the "
            "exporter: a driver call that hangs ends only with its process. 0s disables this.",
            live=True,
        )
    )
    release_time: float = field(
        metadata=_setting(
            "gpu.release-time",
            parse_release_time,
            "60s",
            "DURATION",
            "How long SIGUSR1, or POST /-/release without a time, releases the GPUs' device files, 1s to 1d.",
            live=True,
        )
    )
    pcie_throughput: bool = field(
        metadata=_setting(
            "nvidia.pcie-throughput",
            parse_switch,
            "false",
            "",
            "Query the throughput of GPUs that have no PCIe byte counter, which takes 40 ms per GPU each time.",
        )
    )
    nccl_inspector_folder: Path | None = field(
        metadata=_setting(
            "nccl.inspector-folder",
            _parse_file,
            "",
            "PATH",
            "Folder on this node into which NCCL Inspector writes JSON (NCCL_INSPECTOR_DUMP_DIR). Folders in it "
            "are read too.",
        )
    )
    root: Path = field(
        metadata=_setting("path.rootfs", _parse_path, "/", "PATH", "Folder that contains the machine's proc and sys.")
    )
    report_unix_socket: Path | None = field(
        metadata=_setting(
            "report.unix-socket",
            parse_optional_path,
            DEFAULT_SOCKET,
            "PATH",
            "UNIX datagram socket for training reports; empty to disable it.",
        )
    )
    report_udp_address: Address | None = field(
        metadata=_setting(
            "report.udp-address",
            parse_optional_address,
            f"127.0.0.1:{DEFAULT_PORT}",
            "ADDRESS",
            "UDP address for training reports: HOST:PORT, :PORT for all interfaces, [IPV6]:PORT; empty to disable it.",
        )
    )
    report_expiry: float = field(
        metadata=_setting(
            "report.expiry",
            _duration("1s", "30d"),
            "15m",
            "DURATION",
            "Time for which an ended rank is still exported, and time without a report after which a rank whose "
            "process is not visible counts as lost.",
            live=True,
        )
    )
    report_max_runs: int = field(
        metadata=_setting(
            "report.max-runs", _integer(1, 10_000), "64", "NUMBER", "Maximum number of training runs.", live=True
        )
    )
    report_max_ranks: int = field(
        metadata=_setting(
            "report.max-ranks", _integer(1, 100_000), "1024", "NUMBER", "Maximum number of ranks.", live=True
        )
    )
    report_state_file: Path | None = field(
        metadata=_setting(
            "report.state-file",
            parse_optional_path,
            "",
            "FILE",
            "File to store the newest reports in, so that they are exported again at once after a restart.",
        )
    )
    report_token_file: Path | None = field(
        metadata=_setting(
            "report.token-file",
            _parse_file,
            "",
            "FILE",
            "File with one token per line: reports over UDP and HTTP must be signed with one of them. Reloaded when it "
            "changes. Without it, unsigned reports are accepted.",
        )
    )
    report_token_window: float = field(
        metadata=_setting(
            "report.token-window",
            _duration("1s", "1h"),
            "2m",
            "DURATION",
            "Maximum difference between the time of a signature and this machine's clock, 1s to 1h.",
            live=True,
        )
    )
    report_socket_token: bool = field(
        metadata=_setting(
            "report.token-on-unix-socket",
            parse_switch,
            "false",
            "",
            "Require signatures on the UNIX socket too, not only over UDP and HTTP.",
        )
    )
    allow_trace_requests: bool = field(
        metadata=_setting(
            "report.allow-trace-requests",
            parse_switch,
            "false",
            "",
            "Pass requests of `stallscope trace` to training jobs; each job must allow it too (STALLSCOPE_TRACE_DIR).",
            live=True,
        )
    )
    allow_stop_requests: bool = field(
        metadata=_setting(
            "report.allow-stop-requests",
            parse_switch,
            "false",
            "",
            "Pass requests of `stallscope stop` to training jobs; each job must allow it too "
            "(STALLSCOPE_ALLOW_STOP=1).",
            live=True,
        )
    )
    prometheus_url: str = field(
        metadata=_setting(
            "prometheus.url",
            parse_server,
            "",
            "URL",
            "Prometheus with Stallscope's rules, queried for the verdicts on the status page while a browser shows it; "
            "uses 10 MB more memory.",
        )
    )
    kubernetes_node: str = field(
        metadata=_setting(
            "kubernetes.node",
            _parse_node,
            "",
            "NAME",
            "Name of this node. Enables requests to the Kubernetes API: queue and job of pods with GPUs, and GPUs of "
            "dynamic resource allocation. Needs the ClusterRole of deploy/kubernetes/components/kubernetes-api.",
        )
    )
    otlp_endpoint: str = field(
        metadata=_setting(
            "otlp.endpoint",
            parse_server,
            "",
            "URL",
            "OpenTelemetry receiver to which all metrics are also sent, without its path /v1/metrics: "
            "http://collector:4318. Needs the extra `otlp`.",
        )
    )
    otlp_headers_file: Path | None = field(
        metadata=_setting(
            "otlp.headers-file",
            _parse_file,
            "",
            "FILE",
            "File with headers for that receiver, such as `Authorization: Bearer TOKEN`, one per line; reloaded when "
            "it changes.",
        )
    )
    otlp_interval: float = field(
        metadata=_setting(
            "otlp.interval", _duration("1s", "1h"), "60s", "DURATION", "Interval of sending metrics there, 1s to 1h."
        )
    )
    scenario: str = field(
        metadata=_setting(
            "simulation.scenario",
            _parse_word,
            "",
            "NAME",
            "Simulate a node with this scenario of `stallscope up`, instead of reading the real driver.",
        )
    )
    simulated_host: bool = field(
        metadata=_setting(
            "simulation.host",
            parse_switch,
            "false",
            "",
            "Simulate the host too, not only GPUs and training; needs a scenario.",
        )
    )
    onset: float = field(
        metadata=_setting(
            "simulation.onset",
            _duration("0s", "1d"),
            "60s",
            "DURATION",
            "Time from the start to the fault of the scenario.",
        )
    )
    collectors: Mapping[str, bool] = field(default_factory=dict)
    """Collectors that are enabled or disabled explicitly, by name."""

    def enabled(self, name: str, *, by_default: bool) -> bool:
        """Return True if the collector of that name runs."""
        return self.collectors.get(name, by_default and not self.disable_default_collectors)

    def changes(self, newer: Configuration) -> tuple[dict[str, Any], list[str]]:
        """Return the differences in a newer configuration.

        Returns:
            New values that a reload applies, by field; and the names of changed settings that need a restart.
        """
        live: dict[str, Any] = {}
        waiting: list[str] = []
        for name, setting in _FIELDS.items():
            value = getattr(newer, name)
            if value == getattr(self, name):
                continue
            if setting.live:
                live[name] = value
            else:
                waiting.append(setting.name)
        if newer.collectors != self.collectors:
            live["collectors"] = newer.collectors
        return live, waiting


_FIELDS: dict[str, Setting] = {
    entry.name: entry.metadata["setting"] for entry in dataclasses.fields(Configuration) if "setting" in entry.metadata
}
_CONFIG_FILE = Setting("config.file", _parse_path, "", "YAML file with settings.", "FILE")


def settings(sources: Mapping[str, str]) -> dict[str, Setting]:
    """Return every setting by name, with a switch for each collector.

    Args:
        sources: the summary of each collector, by its name.
    """
    collectors = [
        Setting(f"{_COLLECTOR}{name}", parse_switch, "", summary, "", live=True) for name, summary in sources.items()
    ]
    return {setting.name: setting for setting in (_CONFIG_FILE, *_FIELDS.values(), *collectors)}


class _Given(NamedTuple):
    """A value as the user wrote it."""

    texts: tuple[str, ...]
    place: str


def load(arguments: Sequence[str], environment: Mapping[str, str], sources: Mapping[str, str]) -> Configuration:
    """Read the configuration from all four places.

    Args:
        arguments: the command line after the command's name.
        environment: the process environment.
        sources: the summary of each collector, by its name.

    Raises:
        ConfigurationError: a setting is unknown or invalid.
        SystemExit: help was printed.
    """
    table = settings(sources)
    flags = _from_flags(arguments, table)
    variables = _from_environment(environment, table)
    file = flags.get(_CONFIG_FILE.name) or variables.get(_CONFIG_FILE.name)
    in_file = _from_file(_value(_CONFIG_FILE, file), table) if file else {}
    defaults = {setting.name: _Given((setting.default,), "default") for setting in _FIELDS.values()}
    # Every place is checked, even if another takes precedence, so that an error does not appear only at a later change.
    values = {
        name: _value(table[name], given)
        for place in (defaults, variables, in_file, flags)
        for name, given in place.items()
    }
    collectors = {name: values[_COLLECTOR + name] for name in sources if _COLLECTOR + name in values}
    configuration = Configuration(
        **{field_name: values[setting.name] for field_name, setting in _FIELDS.items()}, collectors=collectors
    )
    if configuration.simulated_host and not configuration.scenario:
        raise ConfigurationError("simulation.host needs a scenario: set simulation.scenario too")
    if configuration.simulated_host and configuration.root != Path("/"):
        raise ConfigurationError("simulation.host has its own proc and sys: leave path.rootfs out")
    return configuration


def _value(setting: Setting, given: _Given) -> Any:
    if setting.repeatable:
        return tuple(_parsed(setting, text, given.place) for text in given.texts)
    if len(given.texts) > 1:
        raise ConfigurationError(f"{given.place}: {setting.name} takes one value, not a list")
    return _parsed(setting, given.texts[0], given.place)


def _parsed(setting: Setting, text: str, place: str) -> Any:
    try:
        return setting.parse(text)
    except ValueError as problem:
        shown = without_password(text)
        raise ConfigurationError(f"{place}: {setting.name} can't be {shown!r}: expected {problem}") from None


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, columns: int = 0) -> None:
        super().__init__(prog, width=(columns or min(_COLUMNS, shutil.get_terminal_size().columns)) - 2)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise the error in one line, without argparse's usage."""
        raise ConfigurationError(f"command line: {message}")


_GROUPS = {
    "config": "configuration",
    "web": "web server",
    "log": "log",
    "collector": "collectors",
    "sampling": "readings",
    "gpu": "GPUs",
    "nvidia": "GPUs",
    "nccl": "readings",
    "path": "readings",
    "report": "training reports",
    "prometheus": "verdicts on the status page",
    "kubernetes": "owners of GPUs",
    "otlp": "OpenTelemetry",
    "simulation": "simulation",
}
"""Titles in the help, by the first words of settings."""
_NOTES = f"""\
The --no- form of a switch ([BOOLEAN]) turns it off. A flag takes precedence
over --config.file, the file over the environment variable
({ENVIRONMENT_PREFIX}LOG_LEVEL for --log.level), and that over the default.
SIGHUP reloads the file. SIGUSR1, or POST /-/release?for=2m, closes the GPUs'
device files so that their driver can be reloaded; SIGUSR2, or
POST /-/resume, opens them again at once.

Exit status: 0 after SIGTERM or SIGINT, 1 if it cannot listen or a package is
missing, 2 for an invalid configuration, 75 after a hang
(--sampling.exit-after-hang).

examples:
  # this node's metrics at http://localhost:19400/metrics
  stallscope exporter
  # a node that others may reach: certificates and users, and signed reports
  stallscope exporter --web.config.file web.yml --report.token-file tokens
  # without hardware
  stallscope exporter --simulation.scenario thermal_throttle --simulation.host
"""


def flag_parser(table: Mapping[str, Setting]) -> argparse.ArgumentParser:
    """Return the parser of the exporter's command line, with a flag for each setting, in groups."""
    parser = _Parser(
        prog="stallscope exporter",
        usage="stallscope exporter [flags]",
        description="Serves this node's GPU, host and training metrics to Prometheus.",
        epilog=_NOTES,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(_GROUPS.values())}
    for setting in table.values():
        group = groups[_GROUPS[setting.name.partition(".")[0]]]
        default = f" Default: {setting.default}." if setting.default else ""
        text = (setting.help + default).replace("%", "%%")
        if setting.switch:
            group.add_argument(
                f"--{setting.name}", dest=setting.name, nargs="?", const="true", metavar="BOOLEAN", help=text
            )
            no_form = f"--no-{setting.name}"
            group.add_argument(no_form, dest=setting.name, action="store_const", const="false", help=argparse.SUPPRESS)
        else:
            action = "append" if setting.repeatable else "store"
            group.add_argument(
                f"--{setting.name}", dest=setting.name, action=action, metavar=setting.metavar, help=text
            )
    return parser


def _from_flags(arguments: Sequence[str], table: Mapping[str, Setting]) -> dict[str, _Given]:
    parser = flag_parser(table)
    parsed, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        name = unknown[0].partition("=")[0]
        flags = [f"--{setting.name}" for setting in table.values()]
        flags += [f"--no-{setting.name}" for setting in table.values() if setting.switch]
        kind = "unknown flag" if name.startswith("-") else "unexpected argument"
        raise ConfigurationError(f"command line: {kind} {without_password(name)}{_suggestion(name, flags)}")
    given: dict[str, _Given] = {}
    for name, value in vars(parsed).items():
        if value is not None:
            given[name] = _Given(tuple(value) if isinstance(value, list) else (value,), f"flag --{name}")
    return given


def _from_environment(environment: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, _Given]:
    by_variable = {setting.variable: setting for setting in table.values()}
    given: dict[str, _Given] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        setting = by_variable.get(variable)
        if setting is None:
            if _SERVICE_VARIABLE.fullmatch(variable):
                continue
            raise ConfigurationError(
                f"environment: unknown variable {variable}{_suggestion(variable, list(by_variable))}"
            )
        texts = tuple(part.strip() for part in text.split(",")) if setting.repeatable else (text,)
        given[setting.name] = _Given(texts, f"environment variable {variable}")
    return given


def _from_file(path: Path, table: Mapping[str, Setting]) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    lines: dict[str, int] = {}
    for name, texts, line in _flattened(read_yaml(path), "", path):
        place = f"{path}:{line}"
        if name == _CONFIG_FILE.name:
            raise ConfigurationError(f"{place}: {name} can't be set in the file itself")
        if name not in table:
            raise ConfigurationError(f"{place}: unknown key {name}{_suggestion(name, list(table))}")
        if name in lines:
            raise ConfigurationError(f"{place}: {name} is set twice, first in line {lines[name]}")
        lines[name] = line
        given[name] = _Given(texts, place)
    return given


def read_yaml(path: Path) -> yaml.Node | None:
    """Read a YAML file as a tree of nodes, whose scalars are still the user's texts.

    Raises:
        ConfigurationError: the file can't be read, is too long or is not valid YAML.
    """
    return parse_yaml(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """Read a configuration file.

    Raises:
        ConfigurationError: the file can't be read, or is too long.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as problem:
        raise ConfigurationError(f"{path}: can't be read: {problem.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path}: longer than {MAX_FILE_BYTES} bytes, the most that is read")
    return content


def parse_yaml(content: bytes, path: Path) -> yaml.Node | None:
    """Return the tree of nodes of a file's content.

    Raises:
        ConfigurationError: the content is not valid YAML.
    """
    import yaml  # a megabyte that most exporters never need

    try:
        node: yaml.Node | None = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{path}{line}: is not valid YAML: {problem.problem or problem.context}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigurationError(f"{path}: is not valid YAML: it contains characters that YAML doesn't allow") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: is nested too deeply") from None
    return node


def _flattened(node: yaml.Node | None, prefix: str, path: Path) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yield every setting of the file: its dotted name, the texts of its values, its line."""
    import yaml

    if node is None:
        return
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        # A nested mapping of an alias may contain itself; names have at most three parts.
        if prefix.count(".") >= 3:
            raise ConfigurationError(f"{path}:{line}: unknown key {prefix.rstrip('.')}")
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigurationError(f"{path}:{key.start_mark.line + 1}: a key must be a plain text")
            if isinstance(value, yaml.MappingNode):
                yield from _flattened(value, f"{prefix}{key.value}.", path)
            else:
                yield f"{prefix}{key.value}", _texts(value, f"{prefix}{key.value}", path), key.start_mark.line + 1
    else:
        raise ConfigurationError(f"{path}:{line}: expected settings as `name: value`")


def _texts(node: yaml.Node, name: str, path: Path) -> tuple[str, ...]:
    import yaml

    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    place = f"{path}:{node.start_mark.line + 1}"
    if not nodes or not all(isinstance(entry, yaml.ScalarNode) for entry in nodes):
        raise ConfigurationError(f"{place}: {name} takes a value or a list of values")
    if any(entry.tag == "tag:yaml.org,2002:null" for entry in nodes):
        raise ConfigurationError(f'{place}: {name} has no value; write "" for an empty one')
    return tuple(entry.value for entry in nodes)


def _suggestion(name: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
