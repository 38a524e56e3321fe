"""A real Prometheus without targets, for writes and queries."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.free_ports import free_port
from tests.waiting import until


class RefusedError(RuntimeError):
    """Prometheus did not answer a question; the message says why."""


@dataclass(frozen=True)
class Prometheus:
    """One that answers somewhere."""

    address: str
    """URL of its HTTP API: `http://127.0.0.1:9090`."""

    def get(self, what: str, **parameters: str) -> dict[str, Any]:
        """Query its HTTP API and return the whole response: `data`, and `warnings` where there are any.

        Args:
            what: `query`, `query_range`, `rules`, `label/run/values` …
            parameters: of the query.

        Raises:
            RefusedError: the question is wrong, or can't be answered.
        """
        encoded = urllib.parse.urlencode(parameters)
        # A form, since expressions outgrow an address; what takes no form has no parameters, or short ones.
        posted = what in ("query", "query_range")
        url = f"{self.address}/api/v1/{what}" + (f"?{encoded}" if encoded and not posted else "")
        try:
            with urllib.request.urlopen(url, encoded.encode() if posted else None, timeout=120) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                raise RefusedError(refused.read().decode()) from None
        return found


@dataclass(frozen=True)
class Server(Prometheus):
    """One that was started here."""

    port: int
    pid: int
    folder: Path
    """With its configuration, log and data."""

    def configure(self, files: Sequence[Path], interval: int) -> None:
        """Give it rule files, evaluated at an interval in seconds."""
        _write_configuration(self.folder, files, interval)
        urllib.request.urlopen(f"{self.address}/-/reload", data=b"", timeout=60).close()


@contextmanager
def prometheus(
    *,
    interval: int = 30,
    data: Path | None = None,
    files: Sequence[Path] = (),
    flags: Sequence[str] = (),
    scrapes: Sequence[Mapping[str, object]] = (),
    alertmanagers: Sequence[str] = (),
) -> Iterator[Server]:
    """Run one that takes what is written to it, by default without targets.

    Args:
        interval: seconds between two evaluations of the rules that it may get.
        data: folder of its storage, kept for the next server; a temporary one if left out.
        files: rule files, none by default.
        flags: further ones of its command line.
        scrapes: its `scrape_configs`; lost at `configure`.
        alertmanagers: addresses to send alerts to; lost at `configure`.

    Raises:
        RuntimeError: it is not installed, or does not come up.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise RuntimeError("prometheus is not on PATH; sh tests/install_tools.sh installs it on Debian and Ubuntu")
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_configuration(folder, files, interval, scrapes, alertmanagers)
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={data or folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--web.enable-remote-write-receiver",
                    "--web.enable-lifecycle",
                    "--log.level=warn",
                    *flags,
                ],
                stderr=log,
            ) as process,
        ):
            try:
                until(lambda: _is_ready(port), "Prometheus is not ready")
                yield Server(f"http://127.0.0.1:{port}", port, process.pid, folder)
            finally:
                process.terminate()
                process.wait(60)


def _is_ready(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=30).close()
    except OSError:
        return False
    return True


def _write_configuration(
    folder: Path,
    files: Sequence[Path],
    interval: int,
    scrapes: Sequence[Mapping[str, object]] = (),
    alertmanagers: Sequence[str] = (),
) -> None:
    configuration: dict[str, object] = {
        "global": {"evaluation_interval": f"{interval}s"},
        "rule_files": [str(path) for path in files],
        "scrape_configs": [dict(each) for each in scrapes],
    }
    if alertmanagers:
        configuration["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
