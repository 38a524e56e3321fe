"""Serve this node's GPU, host and training metrics to Prometheus."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stallscope.common import logs
from stallscope.node.configuration import Configuration, ConfigurationError, flag_parser, load, settings

if TYPE_CHECKING:
    import argparse

    from stallscope.lab.simulation.simulation import Simulation
    from stallscope.model.view.explanation_watch import ExplanationWatch
    from stallscope.model.view.verdicts import VerdictWatch
    from stallscope.node.collectors.base import Collector, KubernetesSettings
    from stallscope.node.drivers.device import Driver
    from stallscope.node.sampling.reading import Sample
    from stallscope.node.web.application import Choices
    from stallscope.node.web.http.refusals import Refusals
    from stallscope.node.web.http.request import Request
    from stallscope.node.web.http.security import Security
    from stallscope.node.web.http.server import Answer
    from stallscope.node.web.status.exporter_state import ExporterState
    from stallscope.node.web.status.page import StatusPage
    from stallscope.training.protocol.report import Report
    from stallscope.training.protocol.stacks import Stack

_logger = logging.getLogger(__name__)

_END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_OTHER_SIGNALS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SIGNALS = (*_END_SIGNALS, *_OTHER_SIGNALS)
_MAX_VERDICT_BYTES = 1 << 20
_MAX_EXPLANATION_BYTES = 2 << 20
"""Enough for a run of 250 ranks."""
"""Size limit of a response, far above the verdicts of one node's runs and GPUs."""
_STUCK_STATUS = os.EX_TEMPFAIL
"""Exit status after a poll that never returns: 75."""
_M_ARENA_MAX = -8
"""Value of M_ARENA_MAX in glibc's malloc.h."""
_STOP_SECONDS = 0.9
"""Maximum duration of a clean stop, unless the machine or a file system hangs."""
_END_SECONDS = 4.0
"""Maximum duration of a stop if it hangs. systemd's unit and Kubernetes wait longer, so the state file is written."""


