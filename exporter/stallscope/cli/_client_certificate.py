"""Who a command says that it is: `--client-certificate` and `--client-key`, alike in every command."""

from __future__ import annotations

import argparse
import os

from stallscope.cli._parser import Parser
from stallscope.clients.client_certificate import (
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    ClientCertificateError,
    client_certificate,
)


def add_flags(parser: Parser, whose: str) -> None:
    """Give a command both flags; what it parses has the certificate, or None, as `certificate`.

    Args:
        parser: of the command.
        whose: servers that may want one, such as "Prometheus".
    """
    group = parser.add_argument_group("client certificate")
    group.add_argument(
        "--client-certificate",
        metavar="FILE",
        help=f"in PEM, for {whose} behind TLS that wants one (default: {CERTIFICATE_VARIABLE}, or else none)",
    )
    group.add_argument(
        "--client-key",
        metavar="FILE",
        help="its key, where that is in a file of its own "
        f"(default: {KEY_VARIABLE} for the certificate of {CERTIFICATE_VARIABLE}, or else none)",
    )
    parser.afterwards.append(_read)


def _read(parsed: argparse.Namespace) -> None:
    certificate, key, named_by = parsed.client_certificate, parsed.client_key, "--client-certificate"
    if certificate is None:  # else the environment's key is that of another one
        certificate, key = os.environ.get(CERTIFICATE_VARIABLE), key or os.environ.get(KEY_VARIABLE)
        named_by = CERTIFICATE_VARIABLE if certificate else named_by
    try:
        parsed.certificate = client_certificate(certificate, key)
    except ClientCertificateError as problem:
        raise argparse.ArgumentTypeError(f"{named_by}: {problem}") from None
