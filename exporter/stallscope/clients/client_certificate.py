"""By which certificate this machine's user is known to servers that want one: Prometheus and exporters alike."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

CERTIFICATE_VARIABLE = "STALLSCOPE_CLIENT_CERTIFICATE"
KEY_VARIABLE = "STALLSCOPE_CLIENT_KEY"


class ClientCertificateError(ValueError):
    """It can't be used; the message is one line with the files and what is wrong with them."""


class ClientCertificate(NamedTuple):
    """Two files in PEM; they are read for each connection, since such certificates are renewed often."""

    certificate: str
    """With those of the authorities between it and the one that servers trust, if any."""
    key: str
    """Without a password; may be the same file."""

    def context(self) -> ssl.SSLContext:
        """What a connection is made with: it trusts whom the system trusts, and shows the certificate.

        Raises:
            ClientCertificateError: the files can't be read, or don't hold what they should.
        """
        import ssl  # of which most commands need nothing

        context = ssl.create_default_context()
        try:
            for file in self:
                with open(file, "rb"):  # for the library does not tell which of them it can't
                    pass
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")  # else it asks the terminal
        except ssl.SSLError as problem:
            files = self.certificate if self.key == self.certificate else f"{self.certificate} and {self.key}"
            if problem.reason == "KEY_VALUES_MISMATCH":
                raise ClientCertificateError(f"the key in {self.key} is not that of {self.certificate}") from None
            raise ClientCertificateError(
                f"{files}: no client certificate with its key, in PEM and without a password"
            ) from None
        except OSError as problem:
            raise ClientCertificateError(f"{problem.filename} can't be read: {problem.strerror}") from None
        return context


def client_certificate(certificate: str | None, key: str | None) -> ClientCertificate | None:
    """The certificate that was named, once it is known to be one; None where none was.

    Args:
        certificate: a file in PEM.
        key: likewise; it stands in the certificate's file where left out.

    Raises:
        ClientCertificateError: the files can't be used, or there is a key without a certificate.
    """
    if not certificate:
        if key:
            raise ClientCertificateError(f"{key} is the key of no client certificate: name that too")
        return None
    found = ClientCertificate(certificate, key or certificate)
    found.context()
    return found


def told_by_environment() -> ClientCertificate | None:
    """That of `STALLSCOPE_CLIENT_CERTIFICATE` and `STALLSCOPE_CLIENT_KEY`; None where they are not set.

    Raises:
        ClientCertificateError: as `client_certificate`.
    """
    return client_certificate(os.environ.get(CERTIFICATE_VARIABLE), os.environ.get(KEY_VARIABLE))


def tls_trouble(problem: ssl.SSLError, certificate: ClientCertificate | None, authorities: str) -> str:
    """Why there is no connection, and what to do, in a few words.

    Args:
        problem: as the library tells it.
        certificate: that was shown, if any.
        authorities: variable of the environment that names the file of those that are trusted.
    """
    import ssl

    reason = problem.reason or problem.strerror or ""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted; name its authority in {authorities}"
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason:
        return "it does not speak TLS; try http://"
    said = reason.rpartition("ALERT_")[2].replace("_", " ").lower() if "ALERT_" in reason else "it hangs up"
    if certificate is None:
        flag = f"--client-certificate or {CERTIFICATE_VARIABLE}"
        return f"it refuses the connection ({said}); if it wants a client certificate, name one with {flag}"
    return f"it refuses the client certificate of {certificate.certificate} ({said})"