class Exporter:
    """All components of an exporter, built from its configuration."""

    def __init__(self, configuration: Configuration, sources: dict[str, type[Collector]]) -> None:
        """Build the components and bind the addresses; `start` starts them.

        Raises:
            ConfigurationError: a setting names something that does not exist.
            ListenError: an address is not available.
        """
        from stallscope.node import otlp
        from stallscope.node.collectors.base import Environment
        from stallscope.node.intake.authentication import TokenError
        from stallscope.node.intake.service import Intake, IntakeSettings
        from stallscope.node.sampling.sampler import Sampler
        from stallscope.node.web import runbooks
        from stallscope.node.web.application import Application
        from stallscope.node.web.control import Control
        from stallscope.node.web.http.refusals import Refusals
        from stallscope.node.web.http.server import Server, connection_limit
        from stallscope.node.web.status.history import History

        self.configuration = configuration
        self._sources = sources
        self._pusher = otlp.pusher(configuration, lambda: self.sampler.snapshot)
        try:
            self.intake = Intake(
                IntakeSettings(
                    socket=configuration.report_unix_socket,
                    udp=configuration.report_udp_address,
                    state_file=configuration.report_state_file,
                    limits=_limits(configuration),
                    expiry=configuration.report_expiry,
                    token_file=configuration.report_token_file,
                    token_window=configuration.report_token_window,
                    socket_needs_token=configuration.report_socket_token,
                    requests=_allowed_requests(configuration),
                )
            )
        except TokenError as problem:
            raise ConfigurationError(f"report.token-file: {problem}") from None
        self._simulation, root, driver = self._simulate()
        self._environment = Environment(
            root=root,
            interval=configuration.sampling_interval,
            driver=driver,
            statvfs=os.statvfs if self._simulation is None else self._simulation.statvfs,
            processes_elsewhere=self._simulation is not None
            and not (configuration.simulated_host or self._simulation.scenario.coupled),
            kubernetes=_kubernetes(configuration.kubernetes_node, os.environ),
            pcie_throughput=configuration.pcie_throughput,
            nccl_inspector_folder=configuration.nccl_inspector_folder,
            exposed=lambda: self.sampler.snapshot.samples,
        )
        self.sampler = Sampler(
            interval=configuration.sampling_interval,
            stale_after_intervals=configuration.stale_intervals,
            on_page=self._after_page,
        )
        self._history = History(self._environment.clock.monotonic)
        self._status_page: StatusPage | None = None
        self._watches = _watches(configuration.prometheus_url)
        self.sampler.add_collector("reports", self.intake.collect)
        self._running: dict[str, Collector] = {}
        self._switch_sources()
        refusals = Refusals()
        self._control = Control(configuration.control_group)
        self._application = Application(
            self.sampler,
            post_report=self.intake.post,
            post_request=self.intake.post_request,
            status_page=self._render_status_page,
            release=self.release,
            telemetry_path=configuration.telemetry_path,
            allow_remote_reports=configuration.allow_remote_reports,
            signed_reports=self.intake.authentication is not None,
            switched_off=_switched_off(configuration),
            refusals=refusals,
            control=self._control,
            runbooks=runbooks.load(),
        )
        self.sampler.add_collector("requests", refusals.collect)
        self.sampler.add_collector("configuration", self._collect_reloads)
        self._is_reloaded = True
        self.servers: list[Server] = []
        self._security: Security | None = None
        try:
            self._security = _security(configuration.web_config_file, refusals)
            answer: Answer = self._application.answer
            tls = None
            if self._security is not None:
                answer, tls = self._security.guard(answer, self._is_signed), self._security.tls
            limit = connection_limit(len(configuration.listen_addresses))
            for address in configuration.listen_addresses:
                threads = configuration.max_threads
                self.servers.append(
                    Server(address, answer, threads=threads, max_connections=limit, tls=tls, refusals=refusals)
                )
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Start the servers before the collectors: the first response must not wait for the first poll."""
        for server in self.servers:
            server.start()
        self.intake.start()
        if self._simulation is not None:
            self._simulation.start()
        self.sampler.start()
        for watch in self._watches:
            watch.start()
        if self._pusher is not None:
            self._pusher.start()
        if self.intake.authentication is None and self._accepts_remote_reports():
            _logger.warning(
                "unsigned reports from other machines are accepted: anyone who can reach the port can report for any "
                "run; set report.token-file to require signed reports"
            )
        fields = {"sources": ",".join(sorted(self._running)) or "none"}
        if self.configuration.scenario:
            fields["simulated"] = self.configuration.scenario
        for server in self.servers:
            _logger.info("answering", extra={"fields": {"address": str(server.address), "url": server.url, **fields}})

    def stop(self) -> None:
        """Stop all components; threads that hang are left behind."""
        closing = [threading.Thread(target=server.stop, daemon=True) for server in self.servers]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(_STOP_SECONDS / 2)
        # No more reports arrive from here on. The intake writes its runs to the state file.
        self.intake.stop()
        self.sampler.stop(_STOP_SECONDS / 4)
        for watch in self._watches:
            watch.stop()
        if self._pusher is not None:
            self._pusher.stop()
        if self._simulation is not None:
            self._simulation.stop()
        self._remove_host_tree()

    def end(self, status: int, message: str, fields: Mapping[str, object]) -> NoReturn:
        """Stop and end the process, in bounded time even if the log or a file system hangs."""

        def stop() -> None:
            _logger.log(logging.ERROR if status else logging.INFO, message, extra={"fields": fields})
            self.stop()
            logging.shutdown()

        stopping = threading.Thread(target=stop, name="stop", daemon=True)
        stopping.start()
        stopping.join(_END_SECONDS)
        # A poll that never returns must not keep the process alive. Nothing else ends its thread.
        os._exit(status)

    def release(self, seconds: float | None = None) -> str:
        """Close the GPUs' device files for a time.

        Args:
            seconds: how long; None for the configured time, 0 to reopen the files.

        Returns:
            A sentence about what happens next.
        """
        seconds = self.configuration.release_time if seconds is None else seconds
        self.sampler.release(seconds)
        when = f"at the next poll, within {self.configuration.sampling_interval:g} s"
        sentence = (
            f"releasing the GPUs' device files {when}; reopening them after {seconds:g} s, or at once after SIGUSR2 or "
            "POST /-/resume"
            if seconds
            else f"reopening the GPUs' device files {when}"
        )
        _logger.info(sentence)
        return sentence

    def reload(self, arguments: Sequence[str], summaries: Mapping[str, str]) -> None:
        """Reload the configuration; apply changes that need no restart, and log those that do."""
        try:
            newer = load(arguments, os.environ, summaries)
        except ConfigurationError as problem:
            self._is_reloaded = False
            _logger.error("configuration not reloaded, keeping the current one: %s", problem)
            return
        self._is_reloaded = True
        live, waiting = self.configuration.changes(newer)
        self.configuration = replace(self.configuration, **live)
        logs.configure(self.configuration.log_level, self.configuration.log_format)
        self._application.allow_remote_reports = self.configuration.allow_remote_reports
        self._application.switched_off = _switched_off(self.configuration)
        self._control.group = self.configuration.control_group
        self.sampler.stale_after_intervals = self.configuration.stale_intervals
        self.intake.registry.limits = _limits(self.configuration)
        self.intake.registry.expiry = self.configuration.report_expiry
        if self.intake.authentication is not None:
            self.intake.authentication.window = self.configuration.report_token_window
            self.intake.authentication.read_if_changed()
        self.intake.step_requests.allowed = _allowed_requests(self.configuration)
        self._switch_sources()
        if self._security is not None:
            self._security.read_if_changed()
        _logger.info("configuration reloaded", extra={"fields": {"changed": ",".join(sorted(live)) or "nothing"}})
        if waiting:
            _logger.warning("restart the exporter to apply changes of %s", ", ".join(waiting))

    def _collect_reloads(self) -> list[Sample]:
        """Return the metric of configuration files that were valid at the last reload."""
        from stallscope.node.web.reloads import reload_samples

        validity = {"config": self._is_reloaded}
        if self._security is not None:
            validity["web_config"] = self._security.is_current
        return reload_samples(validity)

    def _accepts_remote_reports(self) -> bool:
        """Return True if reports may come from other machines."""
        from stallscope.node.web.application import is_loopback

        udp = self.configuration.report_udp_address
        is_remote_udp = udp is not None and udp.host != "localhost" and not is_loopback(udp.host)
        return is_remote_udp or self.configuration.allow_remote_reports

    def _is_signed(self, request: Request) -> bool:
        """Return True if the request is a signed report, which needs no user."""
        from stallscope.node.web.application import REPORT_PATH

        return request.path == REPORT_PATH and self.intake.authentication is not None

    def _switch_sources(self) -> None:
        """Start and stop collectors as configured."""
        for name, source in self._sources.items():
            wanted = self.configuration.enabled(name, by_default=source.enabled_by_default)
            if wanted and name not in self._running:
                try:
                    made = source(self._environment)
                    self.sampler.add(made)
                    self._running[name] = made
                except Exception:
                    _logger.exception("source %s could not be started; continuing without it", name)
            elif not wanted and name in self._running:
                self.sampler.remove(name)
                self._environment.occupancies.withdraw(name)
                del self._running[name]

    def _end_where_stuck(self) -> None:
        """End the process if a poll has been stuck for too long; called after every page."""
        limit = self.configuration.exit_after_hang
        hang = self.sampler.longest_hang if limit else None
        if hang is not None and hang.seconds >= limit:
            fields = {"reading": hang.reader, "seconds": round(hang.seconds, 1), "limit": limit}
            self.end(_STUCK_STATUS, "exiting: a poll is stuck, and only the end of the process ends it", fields)

    def _simulate(self) -> tuple[Simulation | None, Path, Callable[[], Driver] | None]:
        """Set up the simulated node, if any; returns it with the root and the driver that sources are to use."""
        configuration = self.configuration
        self._host_tree: tempfile.TemporaryDirectory[str] | None = None
        if not configuration.scenario:
            return None, configuration.root, None
        from stallscope.lab.simulation.simulation import Simulation
        from stallscope.node.intake.pending import PassedFile
        from stallscope.node.sampling.clock import SystemClock

        tree: Path | None = None
        if configuration.simulated_host:
            self._host_tree = tempfile.TemporaryDirectory(prefix="stallscope-host-")
            tree = Path(self._host_tree.name)
        registry, stacks, own_pid = self.intake.registry, self.intake.stacks, os.getpid()

        # Simulated ranks run in this process: one that stalls is silent, not lost.
        def deliver(data: bytes) -> Report:
            return registry.accept(data, "http", own_pid)

        def deliver_with_file(data: bytes, descriptor: int) -> None:
            stacks.keep(deliver(data), PassedFile(os.dup(descriptor)))

        try:
            simulation = Simulation.named(
                configuration.scenario,
                clock=SystemClock(),
                deliver=deliver,
                deliver_with_file=deliver_with_file,
                host_tree=tree,
                onset=configuration.onset,
                reports=lambda: [held.report for held in registry.alive],
            )
        except ValueError as problem:
            self._remove_host_tree()
            raise ConfigurationError(f"simulation.scenario: {problem}") from None
        return simulation, tree or configuration.root, simulation.driver

    def _remove_host_tree(self) -> None:
        if self._host_tree is not None:
            self._host_tree.cleanup()

    def _after_page(self) -> None:
        """Record the history and check for stuck polls, on the publisher's thread."""
        self._history.note(self.sampler.snapshot.samples)
        self._end_where_stuck()

    def _render_status_page(self, choices: Choices) -> bytes:
        if self._status_page is None:
            from stallscope.node.web.status.page import StatusPage  # saves memory until the page is first requested

            verdicts, explanations = self._watches or (None, None)
            self._status_page = StatusPage(
                self._look,
                host=os.uname().nodename,
                telemetry_path=self.configuration.telemetry_path,
                history=self._history,
                verdicts=verdicts,
                explanations=explanations,
            )
        return self._status_page.html(choices)

    def _look(self) -> ExporterState:
        from stallscope.model.view.stack_groups import grouped
        from stallscope.node.collectors.gpu.source import GpuCollector
        from stallscope.node.web.status.exporter_state import ExporterState

        snapshot = self.sampler.snapshot
        return ExporterState(
            at=snapshot.at,
            ready=self.sampler.ready,
            samples=snapshot.samples,
            statuses=self.sampler.statuses,
            failures={
                (held.report.run, str(held.report.rank)): held.report.failure
                for held in self.intake.registry.held
                if held.report.failure
            },
            stacks={run: grouped(ranks) for run, ranks in self._standstills().items()},
            closed_receivers=tuple(each.problem for each in self.intake.receivers if each.problem),
            reads_gpus=any(isinstance(source, GpuCollector) for source in list(self._running.values())),
            simulated=self.configuration.scenario,
        )

    def _standstills(self) -> dict[str, dict[int, list[Stack]]]:
        """Return the stacks of ranks at a standstill by run and rank."""
        found: dict[str, dict[int, list[Stack]]] = {}
        for (run, rank), stack in self.intake.stacks.standstills.items():
            found.setdefault(run, {})[rank] = [stack]
        return found


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, without flags for collectors if their libraries are not installed."""
    try:
        from stallscope.node.collectors.base import available

        sources = {name: source.summary for name, source in available().items()}
    except ModuleNotFoundError:
        sources = {}
    return flag_parser(settings(sources))


def main(arguments: Sequence[str]) -> int:
    """Run the exporter until SIGTERM or SIGINT.

    Returns:
        2 if the configuration is invalid, 1 if an address is not available; a clean stop ends the process here.
    """
    # Signals may arrive as soon as the process exists. There is no state to lose yet, and other signals can wait.
    for number in _END_SIGNALS:
        signal.signal(number, _end_early)
    signal.pthread_sigmask(signal.SIG_BLOCK, _OTHER_SIGNALS)
    try:
        from stallscope.node.collectors.base import available
        from stallscope.node.web.http.server import ListenError

        sources = available()
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith("stallscope"):
            raise
        from stallscope.common.installation import install_command

        return _refuse(f"{problem.name} is not installed; the exporter needs: {install_command('exporter')}", 1)
    _share_one_heap()
    summaries = {name: source.summary for name, source in sources.items()}
    try:
        configuration = load(arguments, os.environ, summaries)
        logs.configure(configuration.log_level, configuration.log_format)
        # Blocked before the first thread starts, so that `sigwait` receives them on any thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        exporter = Exporter(configuration, sources)
    except ConfigurationError as problem:
        return _refuse(str(problem), 2)
    except ListenError as problem:
        return _refuse(str(problem), 1)
    exporter.start()
    _settle()
    while (received := signal.sigwait(_SIGNALS)) not in _END_SIGNALS:
        if received == signal.SIGHUP:
            exporter.reload(arguments, summaries)
        else:
            exporter.release(None if received == signal.SIGUSR1 else 0.0)
    return exporter.end(0, "stopping", {"signal": signal.Signals(received).name})


def _end_early(_number: int, _frame: object) -> NoReturn:
    os._exit(0)


def _share_one_heap() -> None:
    """Let all threads allocate from one heap: two dozen threads with a heap each need 1.4 MB more."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only in glibc
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def _settle() -> None:
    """Exclude the objects of the start-up from garbage collection, so that it never delays a response."""
    gc.collect()
    gc.freeze()


