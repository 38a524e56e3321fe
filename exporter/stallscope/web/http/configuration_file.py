"""The file of `--web.config.file`, in the format of the Prometheus exporter-toolkit.

What is not understood is refused with its place, and so is what Python's TLS can't do: nothing in it is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from stallscope.configuration import ConfigurationError, read_yaml

if TYPE_CHECKING:
    import yaml

_TLS = "tls_server_config"
_HTTP = "http_server_config"
_USERS = "basic_auth_users"
_TLS_KEYS = (
    "cert_file",
    "key_file",
    "client_auth_type",
    "client_ca_file",
    "min_version",
    "max_version",
    "cipher_suites",
    "prefer_server_cipher_suites",
    "curve_preferences",
)
VERSIONS = ("TLS12", "TLS13")
_OLD_VERSIONS = ("TLS10", "TLS11")
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
CLIENT_AUTHENTICATION = ("NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
"""Curves by the toolkit's name, with OpenSSL's."""
CIPHER_SUITES = {
    f"TLS_ECDHE_{key}_WITH_{cipher}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for cipher, openssl in (
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
"""Suites of TLS 1.2 that keep past traffic secret, by the toolkit's name, with OpenSSL's."""
_ALWAYS_ON = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Suites of TLS 1.3, which can be named and not chosen among, in the toolkit as here."""
_HEADERS: Mapping[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""Headers that the toolkit lets one set, with the values that it takes where not any."""
_BCRYPT = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")


class Tls(NamedTuple):
    """What `tls_server_config` asks for."""

    certificate: Path
    key: Path
    client_authentication: str = "NoClientCert"
    client_authorities: Path | None = None
    """None for those that the system trusts."""
    lowest: str = "TLS12"
    highest: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    """OpenSSL's names of suites of TLS 1.2; empty for its own choice."""
    server_chooses: bool = True
    """Whether the server's order of cipher suites counts."""
    curve: str = ""
    """OpenSSL's name of the only curve; empty for its own choice."""


class WebConfiguration(NamedTuple):
    """The whole file."""

    tls: Tls | None
    """None for plain HTTP."""
    headers: tuple[tuple[str, str], ...]
    """Added to every answer that doesn't have them."""
    users: Mapping[str, bytes]
    """Password hashes by user; empty where anybody may ask."""


def read_web_configuration(path: Path) -> WebConfiguration:
    """Read the file. Relative paths are relative to the file, as in the toolkit.

    Raises:
        ConfigurationError: the file is broken, or asks for something that can't be had.
    """
    file = _File(path)
    sections = file.mapping(read_yaml(path), "", (_TLS, _HTTP, _USERS))
    tls = sections.get(_TLS)
    return WebConfiguration(
        tls=None if tls is None or _is_null(tls) else _tls(file, tls),
        headers=_headers(file, sections.get(_HTTP)),
        users=_users(file, sections.get(_USERS)),
    )


class _File:
    """The file's path, for messages and beside which others lie."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refuse(self, node: yaml.Node, message: str) -> NoReturn:
        raise ConfigurationError(f"{self.path}:{node.start_mark.line + 1}: {message}")

    def mapping(self, node: yaml.Node | None, name: str, known: tuple[str, ...] = ()) -> dict[str, yaml.Node]:
        """The entries; where names are known, no others."""
        import yaml

        if node is None or _is_null(node):
            return {}
        if not isinstance(node, yaml.MappingNode):
            self.refuse(node, f"{name or 'the file'} must hold `key: value` pairs")
        prefix = f"{name}." if name else ""
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key.value, str):
                self.refuse(key, f"{name or 'the file'} has a key that is no text")
            if known and key.value not in known:
                self.refuse(key, f"{prefix}{key.value} is not known here; known: {', '.join(known)}")
            if key.value in found:
                self.refuse(key, f"{prefix}{key.value} is set twice")
            found[key.value] = value
        return found

    def text(self, node: yaml.Node, name: str) -> str:
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, f"{name} takes one text")
        return "" if _is_null(node) else str(node.value)

    def texts(self, node: yaml.Node | None, name: str) -> list[str]:
        import yaml

        if node is None or _is_null(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.refuse(node, f"{name} takes a list")
        return [self.text(entry, name) for entry in node.value]

    def switch(self, node: yaml.Node, name: str) -> bool:
        text = self.text(node, name).lower()
        if text not in ("true", "yes", "on", "false", "no", "off"):
            self.refuse(node, f"{name} must be true or false")
        return text in ("true", "yes", "on")

    def beside(self, node: yaml.Node | None, name: str) -> Path | None:
        """The path of a file; None where none is named."""
        text = "" if node is None else self.text(node, name)
        if node is not None and "\0" in text:
            self.refuse(node, f"{name} is no path")
        return self.path.parent / text if text else None


def _tls(file: _File, node: yaml.Node) -> Tls:
    keys = file.mapping(node, _TLS, _TLS_KEYS)
    certificate = file.beside(keys.get("cert_file"), f"{_TLS}.cert_file")
    key = file.beside(keys.get("key_file"), f"{_TLS}.key_file")
    if certificate is None or key is None:
        missing = " and ".join(name for name, found in (("cert_file", certificate), ("key_file", key)) if found is None)
        file.refuse(node, f"{_TLS} needs {missing}, the path of a PEM file each")
    authentication, authorities = _client_authentication(file, keys)
    lowest = _version(file, keys.get("min_version"), "min_version", VERSIONS[0])
    highest = _version(file, keys.get("max_version"), "max_version", VERSIONS[-1])
    if VERSIONS.index(lowest) > VERSIONS.index(highest):
        file.refuse(keys["max_version"], f"{_TLS}.max_version {highest} is below min_version {lowest}")
    suites = file.texts(keys.get("cipher_suites"), f"{_TLS}.cipher_suites")
    for suite in suites:
        if suite not in CIPHER_SUITES and suite not in _ALWAYS_ON:
            known = ", ".join((*CIPHER_SUITES, *_ALWAYS_ON))
            file.refuse(keys["cipher_suites"], f"{_TLS}.cipher_suites: {suite} can't be had; known: {known}")
    chosen = tuple(CIPHER_SUITES[suite] for suite in suites if suite in CIPHER_SUITES)
    if suites and not chosen:
        if highest == VERSIONS[0]:
            file.refuse(keys["cipher_suites"], f"{_TLS}.cipher_suites has none of {highest}, the max_version")
        lowest = VERSIONS[-1]  # no suite of TLS 1.2 is wanted
    prefer = keys.get("prefer_server_cipher_suites")
    return Tls(
        certificate,
        key,
        authentication,
        authorities,
        lowest,
        highest,
        chosen,
        prefer is None or file.switch(prefer, f"{_TLS}.prefer_server_cipher_suites"),
        _curve(file, keys.get("curve_preferences")),
    )


def _client_authentication(file: _File, keys: Mapping[str, yaml.Node]) -> tuple[str, Path | None]:
    name = f"{_TLS}.client_auth_type"
    node = keys.get("client_auth_type")
    kind = (file.text(node, name) if node is not None else "") or "NoClientCert"
    if node is not None and kind in _UNVERIFIED:
        file.refuse(
            node, f"{name}: {kind} can't be had, since Python's TLS asks for no certificate that it doesn't verify"
        )
    if node is not None and kind not in CLIENT_AUTHENTICATION:
        file.refuse(node, f"{name} can't be {kind!r}; known: {', '.join(CLIENT_AUTHENTICATION)}")
    authorities = file.beside(keys.get("client_ca_file"), f"{_TLS}.client_ca_file")
    if authorities is not None and kind == "NoClientCert":
        file.refuse(keys["client_ca_file"], f"{_TLS}.client_ca_file needs a client_auth_type that verifies")
    return kind, authorities


def _version(file: _File, node: yaml.Node | None, key: str, default: str) -> str:
    if node is None:
        return default
    name = file.text(node, f"{_TLS}.{key}")
    if name in _OLD_VERSIONS:
        file.refuse(node, f"{_TLS}.{key}: {name} can't be had; the oldest version spoken here is {VERSIONS[0]}")
    if name not in VERSIONS:
        file.refuse(node, f"{_TLS}.{key} can't be {name!r}; known: {', '.join(VERSIONS)}")
    return name


def _curve(file: _File, node: yaml.Node | None) -> str:
    name = f"{_TLS}.curve_preferences"
    wanted = file.texts(node, name)
    if node is None or not wanted:
        return ""
    for curve in wanted:
        if curve not in CURVES:
            file.refuse(node, f"{name}: {curve!r} is no curve known here; known: {', '.join(CURVES)}")
    if len(wanted) > 1:
        file.refuse(node, f"{name}: Python's TLS takes one curve; name one, or leave the key out for its own choice")
    return CURVES[wanted[0]]


def _headers(file: _File, node: yaml.Node | None) -> tuple[tuple[str, str], ...]:
    keys = file.mapping(node, _HTTP, ("http2", "headers"))
    if "http2" in keys and file.switch(keys["http2"], f"{_HTTP}.http2"):
        file.refuse(keys["http2"], f"{_HTTP}.http2: HTTP/1.1 is spoken here; set it to false or leave it out")
    name = f"{_HTTP}.headers"
    headers = []
    for header, value in file.mapping(keys.get("headers"), name, tuple(_HEADERS)).items():
        text = file.text(value, f"{name}.{header}")
        allowed = _HEADERS[header]
        if (allowed and text not in allowed) or not text.isprintable() or not text.isascii():
            expected = " or ".join(allowed) or "printable ASCII"
            file.refuse(value, f"{name}.{header} can't be {text!r}; expected {expected}")
        headers.append((header, text))
    return tuple(headers)


def _users(file: _File, node: yaml.Node | None) -> dict[str, bytes]:
    users = {}
    for user, value in file.mapping(node, _USERS).items():
        if ":" in user:
            file.refuse(value, f"{_USERS}: no client can ask as {user!r}, since a user's name ends at the colon")
        hashed = file.text(value, f"{_USERS}.{user}")
        if not _BCRYPT.fullmatch(hashed):
            # Without what stands there: it may be the password itself.
            file.refuse(
                value, f"{_USERS}.{user} needs the bcrypt hash of a password, as `htpasswd -nB {user}` prints it"
            )
        users[user] = hashed.encode()
    return users


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")
