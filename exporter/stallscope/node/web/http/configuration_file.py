"""The file of `--web.config.file`, in the format of the Prometheus exporter-toolkit.

What is not understood is refused with its place: nothing in the file is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from stallscope.node.configuration import ConfigurationError, parse_yaml, read_bytes

if TYPE_CHECKING:
    import yaml

_TLS = "tls_server_config"
_HTTP = "http_server_config"
_RATE = "rate_limit"
_USERS = "basic_auth_users"
_TLS_KEYS = (
    "cert",
    "cert_file",
    "key",
    "key_file",
    "client_auth_type",
    "client_ca",
    "client_ca_file",
    "client_allowed_sans",
    "min_version",
    "max_version",
    "cipher_suites",
    "prefer_server_cipher_suites",
    "curve_preferences",
)
VERSIONS = ("TLS12", "TLS13")
_OLD_VERSIONS = ("TLS10", "TLS11")
NO_CLIENT_CERTIFICATE = "NoClientCert"
CLIENT_AUTHENTICATION = (
    NO_CLIENT_CERTIFICATE,
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
)
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
"""Kinds of the toolkit that accept any certificate, also one that a client has made itself."""
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
_HTTP2_SUITES = frozenset(f"TLS_ECDHE_{key}_WITH_AES_128_GCM_SHA256" for key in ("ECDSA", "RSA"))
"""Suites of TLS 1.2 of which HTTP/2 requires one."""
_BCRYPT = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
MAX_COST = 18
"""Highest cost of a password hash: to check one takes seconds to a minute. Each cost more takes twice as long."""
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_MAX_BURST = 1_000_000

Pem = Path | str
"""A PEM file, or the PEM text itself."""


class Tls(NamedTuple):
    """Settings of `tls_server_config`."""

    certificate: Pem
    key: Pem
    client_authentication: str = NO_CLIENT_CERTIFICATE
    client_authorities: Pem | None = None
    """None for those that the system trusts."""
    lowest: str = "TLS12"
    highest: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    """OpenSSL's names of suites of TLS 1.2; empty for its own choice."""
    server_chooses: bool = True
    """True if the server's order of cipher suites counts."""
    curve: str = ""
    """OpenSSL's name of the only curve; empty for its own choice."""
    allowed_names: frozenset[str] | None = None
    """Subject alternative names of which a client's certificate needs one; None for any certificate."""


class RateLimit(NamedTuple):
    """Settings of `rate_limit`: a token bucket for all requests."""

    interval: float
    """Seconds between two requests in the long run."""
    burst: int
    """Requests that may come at once; with 0 all are refused."""


class WebConfiguration(NamedTuple):
    """The whole file."""

    tls: Tls | None
    """None for plain HTTP."""
    headers: tuple[tuple[str, str], ...]
    """Added to every answer that doesn't have them."""
    users: Mapping[str, bytes]
    """Password hashes by user; empty where no user is required."""
    rate_limit: RateLimit | None = None
    ends_with_newline: bool = False
    """True if the file's last line is complete."""

    @property
    def restrictions(self) -> frozenset[str]:
        """Names of the settings that keep clients out."""
        tls = self.tls
        return frozenset(
            name
            for name, restricts in {
                _TLS: tls is not None,
                f"{_TLS}.client_auth_type": tls and tls.client_authentication != NO_CLIENT_CERTIFICATE,
                f"{_TLS}.client_ca_file": tls and tls.client_authorities is not None,
                f"{_TLS}.client_allowed_sans": tls and tls.allowed_names is not None,
                f"{_TLS}.min_version": tls and tls.lowest != VERSIONS[0],
                f"{_TLS}.cipher_suites": tls and tls.cipher_suites,
                f"{_TLS}.curve_preferences": tls and tls.curve,
                _RATE: self.rate_limit is not None,
                _USERS: self.users,
            }.items()
            if restricts
        )


def read_web_configuration(path: Path) -> WebConfiguration:
    """Read the file. Relative paths are relative to the file, as in the toolkit.

    Raises:
        ConfigurationError: the file is invalid, or requires something that is not supported.
    """
    file = _File(path)
    content = read_bytes(path)
    sections = file.mapping(parse_yaml(content, path), "", (_TLS, _HTTP, _RATE, _USERS))
    headers, is_http2 = _http(file, sections.get(_HTTP))
    tls = sections.get(_TLS)
    return WebConfiguration(
        tls=None if tls is None else _tls(file, tls, is_http2=is_http2),
        headers=headers,
        users=_users(file, sections.get(_USERS)),
        rate_limit=_rate_limit(file, sections.get(_RATE)),
        ends_with_newline=content.endswith(b"\n"),
    )