def _limits(configuration: Configuration) -> Any:
    from stallscope.node.intake.quotas import Limits

    return Limits(runs=configuration.report_max_runs, ranks=configuration.report_max_ranks)


def _allowed_requests(configuration: Configuration) -> tuple[str, ...]:
    """Return the actions that may be requested of runs."""
    allowed = {"trace": configuration.allow_trace_requests, "stop": configuration.allow_stop_requests}
    return tuple(action for action, is_allowed in allowed.items() if is_allowed)


def _switched_off(configuration: Configuration) -> dict[str, str]:
    """Return the disabled paths, with the setting that enables each."""
    from stallscope.node.web.application import (
        RELEASE_PATH,
        REPORT_PATH,
        RESUME_PATH,
        STATUS_PATH,
        STOP_PATH,
        TRACE_PATH,
    )

    switches = {
        STATUS_PATH: (configuration.enable_status_page, "--web.enable-status-page"),
        REPORT_PATH: (configuration.enable_reports, "--web.enable-reports"),
        TRACE_PATH: (configuration.allow_trace_requests, "--report.allow-trace-requests"),
        STOP_PATH: (configuration.allow_stop_requests, "--report.allow-stop-requests"),
        RELEASE_PATH: (configuration.enable_release, "--web.enable-release"),
        RESUME_PATH: (configuration.enable_release, "--web.enable-release"),
    }
    return {path: setting for path, (enabled, setting) in switches.items() if not enabled}


