"""The web configuration file: each example is judged by promtool too, which knows the toolkit's format."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stallscope.node.configuration import ConfigurationError
from stallscope.node.web.http.configuration_file import CIPHER_SUITES, CURVES, Tls, read_web_configuration
from stallscope.node.web.http.security import Security
from tests.web.certificates import Authority, needs_openssl

HASH = "$2y$10$Ac2deeUOLKZSP2L81awluuTAiisMp46T4NTJ0MX3tpfPXC3MUVl8G"
PAIR = "cert_file: node.crt, key_file: node.key"

GOOD = {
    "nothing": "",
    "a comment": "# nothing yet\n",
    "no users": "basic_auth_users:\n",
    "no section": "tls_server_config:\nhttp_server_config:\n",
    "TLS": f"tls_server_config: {{{PAIR}}}",
    "TLS 1.3 alone": f"tls_server_config: {{{PAIR}, min_version: TLS13}}",
    "TLS 1.2 alone": f"tls_server_config: {{{PAIR}, min_version: TLS12, max_version: TLS12}}",
    "suites": f"tls_server_config: {{{PAIR}, cipher_suites: [{', '.join(CIPHER_SUITES)}]}}",
    "a suite of TLS 1.3": "http_server_config: {http2: false}\n"
    f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_AES_128_GCM_SHA256]}}",
    "the client's order": f"tls_server_config: {{{PAIR}, prefer_server_cipher_suites: false}}",
    **{curve: f"tls_server_config: {{{PAIR}, curve_preferences: [{curve}]}}" for curve in CURVES},
    "a curve named twice": f"tls_server_config: {{{PAIR}, curve_preferences: [CurveP256, CurveP256]}}",
    "old versions too": f"tls_server_config: {{{PAIR}, min_version: TLS10}}",
    "a text next to a file, of which the file counts": f"tls_server_config: {{{PAIR}, cert: x, key: x}}",
    "no client certificate": f"tls_server_config: {{{PAIR}, client_auth_type: NoClientCert}}",
    "client certificates": f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, "
    "client_ca_file: authority.crt}",
    "optional ones": f"tls_server_config: {{{PAIR}, client_auth_type: VerifyClientCertIfGiven, "
    "client_ca_file: authority.crt}",
    "the system's authorities": f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
    "names of certificates": f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, "
    "client_ca_file: authority.crt, client_allowed_sans: [node1, 10.0.0.1]}",
    "rates": "rate_limit: {interval: 1m30s, burst: 3}",
    "no rate": "rate_limit: {interval: 0, burst: 3}",
    "users": f"basic_auth_users:\n  alice: {HASH}\n  böb: {HASH.replace('$2y$', '$2b$')}\n",
    "HTTP/1.1": "http_server_config: {http2: false}",
    "HTTP/2": "http_server_config: {http2: true}",
    "suites without those of HTTP/2": "http_server_config: {http2: false}\n"
    f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]}}",
    "headers": "http_server_config:\n  headers:\n    Strict-Transport-Security: max-age=31536000\n"
    "    X-Content-Type-Options: nosniff\n    X-Frame-Options: sameorigin\n    X-XSS-Protection: '0'\n"
    "    Content-Security-Policy: default-src 'none'\n",
}
"""Files that promtool and Stallscope accept, by the settings they contain."""

BAD = {
    "a list": ("- a", r"web\.yml:1: the file: is not a mapping; write `key: value` pairs"),
    "no YAML": ("tls_server_config: {", "is not valid YAML"),
    "an unknown section": ("bogus: 1", r"web\.yml:1: bogus: is unknown; use one of tls_server_config, "),
    "an unknown key": (f"tls_server_config: {{{PAIR}, bogus: 1}}", r"tls_server_config\.bogus: is unknown; use one of"),
    "twice": (f"tls_server_config: {{{PAIR}, key_file: node.key}}", "key_file: is set twice; remove one"),
    "no pairs": ("tls_server_config: yes", "tls_server_config: is not a mapping; write"),
    "no key": ("tls_server_config: {cert_file: node.crt}", "has no key; set key_file or key"),
    "no certificate": ("tls_server_config: {key_file: node.key}", "has no cert; set cert_file or cert"),
    "a client's kind alone": (
        "tls_server_config: {client_auth_type: RequireAndVerifyClientCert}",
        "has no cert and no key; set cert_file or cert and key_file or key",
    ),
    "a list of files": ("tls_server_config: {cert_file: [a], key_file: b}", "cert_file: is not a string; write one"),
    "a certificate that is not there": (
        "tls_server_config: {cert_file: missing.crt, key_file: node.key}",
        r"cert_file: \S+missing\.crt can't be read: No such file or directory; see path and permissions",
    ),
    "a key that is not there": (
        "tls_server_config: {cert_file: node.crt, key_file: missing.key}",
        r"key_file: \S+missing\.key can't be read: No such file",
    ),
    "another's key": (
        "tls_server_config: {cert_file: node.crt, key_file: other.key}",
        "are not a PEM certificate with its unencrypted key .*; write both in PEM, without a password",
    ),
    "no certificate in the file": (
        "tls_server_config: {cert_file: web.yml, key_file: node.key}",
        "are not a PEM certificate with its unencrypted key",
    ),
    "an encrypted key": (
        "tls_server_config: {cert_file: node.crt, key_file: secret.key}",
        "are not a PEM certificate with its unencrypted key",
    ),
    "an unknown version": (
        f"tls_server_config: {{{PAIR}, min_version: TLS14}}",
        r"min_version: 'TLS14' is unknown; use one of TLS12, TLS13",
    ),
    "an unknown suite": (
        f"tls_server_config: {{{PAIR}, cipher_suites: [X]}}",
        "cipher_suites: X is not supported; use",
    ),
    "suites in no list": (
        f"tls_server_config: {{{PAIR}, cipher_suites: {{a: b}}}}",
        "cipher_suites: is not a list; write a list",
    ),
    "an unknown curve": (
        f"tls_server_config: {{{PAIR}, curve_preferences: [X]}}",
        "curve_preferences: 'X' is unknown; use one of CurveP256",
    ),
    "an unknown kind of client": (
        f"tls_server_config: {{{PAIR}, client_auth_type: X}}",
        r"client_auth_type: 'X' is unknown; use one of NoClientCert",
    ),
    "authorities without clients": (
        f"tls_server_config: {{{PAIR}, client_ca_file: authority.crt}}",
        "client_ca_file: has no effect, .*; set client_auth_type to RequireAndVerifyClientCert",
    ),
    "authorities that are not there": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: missing.crt}}",
        r"client_ca_file: \S+missing\.crt can't be read",
    ),
    "an invalid preference": (
        f"tls_server_config: {{{PAIR}, prefer_server_cipher_suites: perhaps}}",
        "is neither true nor false; write true or false",
    ),
    "a password for a hash": (
        "basic_auth_users: {alice: secret}",
        r"basic_auth_users\.alice: is not a bcrypt hash of a password; write the hash that `htpasswd -nBC 10 alice` ",
    ),
    "no hash": ("basic_auth_users: {alice: }", "is not a bcrypt hash"),
    "a hash that costs nothing": (
        f"basic_auth_users: {{alice: {HASH.replace('$10$', '$03$')}}}",
        "is not a bcrypt hash",
    ),
    "a header that can't be set": ("http_server_config: {headers: {Server: x}}", r"headers\.Server: is unknown; use"),
    "a header's wrong value": (
        "http_server_config: {headers: {X-Frame-Options: x}}",
        "X-Frame-Options: 'x' is not allowed; write deny or sameorigin",
    ),
    "an interval in no unit": (
        "rate_limit: {interval: 1x}",
        "'1x' is not a duration; write one such as 500ms",
    ),
    "a burst that is no number": (
        "rate_limit: {burst: many}",
        "burst: 'many' is not a number of requests; write an integer",
    ),
}
"""Files that promtool and Stallscope reject, with Stallscope's message."""

