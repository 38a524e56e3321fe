"""The web configuration file: each example is judged by promtool too, which knows the toolkit's format."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stallscope.configuration import ConfigurationError
from stallscope.web.http.configuration_file import CIPHER_SUITES, CURVES, Tls, read_web_configuration
from stallscope.web.http.security import Security
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
    "a suite of TLS 1.3": f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_AES_128_GCM_SHA256]}}",
    "the client's order": f"tls_server_config: {{{PAIR}, prefer_server_cipher_suites: false}}",
    **{curve: f"tls_server_config: {{{PAIR}, curve_preferences: [{curve}]}}" for curve in CURVES},
    "no client certificate": f"tls_server_config: {{{PAIR}, client_auth_type: NoClientCert}}",
    "client certificates": f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, "
    "client_ca_file: authority.crt}",
    "optional ones": f"tls_server_config: {{{PAIR}, client_auth_type: VerifyClientCertIfGiven, "
    "client_ca_file: authority.crt}",
    "the system's authorities": f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
    "users": f"basic_auth_users:\n  alice: {HASH}\n  böb: {HASH.replace('$2y$', '$2b$')}\n",
    "HTTP/1.1": "http_server_config: {http2: false}",
    "headers": "http_server_config:\n  headers:\n    Strict-Transport-Security: max-age=31536000\n"
    "    X-Content-Type-Options: nosniff\n    X-Frame-Options: sameorigin\n    X-XSS-Protection: '0'\n"
    "    Content-Security-Policy: default-src 'none'\n",
}
"""What both take, by what it asks for."""

BAD = {
    "a list": ("- a", "must hold `key: value` pairs"),
    "no YAML": ("tls_server_config: {", "is no valid YAML"),
    "an unknown section": ("bogus: 1", r"web\.yml:1: bogus is not known here; known: tls_server_config"),
    "an unknown key": (f"tls_server_config: {{{PAIR}, bogus: 1}}", r"tls_server_config\.bogus is not known here"),
    "twice": (f"tls_server_config: {{{PAIR}, key_file: node.key}}", "key_file is set twice"),
    "no pairs": ("tls_server_config: yes", "must hold `key: value` pairs"),
    "no key": ("tls_server_config: {cert_file: node.crt}", "needs key_file"),
    "no certificate": ("tls_server_config: {key_file: node.key}", "needs cert_file"),
    "a list of files": ("tls_server_config: {cert_file: [a], key_file: b}", "cert_file takes one text"),
    "a certificate that is not there": (
        "tls_server_config: {cert_file: missing.crt, key_file: node.key}",
        r"missing\.crt can't be read: No such file",
    ),
    "a key that is not there": (
        "tls_server_config: {cert_file: node.crt, key_file: missing.key}",
        r"missing\.key can't be read: No such file",
    ),
    "another's key": (
        "tls_server_config: {cert_file: node.crt, key_file: other.key}",
        "are no PEM certificate with its unencrypted key",
    ),
    "no certificate in the file": (
        "tls_server_config: {cert_file: web.yml, key_file: node.key}",
        "are no PEM certificate with its unencrypted key",
    ),
    "an encrypted key": (
        "tls_server_config: {cert_file: node.crt, key_file: secret.key}",
        "are no PEM certificate with its unencrypted key",
    ),
    "an unknown version": (f"tls_server_config: {{{PAIR}, min_version: TLS14}}", r"min_version can't be 'TLS14'"),
    "an unknown suite": (f"tls_server_config: {{{PAIR}, cipher_suites: [X]}}", "cipher_suites: X can't be had"),
    "suites in no list": (
        f"tls_server_config: {{{PAIR}, cipher_suites: {{a: b}}}}",
        "cipher_suites takes a list",
    ),
    "an unknown curve": (f"tls_server_config: {{{PAIR}, curve_preferences: [X]}}", "'X' is no curve known here"),
    "an unknown kind of client": (
        f"tls_server_config: {{{PAIR}, client_auth_type: X}}",
        r"client_auth_type can't be 'X'; known: NoClientCert",
    ),
    "authorities for nobody": (
        f"tls_server_config: {{{PAIR}, client_ca_file: authority.crt}}",
        "client_ca_file needs a client_auth_type that verifies",
    ),
    "authorities that are not there": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: missing.crt}}",
        r"missing\.crt can't be read",
    ),
    "a preference that is none": (
        f"tls_server_config: {{{PAIR}, prefer_server_cipher_suites: perhaps}}",
        "must be true or false",
    ),
    "a password for a hash": (
        "basic_auth_users: {alice: secret}",
        r"basic_auth_users\.alice needs the bcrypt hash of a password",
    ),
    "no hash": ("basic_auth_users: {alice: }", "needs the bcrypt hash"),
    "a hash that costs nothing": (f"basic_auth_users: {{alice: {HASH.replace('$10$', '$03$')}}}", "needs the bcrypt"),
    "a header that can't be set": ("http_server_config: {headers: {Server: x}}", r"headers\.Server is not known here"),
    "a header's wrong value": (
        "http_server_config: {headers: {X-Frame-Options: x}}",
        "can't be 'x'; expected deny or sameorigin",
    ),
}
"""What both refuse, with our message."""

STRICTER = {
    "an empty section": ("tls_server_config: {}", "needs cert_file and key_file"),
    "versions without a certificate": ("tls_server_config: {min_version: TLS13}", "needs cert_file and key_file"),
    "versions that nobody should speak": (
        f"tls_server_config: {{{PAIR}, min_version: TLS10}}",
        "TLS10 can't be had; the oldest version spoken here is TLS12",
    ),
    "no version": (f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}", "is below min_version"),
    "no suite": (
        f"tls_server_config: {{{PAIR}, max_version: TLS12, cipher_suites: [TLS_AES_128_GCM_SHA256]}}",
        "has none of TLS12",
    ),
    "several curves": (
        f"tls_server_config: {{{PAIR}, curve_preferences: [X25519, CurveP256]}}",
        "Python's TLS takes one curve",
    ),
    "certificates that are not verified": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAnyClientCert}}",
        "RequireAnyClientCert can't be had",
    ),
    "authorities in no PEM": (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: web.yml}}",
        "holds no PEM certificates",
    ),
    "a user with a colon": (f"basic_auth_users: {{'a:b': {HASH}}}", "no client can ask as 'a:b'"),
    "HTTP/2": ("http_server_config: {http2: true}", "HTTP/1.1 is spoken here"),
    "a header of two lines": (
        'http_server_config: {headers: {X-XSS-Protection: "0\\r\\nA: b"}}',
        "expected printable ASCII",
    ),
}
"""What promtool takes, and what would be ignored or serve nobody if it were taken here."""


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


def promtool_takes(file: Path) -> bool:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    return subprocess.run(["promtool", "check", "web-config", file], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("case", GOOD)
def test_what_the_toolkit_takes_is_taken(case: str, folder: Path) -> None:
    file = written(folder, GOOD[case])
    Security(file)
    assert promtool_takes(file)


@pytest.mark.parametrize("case", BAD)
def test_what_the_toolkit_refuses_is_refused_by_name(case: str, folder: Path) -> None:
    text, message = BAD[case]
    file = written(folder, text)
    with pytest.raises(ConfigurationError, match=message):
        Security(file)
    assert not promtool_takes(file)


@pytest.mark.parametrize("case", STRICTER)
def test_what_would_not_be_honoured_is_refused(case: str, folder: Path) -> None:
    text, message = STRICTER[case]
    file = written(folder, text)
    with pytest.raises(ConfigurationError, match=message):
        Security(file)
    assert promtool_takes(file)


def test_a_refusal_never_tells_the_password_that_stands_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read_web_configuration(written(tmp_path, "basic_auth_users: {alice: correct-horse}"))
    assert "correct-horse" not in str(refusal.value)


def test_a_path_that_none_can_be_is_refused_with_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, 'tls_server_config:\n  cert_file: node.crt\n  key_file: "a\\0b"\n')
    with pytest.raises(ConfigurationError, match=r"web\.yml:3: tls_server_config\.key_file is no path"):
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
