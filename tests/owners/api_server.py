"""An API server for tests: HTTPS with a certificate of an authority of the tests, a token, and answers by path."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from stallscope.node.owners.kubernetes_api import ACCOUNT
from tests.handled import handled, reply
from tests.web.certificates import Authority

TOKEN = "eyJhbGciOi.of.tests"
ANSWERS = Path(__file__).parent / "kubernetes_answers"


def answer(name: str) -> Any:
    """Return a file of answers."""
    return json.loads((ANSWERS / name).read_text(encoding="utf-8"))


_NOT_FOUND = {"kind": "Status", "status": "Failure", "message": "the server could not find the requested resource"}
_NOT_ACCEPTABLE = next(each["answer"] for each in answer("recorded_1.36.3.json") if each["status"] == 406)
"""Answer of Kubernetes 1.36 to a list that is requested as metadata of one object."""


def _failure(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "message": message, "code": code}


class ApiServer:
    """Answers with `answers`, by path without its query; 404 for others. Each request is recorded.

    As with a real server, a list can't be requested as the metadata of one object, and has pages where `limit` is less
    than its items. A strategic merge patch of a node's status merges conditions by their type; an empty one changes
    nothing, and returns the node.
    """

    def __init__(self, root: Path) -> None:
        """Start serving, and write the files of a service account below the root."""
        self.answers: dict[str, tuple[int, Any]] = {}
        self.requests: list[str] = []
        self.nodes: dict[str, dict[str, Any]] = {}
        """Nodes by name."""
        self.patches: list[Any] = []
        """Patches of nodes that were accepted."""
        self.events: list[dict[str, Any]] = []
        """Events that were created."""
        self.refusals: list[int] = []
        """Statuses of the next responses to patches."""
        self.event_refusals: list[int] = []
        """Statuses of the next responses to events."""
        self.account = root / ACCOUNT
        self.account.mkdir(parents=True, exist_ok=True)
        authority = Authority(root)
        (self.account / "token").write_text(f"{TOKEN}\n")
        (self.account / "ca.crt").write_bytes(authority.certificate.read_bytes())
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                path, _, query = self.path.partition("?")
                status, content = server.answers.get(path, (404, _NOT_FOUND))
                if isinstance(content, dict) and content.get("kind", "").endswith("List"):
                    status, content = _page(content, parse_qs(query), self.headers["Accept"])
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    status, content = 401, {"kind": "Status"}
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                reply(self, body, status=status)

            def do_PATCH(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    status, content = 401, _failure(401, "Unauthorized")
                else:
                    status, content = server.patched(self.path, self.headers["Content-Type"], body)
                reply(self, json.dumps(content).encode(), status=status)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, content = server.created(self.path, json.loads(body))
                reply(self, json.dumps(content).encode(), status=status)

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.sign("server"))
        self._stack = ExitStack()
        host, _, port = self._stack.enter_context(handled(Handler, context)).partition(":")
        self.address = (host, int(port))

    def patched(self, path: str, kind: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and document of the response to a patch."""
        if self.refusals:
            status = self.refusals.pop(0)
            return status, _failure(
                status, 'nodes "gpu-node-3" is forbidden: User cannot patch resource "nodes/status"'
            )
        if kind != "application/strategic-merge-patch+json":
            return 415, _failure(415, "the body of the request was in an unknown format")
        name = path.removeprefix("/api/v1/nodes/").removesuffix("/status")
        if path != f"/api/v1/nodes/{name}/status" or name not in self.nodes:
            return 404, _failure(404, f'nodes "{name}" not found')
        try:
            patch = json.loads(body)
        except ValueError:
            return 400, _failure(400, "the object provided is unrecognized")
        conditions = {each["type"]: each for each in self.nodes[name]["status"]["conditions"]}
        for each in patch.get("status", {}).get("conditions", ()):
            if not {"type", "status"} <= each.keys():
                return 422, _failure(422, "status.conditions: Required value")
            conditions[each["type"]] = {**conditions.get(each["type"], {}), **each}
        self.patches.append(patch)
        self.nodes[name]["status"]["conditions"] = list(conditions.values())
        return 200, self.nodes[name]

    def created(self, path: str, event: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and document of the response to an event, which is checked as Kubernetes checks events."""
        if self.event_refusals:
            status = self.event_refusals.pop(0)
            return status, _failure(status, 'events is forbidden: User cannot create resource "events"')
        metadata, about = event["metadata"], event["involvedObject"]
        if path != f"/api/v1/namespaces/{metadata['namespace']}/events" or event["kind"] != "Event":
            return 400, _failure(400, "the namespace of the object does not match the namespace of the request")
        if "namespace" not in about and metadata["namespace"] != "default":
            return 422, _failure(422, "involvedObject.namespace: does not match event.namespace")
        if event["type"] not in ("Normal", "Warning") or len(event["message"]) > 1024 or not event["reason"]:
            return 422, _failure(422, "Invalid value")
        self.events.append(event)
        return 201, event

    def stop(self) -> None:
        """Stop serving and close the port."""
        self._stack.close()


def _page(content: dict[str, Any], query: dict[str, list[str]], accept: str) -> tuple[int, dict[str, Any]]:
    if "as=PartialObjectMetadata;" in accept:
        return 406, _NOT_ACCEPTABLE
    begin = int(query.get("continue", ["0"])[0].removeprefix("after="))
    end = begin + int(query.get("limit", ["500"])[0])
    more = {"continue": f"after={end}"} if end < len(content["items"]) else {}
    return 200, {**content, "metadata": {**content["metadata"], **more}, "items": content["items"][begin:end]}


@contextmanager
def api_server_at(root: Path) -> Iterator[ApiServer]:
    """Serve until the end of the block."""
    server = ApiServer(root)
    try:
        yield server
    finally:
        server.stop()
