"""TLS as the web configuration file sets it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from time import gmtime, strftime
from typing import Any

from stallscope.node.configuration import ConfigurationError
from stallscope.node.web.http.configuration_file import Pem, Tls
from stallscope.node.web.http.refusals import Refusals
from stallscope.node.web.http.stream import TlsStream

_SECTION = "tls_server_config"
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFICATION = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_TIME = rb"(?:\x17\x0d|\x18\x0f)((?:[0-9]{2})?[0-9]{12}Z)"
_VALIDITY = re.compile(rb"\x30[\x1e\x20\x22]" + _TIME + _TIME)
"""Two times, each with a year of two digits or of four."""
_LONG_TIME = len("20260101000000Z")
_OF_CERTIFICATES = ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE")
"""OpenSSL's words for clients without a certificate that is trusted."""


class ServerContext(ssl.SSLContext):
    """The TLS of a server."""

    allowed_names: frozenset[str] | None = None
    """Names of which a client's certificate needs one; None for any."""


def context_of(tls: Tls) -> ServerContext:
    """Load certificate, key and authorities.

    Raises:
        ConfigurationError: they can't be read, certificate and key don't belong together, or this machine's TLS does
            not support a setting.
    """
    # As bare as Go's, whose files these are: `create_default_context` refuses some authorities that it takes.
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.lowest]
    context.maximum_version = _VERSIONS[tls.highest]
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could request it without end
    if tls.server_chooses:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.allowed_names = tls.allowed_names
    try:
        if tls.cipher_suites:
            context.set_ciphers(":".join(tls.cipher_suites))
        if tls.curve:
            context.set_ecdh_curve(tls.curve)
    except (ssl.SSLError, ValueError) as problem:  # a library that was built without some; X25519 before Python 3.11
        raise ConfigurationError(
            f"{_SECTION}: this Python's TLS does not support these cipher suites or this curve ({problem}); "
            "change cipher_suites or curve_preferences"
        ) from None
    with _file_of(tls.certificate, "cert") as certificate, _file_of(tls.key, "key") as key:
        try:
            # An encrypted key would prompt for its password at a terminal, and there may be none.
            context.load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, OSError) as problem:
            raise ConfigurationError(
                f"{_SECTION}: {_named(tls.certificate, 'cert')} and {_named(tls.key, 'key')} are not a PEM certificate "
                f"with its unencrypted key ({_reason(problem)}); write both in PEM, without a password"
            ) from None
    _authenticate_clients(context, tls)
    return context


def _authenticate_clients(context: ServerContext, tls: Tls) -> None:
    if tls.client_authorities is not None:
        with _file_of(tls.client_authorities, "client_ca") as authorities:
            try:
                context.load_verify_locations(authorities)
            except (ssl.SSLError, OSError) as problem:
                raise ConfigurationError(
                    f"{_SECTION}: {_named(tls.client_authorities, 'client_ca')} holds no PEM certificates "
                    f"({_reason(problem)}); write the authorities' certificates in PEM"
                ) from None
    context.verify_mode = _VERIFICATION[tls.client_authentication]
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if context.verify_mode != ssl.CERT_NONE and tls.client_authorities is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)


@contextlib.contextmanager
def _file_of(pem: Pem, key: str) -> Iterator[str]:
    """Return the path of a file that can be opened; a text is in memory alone."""
    if isinstance(pem, Path):
        try:
            pem.open("rb").close()  # loading would not say which file it can't read
        except OSError as problem:
            raise ConfigurationError(
                f"{_SECTION}.{key}_file: {pem} can't be read: {problem.strerror}; see path and permissions"
            ) from None
        yield str(pem)
        return
    descriptor = os.memfd_create(key)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pem.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _named(pem: Pem, key: str) -> str:
    return str(pem) if isinstance(pem, Path) else key


class _NameRefused(ssl.SSLError):
    """No name of a client's certificate is allowed."""

    reason = "CERTIFICATE_VERIFY_FAILED"


