"""TLS with servers of a Kubernetes cluster."""

from __future__ import annotations

import ssl


def client_context(authority: str) -> ssl.SSLContext:
    """Return the context of a client that trusts a certificate authority.

    Args:
        authority: path of its certificate; empty for the authorities of the system.

    Raises:
        OSError: the certificate cannot be read, or is invalid.
    """
    context = ssl.create_default_context(cafile=authority or None)
    # Python 3.13 rejects certificates without a key usage or an authority key identifier, but many have none.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
