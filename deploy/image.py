"""Build, try, push and sign the exporter's image with buildah: `python -m deploy.image build|try|push|sign`.

`build` writes dist/image/ARCH/ (manifest, configuration, layers) and a bill of materials of what is installed in it.
`try` starts it as its own user. `push` joins the platforms of dist/image/ to one image, and pushes it and the chart.
`sign` signs by digest. Only `push` and `sign` publish.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deploy.release import DIST, LIMITS, ROOT, ReleaseError, check_versions, only, program, run, scrape

WORK = ROOT / "build/image"
NAME = "localhost/stallscope-exporter"
STAND_IN = "localhost/python-stand-in"
BASE_LABEL = "org.opencontainers.image.base.name"
USER = "65532 65532"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OWN = re.compile(r"(opt|opt/stallscope(/.*)?|run|run/stallscope|var|var/lib|var/lib/stallscope)/?$")
"""The paths that the Dockerfile's last stage writes."""
_LIST = """
import importlib.metadata, json, pathlib, sys, sysconfig
paths = [*sys.path, sysconfig.get_path("purelib", vars={"base": sys.base_prefix})]
found = importlib.metadata.distributions(path=paths)
status = pathlib.Path("/var/lib/dpkg/status").read_text(encoding="utf-8")
release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
print(json.dumps({
    "python": sys.version.split()[0],
    "distribution": release["ID"].strip('"') + "-" + release["VERSION_ID"].strip('"'),
    "distributions": sorted({(each.name, each.version) for each in found}),
    "status": status,
}))
"""


def architecture() -> str:
    """Return this machine's architecture as images name it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def build(base: str, dist: Path = DIST) -> None:
    """Build the image of this machine's architecture into dist/image.

    Args:
        base: `pinned`, the Dockerfile's base; `stand-in`, a base made here from Debian's packages; or `any`, the pinned
            one if its registry responds.
        dist: the folder of the artifacts.
    """
    version, arch = check_versions(), architecture()
    if base == "any":
        base = "pinned" if _pulled() else "stand-in"
    command = ["build", "--isolation", "chroot", "--network", "host", "--format", "docker", "--timestamp", _epoch()]
    command += ["--build-arg", f"REVISION={_revision()}", "--file", str(ROOT / "deploy/Dockerfile")]
    if certificates := os.environ.get("PIP_CERT"):  # of a proxy: pip reads the same ones in the build
        command += ["--volume", f"{Path(certificates).parent}:/etc/ssl/certs:ro"]
    if base == "stand-in":
        _make_stand_in()
        command += ["--pull-never", "--build-arg", f"PYTHON_IMAGE={STAND_IN}"]
    command += ["--label", f"{BASE_LABEL}={STAND_IN if base == 'stand-in' else _pinned()}"]
    _buildah(*command, "--tag", f"{NAME}:{version}", str(ROOT))
    into = dist / "image" / arch
    shutil.rmtree(dist / "image", ignore_errors=True)
    into.mkdir(parents=True)
    _buildah("push", "--quiet", "--format", "v2s2", f"{NAME}:{version}", f"dir:{into}")
    with _container(version) as container:
        installed = json.loads(_buildah("run", "--isolation", "chroot", container, "--", "python", "-Ic", _LIST))
    bill = bill_of_materials(installed, version=version, digest=_digest(into))
    (dist / "image" / f"stallscope-exporter-{version}-{arch}.cdx.json").write_text(bill, encoding="utf-8")
    print(f"image: {arch}, {_digest(into)}, base: {base}, Python {installed['python']}")


def _pinned() -> str:
    text = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    return text.split("ARG PYTHON_IMAGE=")[1].split()[0]


def _pulled() -> bool:
    name, _, digest = _pinned().partition("@")
    try:
        _buildah("pull", "--quiet", f"docker.io/library/{name.partition(':')[0]}@{digest}")
    except ReleaseError as error:
        print(f"image: the registry of {_pinned()} does not respond, so a stand-in replaces the base\n{error}"[:400])
        return False
    return True


def _make_stand_in() -> None:
    """Make a base from Debian 13: it has Python 3.13 like the pinned base, but a newer glibc and Debian's build."""
    if STAND_IN in _buildah("images", "--format", "{{.Name}}").split():
        return
    packages = "python3,python3-venv,python3-pip,python-is-python3,ca-certificates"
    files = WORK / "base.tar"
    WORK.mkdir(parents=True, exist_ok=True)
    run([program("mmdebstrap"), "--quiet", "--variant=minbase", f"--include={packages}", "trixie", str(files)])
    container = _buildah("from", "scratch").strip()
    _buildah("add", "--quiet", container, str(files), "/")
    _buildah("commit", "--quiet", "--rm", container, STAND_IN)
    files.unlink()


