"""The public test files of the exporter-toolkit, each written again with keys of our own: all are judged as it does.

The toolkit's tests say what becomes of each file: whether it is accepted, and which client gets in.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import bcrypt
import pytest

from stallscope.common.address import Address
from stallscope.node.configuration import ConfigurationError
from stallscope.node.web.http.configuration_file import CIPHER_SUITES
from stallscope.node.web.http.request import Request
from stallscope.node.web.http.response import TEXT, Response
from stallscope.node.web.http.security import Security
from stallscope.node.web.http.server import Server
from tests.web.certificates import Authority, needs_openssl

pytestmark = needs_openssl

FILES = "  cert_file: node.crt\n  key_file: node.key\n"
TLS = f"tls_server_config:\n{FILES}"
OPTIONAL = f"{TLS}  client_auth_type: VerifyClientCertIfGiven\n"
TLS12 = "  min_version: TLS12\n  max_version: TLS12\n"
GCM_128 = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
GCM_256 = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
CBC_256 = "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"
HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
USERS = f"""basic_auth_users:
  alice: {HASH.replace("$04$", "$12$")}
  bob: {HASH.replace("$04$", "$18$")}
  dave: {HASH}
"""


def suites(*names: str) -> str:
    return "  cipher_suites:\n" + "".join(f"  - {name}\n" for name in names)


def curves(*names: str) -> str:
    return "  curve_preferences:\n" + "".join(f"  - {name}\n" for name in names)


class Client(NamedTuple):
    """One request and what becomes of it."""

    status: int | None = 200
    """None if no answer comes."""
    scheme: str = "https"
    certificate: str = ""
    suites: tuple[str, ...] = ()
    """Of TLS 1.2, in the client's order."""
    suite: str = ""
    """The one that is chosen."""
    curve: str = ""
    highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    user: str = ""


PLAIN = Client(scheme="http")
ACCEPTED: dict[str, tuple[str, tuple[Client, ...]]] = {
    "an empty file is plain HTTP": ("", (PLAIN, Client(None))),
    "a certificate is shown to clients that need none": (
        OPTIONAL,
        (Client(), Client(400, scheme="http"), Client(None, highest=ssl.TLSVersion.TLSv1_1)),
    ),
    "a required certificate without authorities is one that the system trusts": (
        f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n",
        (Client(None), Client(None, certificate="stranger")),
    ),
    "so it is in the file that the toolkit does not test": (
        f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ''\n",
        (Client(None), Client(None, certificate="stranger")),
    ),
    "a required certificate may be the trusted one itself": (
        f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: stranger.crt\n",
        (Client(certificate="stranger"), Client(None), Client(None, certificate="other")),
    ),
    "the key is inline in the file": (
        (
            "tls_server_config:\n  cert_file: node.crt\n  key: |\n{key}"
            "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: stranger.crt\n"
        ),
        (Client(certificate="stranger"), Client(None)),
    ),
    "certificate and key are inline in the file": (
        "tls_server_config:\n  cert: |\n{cert}  key: |\n{key}",
        (Client(), Client(400, scheme="http")),
    ),
    "one of the allowed names is enough": (
        (
            f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: stranger.crt\n"
            "  client_allowed_sans:\n  - one\n  - test3\n  - two\n"
        ),
        (Client(certificate="stranger"), Client(None), Client(None, certificate="other")),
    ),
    "another name is not": (
        (
            f"{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: stranger.crt\n"
            "  client_allowed_sans:\n  - bad\n"
        ),
        (Client(None, certificate="stranger"), Client(None)),
    ),
    "all suites": (
        OPTIONAL + suites(*CIPHER_SUITES, "TLS_AES_128_GCM_SHA256"),
        (Client(), Client(suites=(CBC_256,), suite=CBC_256)),
    ),
    "some suites, of which the server chooses": (
        OPTIONAL + suites(GCM_128, GCM_256) + TLS12,
        (
            Client(suites=(GCM_128,), suite=GCM_128),
            Client(None, suites=(CBC_256,)),
            Client(suites=(GCM_256, GCM_128), suite=GCM_128),
        ),
    ),
    "some suites, of which the client chooses": (
        OPTIONAL + suites(GCM_256, GCM_128) + "  prefer_server_cipher_suites: false\n" + TLS12,
        (Client(suites=(GCM_128, GCM_256), suite=GCM_128),),
    ),
    "suites without those of HTTP/2, which is off": (
        f"{OPTIONAL}{suites(GCM_256)}  max_version: TLS12\nhttp_server_config:\n  http2: false\n",
        (Client(),),
    ),
    "one curve": (
        f"{OPTIONAL}  min_version: TLS13\n{curves('CurveP521')}",
        (Client(curve="secp521r1"), Client(None, curve="secp384r1")),
    ),
    "headers": (
        (
            "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
            "    Strict-Transport-Security: max-age=31536000; includeSubDomains\n    X-Content-Type-Options: nosniff\n"
            "    X-XSS-Protection: 1\n    Content-Security-Policy: \"default-src 'self' *.node.example\"\n"
        ),
        (PLAIN,),
    ),
    "an interval of nothing limits nothing": ("rate_limit:\n  interval: 0\n  burst: 0\n", (PLAIN,) * 10),
    "a burst of nothing allows nothing": (
        'rate_limit:\n  interval: "1s"\n  burst: 0\n',
        (PLAIN._replace(status=429),) * 3,
    ),
    "users, one of them with a hash of high cost": (
        TLS + USERS,
        (Client(401), Client(user="dave:right"), Client(401, user="dave:bad")),
    ),
    "users without TLS": (USERS, (PLAIN._replace(status=401), PLAIN._replace(user="dave:right"))),
}
"""Files that the toolkit accepts, and the clients of its tests."""

