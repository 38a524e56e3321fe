"""Requests of users to running ranks: who may make them, and the file next to the socket that passes them on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection
from errno import EPERM
from pathlib import Path
from typing import Any

from stallscope.common import file_trust
from stallscope.node.intake.held import Held
from stallscope.node.intake.runs import RunRegistry

_logger = logging.getLogger(__name__)


class Refusal(ValueError):
    """A refused request: HTTP status, reason, and a message with the remedy."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


def answer(accept: Callable[[], tuple[int, dict[str, Any]]]) -> tuple[int, bytes]:
    """Return HTTP status and JSON of an accepted request, or `error` and `message` of its refusal."""
    try:
        status, document = accept()
    except Refusal as refusal:
        status, document = refusal.status, {"error": refusal.reason, "message": refusal.message}
    return status, json.dumps(document).encode()


def document_of(body: bytes, expected: str) -> dict[str, Any]:
    """Return the JSON object of a request, which must name a run.

    Raises:
        Refusal: it is another document.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if type(document) is not dict or type(document.get("run")) is not str:
        raise Refusal(400, "bad_request", f"expected a JSON object with {expected}")
    return document


def live_ranks(registry: RunRegistry, run: str, wanted: Collection[int]) -> list[Held]:
    """Return the ranks of a run that have not ended, all or the wanted ones.

    Raises:
        Refusal: there are none.
    """
    alive = [held for held in registry.alive if held.report.run == run]
    if not alive:
        runs = sorted({held.report.run for held in registry.alive})
        named = ", ".join(runs[:10]) or "none"
        raise Refusal(404, "unknown_run", f"no run {run!r:.150} is alive here; live runs: {named}")
    ranks = [held for held in alive if not wanted or held.report.rank in wanted]
    if not ranks:
        numbers = ", ".join(str(number) for number in sorted(held.report.rank for held in alive)[:20])
        raise Refusal(404, "unknown_rank", f"run {run!r} has none of these ranks here; its ranks: {numbers}")
    return ranks


def refuse_foreign(registry: RunRegistry, ranks: list[Held], owner: int | None, what: str) -> None:
    """Check that all ranks under the reported names of these belong to one user; None may request for every run.

    Raises:
        Refusal: they do not. Runs of two users may share a reported name, and both would receive the request.
    """
    names = {held.reported_run or held.report.run for held in ranks}
    users = {held.uid for held in registry.alive if (held.reported_run or held.report.run) in names} - {None}
    if owner is not None and users != {owner}:
        raise Refusal(
            403,
            "not_owner",
            f"run {ranks[0].report.run!r}: user {owner} is not the only user who reports under this name through the "
            f"UNIX socket; request {what} as the owner of the training, as root, or as a member of --web.control-group",
        )


class RequestFolder:
    """The folder of the socket, where ranks that send datagrams find requests. None without a socket."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def write(self, name: str, data: bytes) -> str:
        """Write a request; return the problem, or the empty string."""
        if self._folder is None:
            return ""
        path = self._folder / name
        draft = path.with_suffix(".part")
        try:
            if problem := file_trust.folder_problem(self._folder.stat()):
                raise PermissionError(EPERM, f"{self._folder}: {problem}")
            # Readable for every user's training, writable for this user only, so that it can be trusted.
            with open(file_trust.create(draft, 0o644), "wb") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(data)
            draft.replace(path)
        except OSError as error:
            _logger.warning("%s can't be written: %s", path, error.strerror or error)
            return f"{path} can't be written ({error.strerror or error}): only ranks that use HTTP get the request"
        return ""

    def remove(self, name: str) -> None:
        """Remove a request."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
