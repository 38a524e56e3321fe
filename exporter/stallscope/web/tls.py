"""TLS as the Prometheus exporter-toolkit configures it: `tls_server_config` with a certificate and a key."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stallscope.configuration import ConfigurationError, read_yaml

if TYPE_CHECKING:
    import yaml

_SECTION = "tls_server_config"
_KEYS = ("cert_file", "key_file")


class CertificateFiles(NamedTuple):
    """Where certificate and key lie."""

    certificate: Path
    key: Path


def read_web_configuration(path: Path) -> CertificateFiles | None:
    """Read the file; None where it asks for plain HTTP. Relative paths are relative to the file, as in the toolkit.

    Raises:
        ConfigurationError: the file is broken, or asks for something that this version does not do.
    """
    node = read_yaml(path)
    section = None if node is None else _mapping(node, "", path, (_SECTION,)).get(_SECTION)
    if section is None:
        return None
    keys = _mapping(section, f"{_SECTION}.", path, _KEYS)
    missing = [key for key in _KEYS if key not in keys or not isinstance(keys[key].value, str) or not keys[key].value]
    if missing:
        place = f"{path}:{section.start_mark.line + 1}"
        raise ConfigurationError(f"{place}: {_SECTION} needs {' and '.join(missing)}, each the path of a PEM file")
    for key in _KEYS:
        if "\0" in keys[key].value:
            raise ConfigurationError(f"{path}:{keys[key].start_mark.line + 1}: {_SECTION}.{key} is no path")
    return CertificateFiles(*(path.parent / keys[key].value for key in _KEYS))


def _mapping(node: yaml.Node, prefix: str, path: Path, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    import yaml

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(f"{path}:{line}: {prefix.rstrip('.') or 'the file'} must hold `key: value` pairs")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        place = f"{path}:{key.start_mark.line + 1}"
        if key.value not in known:
            name = key.value if isinstance(key.value, str) else "a key that is no text"
            raise ConfigurationError(f"{place}: {prefix}{name} is not supported yet; known: {', '.join(known)}")
        if key.value in found:
            raise ConfigurationError(f"{place}: {prefix}{key.value} is set twice")
        found[key.value] = value
    return found


class TlsAdapter:
    """What the server's library wants of TLS, with handshakes that keep nobody waiting.

    The library's own adapter shakes hands in the one thread that accepts: a client that connects and is silent would
    stop all others. Here the handshake is a part of the first reads.
    """

    not_yet = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)

    def __init__(self, files: CertificateFiles) -> None:
        """Load certificate and key.

        Raises:
            ConfigurationError: they can't be read or don't belong together.
        """
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            for file in files:
                file.open("rb").close()  # loading would not say which of the two it can't read
            # An encrypted key would ask at a terminal for its password, and there may be none.
            self.context.load_cert_chain(files.certificate, files.key, password="")
        except ssl.SSLError as problem:
            raise ConfigurationError(
                f"{_SECTION}: {files.certificate} and {files.key} are no PEM certificate with its unencrypted key "
                f"({problem.reason or problem})"
            ) from None
        except OSError as problem:
            raise ConfigurationError(f"{_SECTION}: {problem.filename} can't be read: {problem.strerror}") from None

    def bind(self, sock: socket.socket) -> socket.socket:
        """Leave the listening socket as it is."""
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """Wrap an accepted connection; the handshake comes with its first reads."""
        return self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), {}

    def makefile(self, sock: socket.socket, mode: str, bufsize: int) -> Any:
        """The library's buffered file on the connection."""
        from cheroot.makefile import MakeFile

        return MakeFile(sock, mode, bufsize)