def _alternative_names(certificate: Any) -> Iterator[str]:
    """Yield the DNS names, e-mail addresses, IP addresses and URIs, as the toolkit writes them."""
    for kind, name in (certificate or {}).get("subjectAltName", ()):
        if kind in ("DNS", "email", "URI"):
            yield name
        elif kind == "IP Address":
            with contextlib.suppress(ValueError):
                address = ipaddress.ip_address(name.strip())
                yield str(getattr(address, "ipv4_mapped", None) or address)


def outside_its_time_at(certificate: Pem, now: float) -> str:
    """Say when the certificate counts, in words, where that is not now; the empty string where it is.

    Args:
        certificate: the server's own is the first.
        now: Unix time.
    """
    # Python shows a certificate of the other side alone. X.509 has the two times in one sequence.
    try:
        text = certificate.read_text(encoding="latin-1") if isinstance(certificate, Path) else certificate
        found = _CERTIFICATE.search(text)
        times = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(found[0])) if found else None
    except (OSError, ValueError):  # changed since it was loaded, and will be read again
        return ""
    if times is None:
        return ""
    begin, end = map(_iso, times.groups())
    present = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(now))
    if begin <= present <= end:
        return ""
    what = _named(certificate, "cert")
    return f"{what} counts from {begin} to {end}, and it is {present}; renew it, or set the clock right"


def _iso(time: bytes) -> str:
    """X.509's time as ISO 8601 has it; a year of two digits is from 1950 to 2049."""
    century = "" if len(time) == _LONG_TIME else "19" if time[:2] >= b"50" else "20"
    text = century + time.decode()
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:10]}:{text[10:12]}:{text[12:]}"


class CheckingStream(TlsStream):
    """A connection of a client that needs one of the allowed names."""

    def __init__(self, connection: socket.socket, context: ServerContext) -> None:
        super().__init__(connection, context)
        self._allowed = context.allowed_names

    async def shake_hands(self) -> None:
        """Agree on keys, and check the names in the client's certificate.

        Raises:
            ssl.SSLError: the client speaks no TLS, or is refused.
        """
        await super().shake_hands()
        self.has_certificate = bool(self._tls.getpeercert())
        if self._allowed is not None and self._allowed.isdisjoint(_alternative_names(self._tls.getpeercert())):
            raise _NameRefused("client_allowed_sans has none of the names of the client's certificate")


class TlsAdapter:
    """The TLS of each new connection."""

    def __init__(
        self, context: ServerContext, before: Callable[[], None] | None = None, refusals: Refusals | None = None
    ) -> None:
        """Take the context, what to call before each connection, and what counts those that fail.

        The attribute `context` may be replaced later: connections that are open stay as they are.
        """
        self.context = context
        self._before = before
        self._refusals = refusals or Refusals()

    def stream(self, connection: socket.socket) -> CheckingStream:
        """Return the TLS of a new connection."""
        if self._before is not None:
            self._before()
        return CheckingStream(connection, self.context)

    def failed(self, problem: OSError, client: str) -> str:
        """Say why a connection ended, where TLS was why.

        Returns:
            Message for a client that speaks plain HTTP.
        """
        if not isinstance(problem, ssl.SSLError) or isinstance(problem, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return ""
        if problem.reason == "HTTP_REQUEST":
            why = "plain HTTP came where TLS is served; use https://"
            self._refusals.count("handshake", client, why)
            return why
        self._refusals.count(
            "certificate" if problem.reason in _OF_CERTIFICATES else "handshake", client, f"no TLS: {_reason(problem)}"
        )
        return ""


def _reason(problem: OSError) -> str:
    """OpenSSL's words without its codes and places in C files."""
    words = re.sub(r"^\[[^]]*\] *| *\(_ssl\.c:\d+\)$", "", str(problem.args[-1] if problem.args else problem))
    return words or str(problem)