class _File:
    """The file's path, for messages and for the files next to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refuse(self, node: yaml.Node, what: str, problem: str, remedy: str) -> NoReturn:
        raise ConfigurationError(f"{self.path}:{node.start_mark.line + 1}: {what}: {problem}; {remedy}")

    def mapping(self, node: yaml.Node | None, name: str, known: tuple[str, ...] = ()) -> dict[str, yaml.Node]:
        """Return the entries that are not null; if names are known, accept no others."""
        import yaml

        if node is None or _is_null(node):
            return {}
        what = name or "the file"
        if not isinstance(node, yaml.MappingNode):
            self.refuse(node, what, "is not a mapping", "write `key: value` pairs")
        prefix = f"{name}." if name else ""
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key.value, str):
                self.refuse(key, what, "has a key that is not a string", "write `key: value` pairs")
            if known and key.value not in known:
                self.refuse(key, f"{prefix}{key.value}", "is unknown", f"use one of {', '.join(known)}")
            if key.value in found:
                self.refuse(key, f"{prefix}{key.value}", "is set twice", "remove one")
            found[key.value] = value
        return {key: value for key, value in found.items() if known == () or not _is_null(value)}

    def text(self, node: yaml.Node, name: str) -> str:
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, name, "is not a string", "write one string")
        return "" if _is_null(node) else str(node.value)

    def texts(self, node: yaml.Node | None, name: str) -> list[str]:
        import yaml

        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.refuse(node, name, "is not a list", "write a list of strings")
        return [self.text(entry, name) for entry in node.value]

    def switch(self, node: yaml.Node | None, name: str, *, default: bool) -> bool:
        if node is None:
            return default
        text = self.text(node, name).lower()
        if text not in ("true", "yes", "on", "false", "no", "off"):
            self.refuse(node, name, "is neither true nor false", "write true or false")
        return text in ("true", "yes", "on")

    def pem(self, keys: Mapping[str, yaml.Node], name: str) -> Pem | None:
        """Return the file of `NAME_file`, else the text of `NAME`; None if both are empty."""
        node = keys.get(f"{name}_file")
        path = "" if node is None else self.text(node, f"{_TLS}.{name}_file")
        if node is not None and "\0" in path:
            self.refuse(node, f"{_TLS}.{name}_file", "is not a path", "write the path of a PEM file")
        if path:
            return self.path.parent / path
        inline = keys.get(name)
        return (self.text(inline, f"{_TLS}.{name}") or None) if inline is not None else None


def _tls(file: _File, node: yaml.Node, *, is_http2: bool) -> Tls:
    keys = file.mapping(node, _TLS, _TLS_KEYS)
    certificate, key = file.pem(keys, "cert"), file.pem(keys, "key")
    if certificate is None or key is None:
        missing = [name for name, found in (("cert", certificate), ("key", key)) if found is None]
        remedy = "set " + " and ".join(f"{name}_file or {name}" for name in missing)
        file.refuse(node, _TLS, f"has no {' and no '.join(missing)}", remedy)
    authentication, authorities, allowed_names = _client_authentication(file, keys)
    lowest = _version(file, keys.get("min_version"), "min_version", VERSIONS[0])
    highest = _version(file, keys.get("max_version"), "max_version", VERSIONS[-1])
    if VERSIONS.index(lowest) > VERSIONS.index(highest):
        what = f"{_TLS}.max_version"
        file.refuse(keys["max_version"], what, f"{highest} is below the min_version {lowest}", "raise max_version")
    what = f"{_TLS}.cipher_suites"
    suites = file.texts(keys.get("cipher_suites"), what)
    for suite in suites:
        if suite not in CIPHER_SUITES and suite not in _ALWAYS_ON:
            known = ", ".join((*CIPHER_SUITES, *_ALWAYS_ON))
            file.refuse(keys["cipher_suites"], what, f"{suite} is not supported", f"use some of {known}")
    if suites and is_http2 and lowest == VERSIONS[0] and _HTTP2_SUITES.isdisjoint(suites):
        remedy = f"add {' or '.join(sorted(_HTTP2_SUITES))}, or set {_HTTP}.http2 to false"
        file.refuse(keys["cipher_suites"], what, "has no suite that HTTP/2 requires", remedy)
    chosen = tuple(CIPHER_SUITES[suite] for suite in suites if suite in CIPHER_SUITES)
    if suites and not chosen:
        if highest == VERSIONS[0]:
            file.refuse(keys["cipher_suites"], what, f"has no suite of {highest}, the max_version", "add one")
        lowest = VERSIONS[-1]  # no suite of TLS 1.2 is allowed
    return Tls(
        certificate,
        key,
        authentication,
        authorities,
        lowest,
        highest,
        chosen,
        file.switch(keys.get("prefer_server_cipher_suites"), f"{_TLS}.prefer_server_cipher_suites", default=True),
        _curve(file, keys.get("curve_preferences")),
        allowed_names,
    )


def _client_authentication(file: _File, keys: Mapping[str, yaml.Node]) -> tuple[str, Pem | None, frozenset[str] | None]:
    what = f"{_TLS}.client_auth_type"
    node = keys.get("client_auth_type")
    kind = ("" if node is None else file.text(node, what)) or NO_CLIENT_CERTIFICATE
    if node is not None and kind in _UNVERIFIED:
        problem = f"{kind} verifies no certificate, so it would keep no one out"
        file.refuse(node, what, problem, f"use {CLIENT_AUTHENTICATION[-1]}, with client_ca_file")
    if node is not None and kind not in CLIENT_AUTHENTICATION:
        file.refuse(node, what, f"{kind!r} is unknown", f"use one of {', '.join(CLIENT_AUTHENTICATION)}")
    authorities = file.pem(keys, "client_ca")
    names = file.texts(keys.get("client_allowed_sans"), f"{_TLS}.client_allowed_sans")
    allowed_names = frozenset(names) if "client_allowed_sans" in keys else None
    if kind == NO_CLIENT_CERTIFICATE:
        for key in ("client_ca_file", "client_ca", "client_allowed_sans"):
            if key in keys and (key == "client_allowed_sans" or authorities is not None):
                problem = "has no effect, as client_auth_type requires no client certificate"
                file.refuse(keys[key], f"{_TLS}.{key}", problem, "set client_auth_type to RequireAndVerifyClientCert")
    return kind, authorities, allowed_names


def _version(file: _File, node: yaml.Node | None, key: str, default: str) -> str:
    if node is None:
        return default
    what = f"{_TLS}.{key}"
    name = file.text(node, what)
    if name in _OLD_VERSIONS:
        if key == "min_version":  # a server of newer versions alone accepts fewer clients, and no insecure one
            return VERSIONS[0]
        file.refuse(node, what, f"{name} is not supported", f"use one of {', '.join(VERSIONS)}")
    if name not in VERSIONS:
        file.refuse(node, what, f"{name!r} is unknown", f"use one of {', '.join(VERSIONS)}")
    return name


def _curve(file: _File, node: yaml.Node | None) -> str:
    """Return OpenSSL's name of the curve; the empty string for its own choice."""
    what = f"{_TLS}.curve_preferences"
    names = tuple(dict.fromkeys(file.texts(node, what)))
    for name in names:
        if node is not None and name not in CURVES:
            file.refuse(node, what, f"{name!r} is unknown", f"use one of {', '.join(CURVES)}")
    if node is not None and len(names) > 1:
        file.refuse(
            node, what, "has several curves, and Python's TLS can be limited to one", "keep one, or none for all"
        )
    return CURVES[names[0]] if names else ""


