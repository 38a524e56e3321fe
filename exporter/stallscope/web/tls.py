"""TLS as the web configuration file asks for it, for the server's library."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from time import gmtime, strftime
from typing import Any

from stallscope.configuration import ConfigurationError
from stallscope.web.configuration_file import Tls
from stallscope.web.refusals import Refusals

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


class _Context(ssl.SSLContext):
    verifies_clients = False
    """Whether a client's certificate, where there is one, is of an authority."""


def context_of(tls: Tls) -> ssl.SSLContext:
    """Load certificate, key and authorities.

    Raises:
        ConfigurationError: they can't be read, or certificate and key don't belong together.
    """
    # As bare as Go's, whose files these are: `create_default_context` refuses some authorities that it takes.
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.lowest]
    context.maximum_version = _VERSIONS[tls.highest]
    context.options |= ssl.OP_NO_RENEGOTIATION  # work that a client could ask for without end
    if tls.server_chooses:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        if tls.cipher_suites:
            context.set_ciphers(":".join(tls.cipher_suites))
        if tls.curve:
            context.set_ecdh_curve(tls.curve)
    except (ssl.SSLError, ValueError) as problem:  # a library that was built without some
        raise ConfigurationError(
            f"{_SECTION}: this machine's TLS has no such cipher suite or curve: {problem}"
        ) from None
    context.verify_mode = _VERIFICATION[tls.client_authentication]
    context.verifies_clients = context.verify_mode != ssl.CERT_NONE
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    files = (tls.certificate, tls.key, *([tls.client_authorities] if tls.client_authorities else []))
    try:
        for file in files:
            file.open("rb").close()  # loading would not say which of them it can't read
    except OSError as problem:
        raise ConfigurationError(f"{_SECTION}: {problem.filename} can't be read: {problem.strerror}") from None
    try:
        # An encrypted key would ask at a terminal for its password, and there may be none.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except (ssl.SSLError, OSError) as problem:
        raise ConfigurationError(
            f"{_SECTION}: {tls.certificate} and {tls.key} are no PEM certificate with its unencrypted key "
            f"({_reason(problem)})"
        ) from None
    if tls.client_authorities is not None:
        try:
            context.load_verify_locations(tls.client_authorities)
        except (ssl.SSLError, OSError) as problem:
            raise ConfigurationError(
                f"{_SECTION}: {tls.client_authorities} holds no PEM certificates ({_reason(problem)})"
            ) from None
    elif context.verify_mode != ssl.CERT_NONE:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def outside_its_time_at(certificate: Path, now: float) -> str:
    """Say when the certificate counts, in words, where that is not now; the empty string where it is.

    Args:
        certificate: a PEM file, its first certificate the server's own.
        now: Unix time.
    """
    # Python shows a certificate of the other side alone. X.509 has the two times in one sequence.
    try:
        found = _CERTIFICATE.search(certificate.read_text(encoding="latin-1"))
        times = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(found[0])) if found else None
    except (OSError, ValueError):  # changed since it was loaded, and will be read again
        return ""
    if times is None:
        return ""
    begin, end = map(_iso, times.groups())
    present = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(now))
    if begin <= present <= end:
        return ""
    return f"{certificate} counts from {begin} to {end}, and it is {present}; renew it, or set the clock right"


def _iso(time: bytes) -> str:
    """X.509's time as ISO 8601 has it; a year of two digits is from 1950 to 2049."""
    century = "" if len(time) == _LONG_TIME else "19" if time[:2] >= b"50" else "20"
    text = century + time.decode()
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:10]}:{text[10:12]}:{text[12:]}"


class TlsAdapter:
    """What the server's library wants of TLS, with handshakes that keep nobody waiting.

    The library's own adapter shakes hands in the one thread that accepts: a client that connects and is silent would
    stop all others. Here the handshake is a part of the first reads.
    """

    not_yet = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)

    def __init__(
        self, context: ssl.SSLContext, before: Callable[[], None] | None = None, refusals: Refusals | None = None
    ) -> None:
        """Take the context, what to call before each connection, and what counts those that fail.

        The attribute `context` may be replaced later: connections that are open stay as they are.
        """
        self.context = context
        self._before = before
        self._refusals = refusals or Refusals()

    def bind(self, sock: socket.socket) -> socket.socket:
        """Leave the listening socket as it is."""
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """Wrap an accepted connection; the handshake comes with its first reads.

        Raises:
            TimeoutError: the client is gone already; the library goes on with the others.
        """
        if self._before is not None:
            self._before()
        try:
            return self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), {}
        except OSError:  # which the library would log each time, with all its stack
            sock.close()
            raise TimeoutError from None

    def failed(self, problem: OSError, client: str) -> str:
        """Say why a connection ended, where TLS was why.

        Returns:
            What to tell the client in plain HTTP, where that is what it speaks.
        """
        if not isinstance(problem, ssl.SSLError) or isinstance(problem, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return ""
        if problem.reason == "HTTP_REQUEST":
            why = "plain HTTP came where TLS is spoken; ask by https://"
            self._refusals.count("handshake", client, why)
            return why
        self._refusals.count(
            "certificate" if problem.reason in _OF_CERTIFICATES else "handshake", client, f"no TLS: {_reason(problem)}"
        )
        return ""

    def makefile(self, sock: socket.socket, mode: str, bufsize: int) -> Any:
        """The library's buffered file on the connection."""
        from cheroot.makefile import MakeFile

        return MakeFile(sock, mode, bufsize)


def _reason(problem: OSError) -> str:
    """OpenSSL's words without its codes and places in C files."""
    words = re.sub(r"^\[[^]]*\] *| *\(_ssl\.c:\d+\)$", "", str(problem.args[-1] if problem.args else problem))
    return words or str(problem)
