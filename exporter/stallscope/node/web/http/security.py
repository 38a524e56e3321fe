"""Applies the web configuration file to every request and connection, and reads it again when it changes.

As in the exporter-toolkit, users have to say who they are everywhere, `/-/healthy` and `/-/ready` included, and a
certificate or password that was changed counts from the next connection or request on. An invalid file changes
nothing: the configuration in force stays, a log line and a metric report it. Neither does a file that lacks a setting
which keeps clients out, since it may be half written: that takes a restart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stallscope.common.file_mark import Mark, mark
from stallscope.node.configuration import ConfigurationError
from stallscope.node.web.http.configuration_file import RateLimit, WebConfiguration, read_web_configuration
from stallscope.node.web.http.refusals import Refusals
from stallscope.node.web.http.request import Request
from stallscope.node.web.http.response import Response, text

if TYPE_CHECKING:
    from stallscope.node.web.http.basic_authentication import BasicAuthentication
    from stallscope.node.web.http.tls import ServerContext, TlsAdapter

    Answer = Callable[[Request, str], Response]

_logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Fewest seconds between two looks at whether a file has changed."""


class _Rules(NamedTuple):
    """The settings in force. Replaced as a whole."""

    marks: Mapping[Path, Mark]
    """Marks of the files that were read, to detect changes."""
    configuration: WebConfiguration
    limiter: _RateLimiter | None
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, and whole lines."""
    context: ServerContext | None
    outside_its_time: str
    """Reason why the certificate is currently invalid, in words."""


class _RateLimiter:
    """A token bucket."""

    def __init__(self, limit: RateLimit, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._monotonic = monotonic
        self._taking = threading.Lock()
        self._tokens = float(limit.burst)
        self._filled = monotonic()

    def is_allowed(self) -> bool:
        """Take a token; return False if there is none."""
        with self._taking:
            now = self._monotonic()
            self._tokens = min(self.limit.burst, self._tokens + (now - self._filled) / self.limit.interval)
            self._filled = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


class Security:
    """One web configuration file."""

    def __init__(self, file: Path, *, look_seconds: float = LOOK_SECONDS, refusals: Refusals | None = None) -> None:
        """Read the file and what it names.

        Args:
            file: the web configuration.
            look_seconds: fewest seconds between two looks at whether it has changed.
            refusals: counts whom it sends away.

        Raises:
            ConfigurationError: something in it is wrong.
        """
        self._file = file
        self._look_seconds = look_seconds
        self._refusals = refusals or Refusals()
        self._looking = threading.Lock()
        self._problem = ""
        self._users: BasicAuthentication | None = None
        self._rules = _load(file)
        self._set_users(self._rules.configuration.users)
        self._warn_of_certificate()
        self._looked = time.monotonic()
        self.tls: TlsAdapter | None = None
        """For the server; None for plain HTTP."""
        if self._rules.context is not None:
            from stallscope.node.web.http.tls import TlsAdapter

            self.tls = TlsAdapter(self._rules.context, self.look, self._refusals)

    @property
    def is_current(self) -> bool:
        """True if the file was valid when it was last read."""
        return not self._problem

    def guard(self, answer: Answer, exempt: Callable[[Request], bool] = lambda _request: False) -> Answer:
        """Return the refusal of a request that is not permitted.

        Args:
            answer: what answers.
            exempt: returns True for requests that need no user, because they identify their sender otherwise.
        """

        def guarded(request: Request, client: str) -> Response:
            self.look()
            rules = self._rules
            is_exempt = exempt(request)
            if (refusal := self._refusal(rules, request, client, is_exempt=is_exempt)) is not None:
                response = refusal
            else:
                response = answer(request._replace(proven=self._users is not None and not is_exempt), client)
            own = {line.partition(":")[0].lower() for line in response.headers}
            if response.content_type:
                own.add("x-content-type-options")  # which goes with every content
            added = [line for name, line in rules.headers if name not in own]
            return response._replace(headers=(*response.headers, *added)) if added else response

        return guarded

    def look(self) -> None:
        """Read everything again where a file has changed; looks at most every few seconds."""
        if time.monotonic() - self._looked >= self._look_seconds and self._looking.acquire(blocking=False):
            try:
                self._reload_if_changed()
            finally:
                self._looking.release()

    def read_if_changed(self) -> None:
        """As `look`, at once."""
        with self._looking:
            self._reload_if_changed()

    def _reload_if_changed(self) -> None:
        self._looked = time.monotonic()
        # After a problem it is tried each time: what mends it may be a file that is not in force yet.
        if not self._problem and all(mark(file) == known for file, known in self._rules.marks.items()):
            return
        try:
            rules = _load(self._file, self._rules.limiter)
            self._check_change(rules.configuration)
            self._set_users(rules.configuration.users)
        except ConfigurationError as problem:
            if str(problem) != self._problem:
                self._problem = str(problem)
                _logger.error("web configuration not reloaded, the previous one stays in force: %s", problem)
            return
        self._problem = ""
        self._rules = rules
        if self.tls is not None and rules.context is not None:
            self.tls.context = rules.context
        _logger.info("web configuration reloaded", extra={"fields": {"file": self._file}})
        self._warn_of_certificate()

    def _check_change(self, newer: WebConfiguration) -> None:
        """Refuse what may be a part of a file that is being written.

        Raises:
            ConfigurationError: the file would let in clients that the one in force keeps out, or is incomplete.
        """
        present = self._rules.configuration
        removed = sorted(present.restrictions - newer.restrictions)
        if removed:
            raise ConfigurationError(
                f"{self._file}: {', '.join(removed)}: missing, and set in the configuration in force; "
                "set it again, or restart the exporter to do without"
            )
        if newer.tls is not None and present.tls is None:
            raise ConfigurationError(f"{self._file}: tls_server_config: new; restart the exporter to turn TLS on")
        if present.ends_with_newline and not newer.ends_with_newline:
            raise ConfigurationError(
                f"{self._file}: the last line has no end, as in a file that is half written; end it with a newline"
            )

    def _set_users(self, users: Mapping[str, bytes]) -> None:
        if not users:
            return
        if self._users is not None:
            self._users.set_users(users)
            return
        from stallscope.node.web.http.basic_authentication import BasicAuthentication

        self._users = BasicAuthentication(users)

    def _warn_of_certificate(self) -> None:
        if self._rules.outside_its_time:
            _logger.warning("clients will refuse this exporter: %s", self._rules.outside_its_time)

    def _refusal(self, rules: _Rules, request: Request, client: str, *, is_exempt: bool) -> Response | None:
        if rules.limiter is not None and not rules.limiter.is_allowed():
            self._refusals.count("limits", client, "more requests than rate_limit allows")
            return text(429, "more requests than rate_limit allows; send fewer", "Retry-After: 1")
        if self._users is None or is_exempt:
            return None
        authorization = request.headers.get("authorization", "")
        verdict = self._users.judge(authorization, client)
        if verdict == "allowed":
            return None
        if verdict == "busy":
            self._refusals.count("limits", client, "passwords are being checked")
            return text(429, "passwords are being checked; try again", "Retry-After: 1")
        why = "{} has no user with that password" if authorization else "the request names no user, and {} requires one"
        self._refusals.count("credentials", client, why.format(self._file))
        return text(401, "Unauthorized", "WWW-Authenticate: Basic")


def _load(file: Path, former: _RateLimiter | None = None) -> _Rules:
    marks = {file: mark(file)}  # before reading: what changes meanwhile is read again
    configuration = read_web_configuration(file)
    context = None
    outside_its_time = ""
    tls = configuration.tls
    if tls is not None:
        from stallscope.node.web.http.tls import (  # six megabytes that plain HTTP never needs
            context_of,
            outside_its_time_at,
        )

        files = (tls.certificate, tls.key, tls.client_authorities)
        marks.update({path: mark(path) for path in files if isinstance(path, Path)})
        context = context_of(tls)
        outside_its_time = outside_its_time_at(tls.certificate, time.time())
    headers = tuple((name.lower(), f"{name}: {value}") for name, value in configuration.headers)
    limit = configuration.rate_limit
    is_former = former is not None and former.limit == limit
    limiter = former if is_former else None if limit is None else _RateLimiter(limit)
    return _Rules(marks, configuration, limiter, headers, context, outside_its_time)
