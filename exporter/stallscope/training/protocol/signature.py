"""The signature of a report: proves the knowledge of a token without revealing it.

A signed report has one line before the document, in a datagram as in a POST body:

    hmac-sha256 1a2b3c4d 1700000100.250 5f0c…
    {"version": 1, …}

The line has the name of the key, to select one of several tokens; the Unix time of the signature;
and, in hexadecimal digits, the HMAC-SHA256 of the line before it, and of the document. Both ends share
this file; it needs the standard library alone.
"""

from __future__ import annotations

SCHEME = b"hmac-sha256 "
LENGTH = len(SCHEME) + 8 + 1 + 14 + 1 + 64 + 1
"""Bytes of the line with its end."""


def key(token: str) -> tuple[bytes, bytes]:
    """Return the name and the secret of a token; the name reveals nothing of a token that is long and random."""
    import hashlib  # here, for those who sign nothing: it loads a library of three megabytes

    secret = hashlib.sha256(b"stallscope report\0" + token.encode()).digest()
    return hashlib.sha256(b"name\0" + secret).hexdigest()[:8].encode(), secret


def signed(document: bytes, name: bytes, secret: bytes, at: float) -> bytes:
    """The document with its line, signed at that Unix time."""
    start = b"%s%s %014.3f " % (SCHEME, name, at)
    return b"%s%s\n%s" % (start, _digits(secret, start, document), document)


def is_signed(data: bytes) -> bool:
    """Return True if this looks like a signed document."""
    return data.startswith(SCHEME)


def document_of(data: bytes) -> bytes:
    """The document, whether it is signed or not."""
    return data.partition(b"\n")[2] if is_signed(data) else data


def claim(data: bytes) -> tuple[bytes, float] | None:
    """The name of the key and the time that a signed document claims; None where the line is malformed."""
    line = data[: LENGTH - 1]
    parts = line.split(b" ")
    try:
        _scheme, name, at, digits = parts
        if data[LENGTH - 1 : LENGTH] != b"\n" or len(digits) != 64 or not at.replace(b".", b"", 1).isdigit():
            return None
        return name, float(at)
    except ValueError:
        return None


def is_genuine(data: bytes, secret: bytes) -> bool:
    """Return True if the signer of the document knew the secret, and nothing has changed since."""
    start, digits = data[: LENGTH - 65], data[LENGTH - 65 : LENGTH - 1]
    import hmac

    return hmac.compare_digest(_digits(secret, start, data[LENGTH:]), digits)


def _digits(secret: bytes, start: bytes, document: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, start + document, "sha256").hex().encode()