def bill_of_materials(installed: dict[str, Any], *, version: str, digest: str) -> str:
    """Return CycloneDX JSON of what an image has installed.

    Args:
        installed: Python's version, its distributions, and the status file of dpkg.
        version: the image's version.
        digest: the digest of the image's manifest.
    """
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    bill = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, digest))
    bill.metadata.timestamp = datetime.fromtimestamp(int(_epoch()), timezone.utc)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest.partition(":")[2])]
    kind = ComponentType.CONTAINER
    image = Component(name="stallscope-exporter", version=version, type=kind, hashes=hashes, bom_ref="image")
    python = Component(name="python", version=installed["python"], type=ComponentType.PLATFORM, bom_ref="python")
    bill.metadata.component = image
    bill.components.add(python)
    for name, its_version in installed["distributions"]:
        url = PackageURL("pypi", None, name.lower().replace("_", "-"), its_version)
        bill.components.add(Component(name=name, version=its_version, purl=url, bom_ref=str(url)))
    for paragraph in installed["status"].split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"\w[\w-]*: ", line))
        if fields.get("Status", "").endswith(" installed"):
            qualifiers = {"arch": fields["Architecture"], "distro": installed["distribution"]}
            url = PackageURL("deb", "debian", fields["Package"], fields["Version"], qualifiers)
            bill.components.add(
                Component(name=fields["Package"], version=fields["Version"], purl=url, bom_ref=str(url))
            )
    bill.register_dependency(image, bill.components)
    return JsonV1Dot6(bill).output_as_string(indent=2)


def attempt(dist: Path = DIST) -> None:
    """Start this machine's image as its own user, scrape it once, and check what it adds to its base."""
    version, arch = check_versions(), architecture()
    folder = dist / "image" / arch
    layers = json.loads(only(folder, "manifest.json").read_text(encoding="utf-8"))["layers"]
    layer = folder / layers[-1]["digest"].partition(":")[2]
    with gzip.open(layer) as unpacked, tarfile.open(fileobj=unpacked) as tar:
        foreign = [name for name in tar.getnames() if not _OWN.match(name)]
    if foreign:
        raise ReleaseError(f"image: its last layer also has {', '.join(foreign[:5])}; check deploy/Dockerfile")
    bill = json.loads(only(dist / "image", f"*-{arch}.cdx.json").read_text(encoding="utf-8"))
    urls = {each.get("purl", "") for each in bill["components"]}
    if f"pkg:pypi/stallscope@{version}" not in urls or not any(url.startswith("pkg:deb/debian/libc6@") for url in urls):
        raise ReleaseError("bill of materials of the image: stallscope or libc6 is missing; check deploy/image.py")
    with _container(version) as container, tempfile.TemporaryDirectory() as name:
        inside = [*_command(), "run", "--isolation", "chroot", container, "--"]
        if (user := run([*inside, "python", "-c", "import os; print(os.getuid(), os.getgid())"]).strip()) != USER:
            raise ReleaseError(f"image: it runs as {user}, not as {USER}; check deploy/Dockerfile")
        scrape([*inside, "stallscope", "exporter"], Path(name, "log"), "/tmp/report.sock")  # noqa: S108
    what, size = "image, without its base", layers[-1]["size"]
    total = sum(each["size"] for each in layers)
    print(f"{what}: {size:,} bytes (at most {LIMITS[what]:,}); with the base of this build: {total:,}")
    if size > LIMITS[what]:
        raise ReleaseError(f"{what}: {size:,} bytes; make it smaller, or raise the limit in deploy/release.py")


