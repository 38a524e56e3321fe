"""Requests to web servers that cost a limited time and a limited number of bytes, whatever the server does."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError

from stallscope.clients.deadline import deadline_after, watch

_PIECE_BYTES = 65_536


class TooLongError(requests.RequestException):
    """An answer is longer than is read."""


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpSession:
    """A session of the library, for one thread at a time."""

    def __init__(self) -> None:
        """Prepare; nothing is requested yet."""
        self.session = requests.Session()
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
    ) -> Answer:
        """Request a page and return the answer, whatever its status; redirections are not followed.

        Args:
            method: of HTTP.
            url: the address.
            timeout: seconds that the whole exchange may take.
            max_bytes: longest body that is read.
            data: form of the request's body.
            params: parameters of the address.

        Raises:
            requests.Timeout: the answer did not end in time.
            TooLongError: the body is longer.
            requests.RequestException, OSError: there is no answer.
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
                            raise TooLongError(f"its answer is longer than {max_bytes} bytes")
            except TooLongError:
                raise
            except (HTTPError, OSError) as problem:  # the library's own errors are of the second kind
                if deadline.is_over:
                    raise requests.Timeout from None
                if isinstance(problem, HTTPError):  # of the library beneath, while an answer is read
                    raise requests.exceptions.ChunkedEncodingError(problem) from problem
                raise
            if deadline.is_over:
                raise requests.Timeout
            return Answer(response.status_code, response.headers, bytes(body))

    def close(self) -> None:
        """Let the connections go."""
        self.session.close()


class _WatchedConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        watch(connection)
        return connection

    def request(self, *arguments: Any, **named: Any) -> None:
        watch(self.sock)  # one that was kept
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