def _kubernetes(node: str, environment: Mapping[str, str]) -> KubernetesSettings | None:
    if not node:
        return None
    from stallscope.node.collectors.base import KubernetesSettings

    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host or not port.isdecimal():
        raise ConfigurationError(
            "kubernetes.node: KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set; use the flag only in a pod"
        )
    return KubernetesSettings(node, (host, int(port)))


def _watches(url: str) -> tuple[()] | tuple[VerdictWatch, ExplanationWatch]:
    """Return the sources of verdicts and of their explanations, each with a client of its own for its thread."""
    if not url:
        return ()
    from stallscope.model.clients.client_certificate import ClientCertificateError, certificate_from_environment
    from stallscope.model.clients.prometheus import Prometheus
    from stallscope.model.view.explanation_watch import ExplanationWatch
    from stallscope.model.view.verdicts import VerdictWatch

    try:
        certificate = certificate_from_environment()
    except ClientCertificateError as problem:
        raise ConfigurationError(f"STALLSCOPE_CLIENT_CERTIFICATE: {problem}") from None
    verdicts, explanations = (
        Prometheus(url, max_bytes=max_bytes, certificate=certificate)
        for max_bytes in (_MAX_VERDICT_BYTES, _MAX_EXPLANATION_BYTES)
    )
    return VerdictWatch(verdicts), ExplanationWatch(explanations)


def _security(file: Path | None, refusals: Refusals) -> Security | None:
    if file is None:
        return None
    from stallscope.node.web.http.security import Security

    return Security(file, refusals=refusals)


def _refuse(message: str, status: int) -> int:
    print(f"stallscope exporter: {message}", file=sys.stderr)
    return status
