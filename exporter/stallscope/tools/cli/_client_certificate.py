"""The flags `--client-certificate` and `--client-key`, shared by the commands."""

from __future__ import annotations

import argparse
import os

from stallscope.model.clients.client_certificate import (
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    ClientCertificateError,
    client_certificate,
)
from stallscope.tools.cli._parser import Parser


def add_flags(parser: Parser, servers: str) -> None:
    """Add both flags to a command. The parsed namespace then has `certificate`, which may be None.

    Args:
        parser: the command's parser.
        servers: servers that may require a certificate, for the help, such as "Prometheus".
    """
    group = parser.add_argument_group("client certificate")
    group.add_argument(
        "--client-certificate",
        metavar="FILE",
        help=f"PEM file, for {servers} that requires a client certificate (default: {CERTIFICATE_VARIABLE}, or none)",
    )
    group.add_argument(
        "--client-key",
        metavar="FILE",
        help="key of the certificate, if it is in a separate file "
        f"(default: {KEY_VARIABLE} with the certificate of {CERTIFICATE_VARIABLE}, or none)",
    )
    parser.afterwards.append(_read)


def _read(parsed: argparse.Namespace) -> None:
    certificate, key, named_by = parsed.client_certificate, parsed.client_key, "--client-certificate"
    if certificate is None:  # otherwise the key in the environment belongs to another certificate
        certificate, key = os.environ.get(CERTIFICATE_VARIABLE), key or os.environ.get(KEY_VARIABLE)
        named_by = CERTIFICATE_VARIABLE if certificate else named_by
    try:
        parsed.certificate = client_certificate(certificate, key)
    except ClientCertificateError as problem:
        raise argparse.ArgumentTypeError(f"{named_by}: {problem}") from None