STRICTER = {
    "several curves": (
        f"tls_server_config: {{{PAIR}, curve_preferences: [X25519, CurveP256]}}",
        "curve_preferences: has several curves, and Python's TLS can be limited to one; keep one",
    ),
    **{
        f"{kind}, which verifies nothing": (
            f"tls_server_config: {{{PAIR}, client_auth_type: {kind}}}",
            f"{kind} verifies no certificate, so it would keep no one out; use RequireAndVerifyClientCert",
        )
        for kind in ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
    },
    "an empty section": ("tls_server_config: {}", "has no cert and no key"),
    "versions without a certificate": ("tls_server_config: {min_version: TLS13}", "has no cert and no key"),
    "nothing but old versions": (
        f"tls_server_config: {{{PAIR}, min_version: TLS10, max_version: TLS11}}",
        "max_version: TLS11 is not supported; use one of TLS12, TLS13",
    ),
    "no version": (
        f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}",
        "TLS12 is below the min_version TLS13; raise max_version",
    ),
    "no suite": (
        (
            f"http_server_config: {{http2: false}}\n"
            f"tls_server_config: {{{PAIR}, max_version: TLS12, cipher_suites: [TLS_AES_128_GCM_SHA256]}}"
        ),
        "has no suite of TLS12, the max_version; add one",
    ),
    "authorities in no PEM": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: web.yml}}",
        "holds no PEM certificates .*; write the authorities' certificates in PEM",
    ),
    "names of certificates that are not requested": (
        f"tls_server_config: {{{PAIR}, client_allowed_sans: [node1]}}",
        "client_allowed_sans: has no effect, .*; set client_auth_type",
    ),
    "a user with a colon": (f"basic_auth_users: {{'a:b': {HASH}}}", r"no client can send this name, .*; rename it"),
    "a hash that takes minutes": (
        f"basic_auth_users: {{alice: {HASH.replace('$10$', '$19$')}}}",
        "its cost of 19 is above 18; write the hash",
    ),
    "a header of two lines": (
        'http_server_config: {headers: {X-XSS-Protection: "0\\r\\nA: b"}}',
        "is not allowed; write printable ASCII",
    ),
    "a negative interval": ("rate_limit: {interval: -1s, burst: 1}", "'-1s' is not a duration"),
    "a negative burst": ("rate_limit: {interval: 1s, burst: -1}", "'-1' is not a number of requests"),
}
"""Files that promtool accepts and Stallscope rejects, as they would have no effect or serve no client."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    authority = Authority(folder)
    authority.sign("node")
    authority.sign("other")
    secret = ["openssl", "pkey", "-in", "node.key", "-aes256", "-passout", "pass:x", "-out", "secret.key"]
    subprocess.run(secret, cwd=folder, check=True, capture_output=True)
    return folder


def written(folder: Path, text: str) -> Path:
    file = folder / "web.yml"
    file.write_text(text)
    return file


def promtool_agrees(file: Path, *, accepted: bool) -> bool:
    """Return True if promtool agrees; a refusal by an older promtool is ignored, because it lacks some keys."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    found = subprocess.run(["promtool", "check", "web-config", file], capture_output=True, text=True, check=False)
    return (found.returncode == 0) is accepted or "not found in type" in found.stdout + found.stderr