REFUSED = {
    "no file": (None, r"missing\.yml: can't be read"),
    "words": ("VicCnOB\nAlzasVoo\nRzOicAzj\n", "the file: is not a mapping; write"),
    "an empty path of the certificate": (TLS.replace("node.crt", '""'), "has no cert; set cert_file or cert"),
    "an empty certificate": ('tls_server_config:\n  cert: ""\n  key_file: node.key\n', "has no cert; set"),
    "an empty path of the key": (TLS.replace("node.key", '""'), "has no key; set key_file or key"),
    "an empty key": ('tls_server_config:\n  cert_file: node.crt\n  key: ""\n', "has no key; set"),
    "empty paths of both": (
        'tls_server_config:\n  cert_file: ""\n  key_file: ""\n  client_auth_type: "x"\n',
        "has no cert and no key; set",
    ),
    "neither file": (f"{TLS.replace('node.crt', 'x').replace('node.key', 'x')}", "x can't be read: No such file"),
    "authorities without certificates": (
        f"{TLS}  client_ca_file: /dev/null\n",
        "client_ca_file: has no effect, .*; set",
    ),
    "suites without those of HTTP/2": (
        f"{OPTIONAL}{suites(GCM_256)}  max_version: TLS12\n",
        "has no suite that HTTP/2 requires; add TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 or",
    ),
    "a wrong content type option": (
        "http_server_config:\n  headers:\n    X-Content-Type-Options: sniff\n",
        "'sniff' is not allowed; write nosniff",
    ),
}
"""Files that the toolkit refuses, and our message; `test_configuration_file.py` has the others."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    Authority(folder).sign("node")
    for name in ("stranger", "other"):
        Authority(folder, name, names="DNS:test3")
    return folder


@contextlib.contextmanager
def served(folder: Path, text: str) -> Iterator[Server]:
    pems = {name: (folder / f"node.{kind}").read_text() for name, kind in (("cert", "crt"), ("key", "key"))}
    for name, pem in pems.items():
        text = text.replace(f"{{{name}}}", "".join(f"    {line}\n" for line in pem.splitlines()))
    file = folder / "web.yml"
    file.write_text(text)
    security = Security(file)
    server = Server(Address("127.0.0.1", 0), security.guard(answer), tls=security.tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def answer(_request: Request, _client: str) -> Response:
    return Response(200, TEXT, b"Hello World!")


def judged(server: Server, folder: Path, client: Client) -> tuple[int | None, str]:
    """The status of the answer, and the suite where the client names some."""
    place = ("127.0.0.1", server.address.port)
    headers = {"Authorization": f"Basic {base64.b64encode(client.user.encode()).decode()}"} if client.user else {}
    try:
        if client.scheme == "http":
            connection = http.client.HTTPConnection(*place, timeout=60)
        else:
            connection = http.client.HTTPSConnection(*place, timeout=60, context=context_of(client, folder))
        with contextlib.closing(connection):
            connection.connect()
            secure = connection.sock if client.suite else None
            chosen = (secure.cipher() or ("",))[0] if isinstance(secure, ssl.SSLSocket) else ""
            connection.request("GET", "/", headers=headers)
            return connection.getresponse().status, chosen
    except (OSError, http.client.HTTPException):
        return None, ""


def context_of(client: Client, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "authority.crt"))
    if client.certificate:
        context.load_cert_chain(folder / f"{client.certificate}.crt", folder / f"{client.certificate}.key")
    if client.suites:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(":".join(CIPHER_SUITES[each] for each in client.suites))
    if client.curve:
        context.set_ecdh_curve(client.curve)
    if client.highest < ssl.TLSVersion.TLSv1_2:
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = client.highest
    return context


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", ACCEPTED)
def test_a_file_that_the_toolkit_accepts_serves_the_same_clients(case: str, folder: Path) -> None:
    text, clients = ACCEPTED[case]
    with served(folder, text) as server:
        found = [judged(server, folder, client) for client in clients]
    assert found == [(client.status, CIPHER_SUITES.get(client.suite, "")) for client in clients]


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_the_toolkit_refuses_is_refused_with_what_to_do(case: str, folder: Path) -> None:
    text, message = REFUSED[case]
    file = folder / ("missing.yml" if text is None else "web.yml")
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        Security(file)