def push(registry: str, *, plain_http: bool = False, dist: Path = DIST) -> None:
    """Push all platforms of dist/image as one image, and the chart; write their digests for the next steps.

    Args:
        registry: host and folder, such as `ghcr.io/stallscope/stallscope`.
        plain_http: for a registry on this machine.
        dist: the folder of the artifacts.
    """
    version = check_versions()
    image, chart = f"{registry}/stallscope-exporter", f"{registry}/charts"
    platforms = sorted(path.parent for path in (dist / "image").glob("*/manifest.json"))
    if not platforms:
        raise ReleaseError(f"{dist / 'image'}: it has no image; run `make release-image`")
    if not plain_http and (stand_ins := [each.name for each in platforms if _base(each) != _pinned()]):
        raise ReleaseError(f"image: {', '.join(stand_ins)} has a stand-in as its base; run `make release-image`")
    name = f"{NAME}-platforms:{version}"
    for known in _buildah("images", "--quiet", "--filter", f"reference={name}").split():
        _buildah("manifest", "rm", known)
    _buildah("manifest", "create", name)
    for each in platforms:
        _buildah("manifest", "add", name, f"dir:{each}")
    written = dist / "image/digest"
    flags = ["--all", "--format", "v2s2", "--digestfile", str(written), f"--tls-verify={str(not plain_http).lower()}"]
    _buildah("manifest", "push", *flags, name, f"docker://{image}:{version}")
    command = [program("helm"), "push", str(only(dist / "chart", "*.tgz")), f"oci://{chart}"]
    command += ["--plain-http"] if plain_http else []
    helm = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^Digest: (sha256:[0-9a-f]{64})$", helm.stdout + helm.stderr, re.MULTILINE)
    if helm.returncode or found is None:
        raise ReleaseError(f"chart: the push to {chart} failed\n{helm.stdout}{helm.stderr}")
    digests = {"image": written.read_text(encoding="utf-8").strip(), "chart": found[1]}
    lines = [f"{what}={digest}" for what, digest in digests.items()]
    print(f"pushed {image}:{version} for {', '.join(each.name for each in platforms)} and {chart}/stallscope:{version}")
    print(*lines, sep="\n")
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def sign(registry: str, *, dist: Path = DIST) -> None:
    """Sign the pushed image by digest, and attach each platform's bill of materials to that platform's image."""
    cosign, image = program("cosign"), f"{registry}/stallscope-exporter"
    digest = (dist / "image/digest").read_text(encoding="utf-8").strip()
    run([cosign, "sign", "--yes", "--recursive", f"{image}@{digest}"])
    for bill in sorted((dist / "image").glob("*.cdx.json")):
        arch = bill.name.removesuffix(".cdx.json").rpartition("-")[2]
        command = [cosign, "attest", "--yes", "--type", "cyclonedx", "--predicate", str(bill)]
        run([*command, f"{image}@{_digest(dist / 'image' / arch)}"])


def _base(folder: Path) -> str:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    configuration = folder / manifest["config"]["digest"].partition(":")[2]
    labels: dict[str, str] = json.loads(configuration.read_text(encoding="utf-8"))["config"]["Labels"]
    return labels.get(BASE_LABEL, "")


def _digest(folder: Path) -> str:
    return f"sha256:{hashlib.sha256((folder / 'manifest.json').read_bytes()).hexdigest()}"


def _epoch() -> str:
    """Return the time of the build: that of the commit, so that equal sources have equal dates."""
    return os.environ.get("SOURCE_DATE_EPOCH") or run(["git", "log", "-1", "--format=%ct"]).strip()


def _revision() -> str:
    return run(["git", "rev-parse", "HEAD"]).strip()


def _command() -> list[str]:
    return [program("buildah"), "--root", str(WORK / "storage"), "--runroot", str(WORK / "run")]


def _buildah(*arguments: str) -> str:
    return run([*_command(), *arguments])


@contextmanager
def _container(version: str) -> Iterator[str]:
    container = _buildah("from", "--pull-never", f"{NAME}:{version}").strip()
    try:
        yield container
    finally:
        _buildah("rm", container)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.image", description=__doc__)
    parser.add_argument("step", choices=("build", "try", "push", "sign"))
    parser.add_argument("--base", choices=("pinned", "stand-in", "any"), default="pinned")
    parser.add_argument("--registry", default="", help="such as ghcr.io/stallscope/stallscope")
    parser.add_argument("--plain-http", action="store_true", help="push to a registry on this machine")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.step in ("push", "sign") and not parsed.registry:
            raise ReleaseError("registry: missing; name it, such as REGISTRY=ghcr.io/stallscope/stallscope")
        if parsed.step == "build":
            build(parsed.base)
        elif parsed.step == "try":
            attempt()
        elif parsed.step == "push":
            push(parsed.registry, plain_http=parsed.plain_http)
        else:
            sign(parsed.registry)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
