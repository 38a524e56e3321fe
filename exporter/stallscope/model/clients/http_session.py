"""HTTP requests that take a limited time and a limited number of bytes, whatever the server does.

User and password come from the address only, never from `.netrc`. A server on this machine is requested without a
proxy. Proxies and certificate authorities of the environment apply to other machines.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError

from stallscope.common.address import is_this_machine
from stallscope.model.clients.deadline import deadline_after, watch

_PIECE_BYTES = 65_536


class TooLongError(requests.RequestException):
    """A response exceeds the size limit."""


class Response(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpSession:
    """A session of requests with limits. Use it in one thread at a time."""

    def __init__(self) -> None:
        """Create the session; nothing is requested yet."""
        self.session = _Session()
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, _WatchedAdapter())

    def request(
        self,
        method: str,
        url: str,
        *,
        timeout: float,
        max_bytes: int,
        data: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Response:
        """Return the response, whatever its status; redirects are not followed.

        Args:
            method: HTTP method.
            url: the address.
            timeout: time limit of the whole exchange in seconds.
            max_bytes: limit of the body's size.
            data: form in the request's body.
            params: query parameters.

        Raises:
            requests.Timeout: the response was not complete in time.
            TooLongError: the body is too long.
            requests.RequestException, OSError: there is no response.
        """
        with deadline_after(timeout) as deadline:
            try:
                with self.session.request(
                    method, url, data=data, params=params, timeout=timeout, stream=True, allow_redirects=False
                ) as response:
                    body = bytearray()
                    while piece := response.raw.read1(_PIECE_BYTES, decode_content=True):
                        body += piece
                        if len(body) > max_bytes:
                            raise TooLongError(f"its response is longer than {max_bytes} bytes")
            except TooLongError:
                raise
            except (HTTPError, OSError) as problem:  # errors of requests are OSErrors
                if deadline.is_over:
                    raise requests.Timeout from None
                if isinstance(problem, HTTPError):  # of urllib3, while a body is read
                    raise requests.exceptions.ChunkedEncodingError(problem) from problem
                raise
            if deadline.is_over:
                raise requests.Timeout
            return Response(response.status_code, response.headers, bytes(body))

    def close(self) -> None:
        """Close the connections."""
        self.session.close()


class _Session(requests.Session):
    def __init__(self) -> None:
        super().__init__()
        # Without this, requests would read .netrc, whose entries replace the address's own user and password.
        self.auth = _authorize

    def merge_environment_settings(self, url: Any, *arguments: Any, **named: Any) -> Any:
        settings = super().merge_environment_settings(url, *arguments, **named)
        if is_this_machine(urlsplit(str(url)).hostname or ""):
            settings["proxies"] = {}
        return settings


def _authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Send the user and password of the address, if it has any."""
    parts = urlsplit(request.url or "")
    if parts.username is None and parts.password is None:
        return request
    user, password = (unquote(part or "").encode() for part in (parts.username, parts.password))
    authorized: requests.PreparedRequest = HTTPBasicAuth(user, password)(request)
    return authorized


class _WatchedConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        watch(connection)
        return connection

    def request(self, *arguments: Any, **named: Any) -> None:
        watch(self.sock)  # a connection that was kept open
        super().request(*arguments, **named)


class _WatchedSecureConnection(HTTPSConnection, _WatchedConnection):
    pass


class _WatchedPool(HTTPConnectionPool):
    ConnectionCls = _WatchedConnection


class _WatchedSecurePool(HTTPSConnectionPool):
    ConnectionCls = _WatchedSecureConnection


_POOLS = {"http": _WatchedPool, "https": _WatchedSecurePool}


class _WatchedAdapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments: Any, **named: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **named)
        manager.pool_classes_by_scheme = _POOLS
        return manager