def _http(file: _File, node: yaml.Node | None) -> tuple[tuple[tuple[str, str], ...], bool]:
    """Return the headers, and whether HTTP/2 is enabled; clients that prefer it are answered in HTTP/1.1."""
    keys = file.mapping(node, _HTTP, ("http2", "headers"))
    name = f"{_HTTP}.headers"
    headers = []
    for header, value in file.mapping(keys.get("headers"), name, tuple(_HEADERS)).items():
        text = file.text(value, f"{name}.{header}")
        allowed = _HEADERS[header]
        if (allowed and text not in allowed) or not text.isprintable() or not text.isascii():
            expected = " or ".join(allowed) or "printable ASCII"
            file.refuse(value, f"{name}.{header}", f"{text!r} is not allowed", f"write {expected}")
        headers.append((header, text))
    return tuple(headers), file.switch(keys.get("http2"), f"{_HTTP}.http2", default=True)


def _rate_limit(file: _File, node: yaml.Node | None) -> RateLimit | None:
    """Return the limit; None where the interval is 0."""
    keys = file.mapping(node, _RATE, ("interval", "burst"))
    interval, burst = 0.0, 0
    if (value := keys.get("interval")) is not None:
        text = file.text(value, f"{_RATE}.interval")
        parts = list(_DURATION_PART.finditer(text))
        if text != "0" and (not parts or "".join(part[0] for part in parts) != text):
            file.refuse(
                value, f"{_RATE}.interval", f"{text!r} is not a duration", "write one such as 500ms, 1s or 1m30s"
            )
        interval = sum(float(part[1]) * _UNITS[part[2]] for part in parts)
    if (value := keys.get("burst")) is not None:
        text = file.text(value, f"{_RATE}.burst")
        if not (text.isascii() and text.isdigit()) or int(text) > _MAX_BURST:
            problem = f"{text!r} is not a number of requests"
            file.refuse(value, f"{_RATE}.burst", problem, f"write an integer from 0 to {_MAX_BURST}")
        burst = int(text)
    return RateLimit(interval, burst) if interval > 0 else None


def _users(file: _File, node: yaml.Node | None) -> dict[str, bytes]:
    users = {}
    for user, value in file.mapping(node, _USERS).items():
        what = f"{_USERS}.{user}"
        if ":" in user:
            file.refuse(value, what, "no client can send this name, since a user's name ends at the colon", "rename it")
        hashed = file.text(value, what)
        remedy = f"write the hash that `htpasswd -nBC 10 {user}` prints"
        if not _BCRYPT.fullmatch(hashed):
            # Without the value: it may be the password itself.
            file.refuse(value, what, "is not a bcrypt hash of a password", remedy)
        if int(hashed[4:6]) > MAX_COST:
            file.refuse(value, what, f"its cost of {int(hashed[4:6])} is above {MAX_COST}", remedy)
        users[user] = hashed.encode()
    return users


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")
