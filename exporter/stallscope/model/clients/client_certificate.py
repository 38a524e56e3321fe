"""The client certificate for servers that require one: Prometheus and exporters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

CERTIFICATE_VARIABLE = "STALLSCOPE_CLIENT_CERTIFICATE"
KEY_VARIABLE = "STALLSCOPE_CLIENT_KEY"


class ClientCertificateError(ValueError):
    """The certificate is unusable; the message is one line that names the files and the problem."""


class ClientCertificate(NamedTuple):
    """Two PEM files. They are read for each connection, because such certificates are renewed often."""

    certificate: str
    """May include intermediate certificates."""
    key: str
    """Without a password. May be the same file as the certificate."""

    def context(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the system's authorities and sends the certificate.

        Raises:
            ClientCertificateError: the files are unreadable or invalid.
        """
        import ssl  # most commands do not need it

        context = ssl.create_default_context()
        try:
            for file in self:
                with open(file, "rb"):  # the errors of the ssl library do not name the file
                    pass
            # The password stops the library from prompting for one.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except ssl.SSLError as problem:
            files = self.certificate if self.key == self.certificate else f"{self.certificate} and {self.key}"
            if problem.reason == "KEY_VALUES_MISMATCH":
                raise ClientCertificateError(f"the key in {self.key} does not belong to {self.certificate}") from None
            raise ClientCertificateError(
                f"{files}: expected a client certificate and its key, in PEM and without a password"
            ) from None
        except OSError as problem:
            raise ClientCertificateError(f"{problem.filename} can't be read: {problem.strerror}") from None
        return context


def client_certificate(certificate: str | None, key: str | None) -> ClientCertificate | None:
    """Return the checked certificate; None if none is given.

    Args:
        certificate: a PEM file.
        key: a PEM file; by default the key is in the certificate's file.

    Raises:
            ClientCertificateError: the files are unusable, or there is a key without a certificate.
    """
    if not certificate:
        if key:
            raise ClientCertificateError(f"{key}: a key without a client certificate; name the certificate too")
        return None
    found = ClientCertificate(certificate, key or certificate)
    found.context()
    return found


def certificate_from_environment() -> ClientCertificate | None:
    """Return the certificate in `STALLSCOPE_CLIENT_CERTIFICATE` and `STALLSCOPE_CLIENT_KEY`; None if they are not set.

    Raises:
        ClientCertificateError: as `client_certificate`.
    """
    return client_certificate(os.environ.get(CERTIFICATE_VARIABLE), os.environ.get(KEY_VARIABLE))


def tls_trouble(problem: ssl.SSLError, certificate: ClientCertificate | None, authorities: str) -> str:
    """Explain in a few words why the TLS connection failed, and what to do.

    Args:
        problem: the error of the library.
        certificate: the client certificate that was sent, if any.
        authorities: environment variable with the file of trusted authorities.
    """
    import ssl

    reason = problem.reason or problem.strerror or ""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted; name its authority in {authorities}"
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason:
        return "it does not speak TLS; try http://"
    alert = reason.rpartition("ALERT_")[2].replace("_", " ").lower() if "ALERT_" in reason else "connection closed"
    if certificate is None:
        flag = f"--client-certificate or {CERTIFICATE_VARIABLE}"
        return f"it refuses the connection ({alert}); if it requires a client certificate, name one with {flag}"
    return f"it refuses the client certificate of {certificate.certificate} ({alert})"