@pytest.mark.parametrize("case", GOOD)
def test_what_the_toolkit_takes_is_taken(case: str, folder: Path) -> None:
    file = written(folder, GOOD[case])
    Security(file)
    assert promtool_agrees(file, accepted=True)


@pytest.mark.parametrize("case", BAD)
def test_what_the_toolkit_refuses_is_refused_by_name(case: str, folder: Path) -> None:
    text, message = BAD[case]
    file = written(folder, text)
    with pytest.raises(ConfigurationError, match=message):
        Security(file)
    assert promtool_agrees(file, accepted=False)


@pytest.mark.parametrize("case", STRICTER)
def test_what_would_not_be_honoured_is_refused(case: str, folder: Path) -> None:
    text, message = STRICTER[case]
    file = written(folder, text)
    with pytest.raises(ConfigurationError, match=message):
        Security(file)
    assert promtool_agrees(file, accepted=True)


def test_a_refusal_never_shows_the_password(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read_web_configuration(written(tmp_path, "basic_auth_users: {alice: correct-horse}"))
    assert "correct-horse" not in str(refusal.value)


def test_a_path_that_none_can_be_is_refused_with_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, 'tls_server_config:\n  cert_file: node.crt\n  key_file: "a\\0b"\n')
    with pytest.raises(ConfigurationError, match=r"web\.yml:3: tls_server_config\.key_file: is not a path; write"):
        read_web_configuration(file)


def test_paths_are_relative_to_the_file_and_the_defaults_are_modern(tmp_path: Path) -> None:
    configuration = read_web_configuration(written(tmp_path, f"tls_server_config: {{{PAIR}}}"))
    assert configuration.tls == Tls(tmp_path / "node.crt", tmp_path / "node.key")
    assert configuration.tls.lowest == "TLS12"


@needs_openssl
def test_nothing_but_suites_of_tls_1_3_leaves_older_versions_out(tmp_path: Path) -> None:
    configuration = read_web_configuration(written(tmp_path, GOOD["a suite of TLS 1.3"]))
    assert configuration.tls is not None
    assert configuration.tls.lowest == "TLS13"
