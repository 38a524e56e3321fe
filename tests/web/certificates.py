"""An authority of the tests' own that signs certificates, by way of the openssl command."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Signs for localhost; its own certificate is `NAME.crt` in its folder."""

    def __init__(self, folder: Path, name: str = "authority", names: str = "") -> None:
        self.folder = folder
        self.certificate = folder / f"{name}.crt"
        self.key = folder / f"{name}.key"
        # Python 3.13 trusts no authority without a key usage.
        extension = ["-addext", "keyUsage=critical,keyCertSign,digitalSignature"]
        if names:
            extension += ["-addext", f"subjectAltName={names}"]
        _openssl(
            "req", "-x509", *_KEY, "-keyout", self.key, "-out", self.certificate, "-subj", f"/CN={name}", *extension
        )

    def sign(self, name: str, days: int = 2) -> tuple[Path, Path]:
        """Make `NAME.crt` and `NAME.key`, which are past their time where days are below 0."""
        key, request, certificate = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        names = self.folder / "names.txt"
        names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        _openssl("req", "-new", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signing = ("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-extfile", names)
        _openssl("x509", "-req", "-in", request, *signing, "-out", certificate, "-days", str(days))
        return certificate, key

    def trusting(self, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority, with the client's own certificate if any."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if client is not None:
            context.load_cert_chain(*client)
        return context


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
