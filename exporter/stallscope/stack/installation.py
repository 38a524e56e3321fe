"""Install Prometheus and Alertmanager on Debian and Ubuntu; print instructions on other distributions."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stallscope.stack.errors import StackError

_PACKAGES = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager"}
"""Debian and Ubuntu packages. The first includes promtool, the second amtool."""

_IMAGES = {"prometheus": "prom/prometheus:v2.53.0", "alertmanager": "prom/alertmanager:v0.27.0"}
_TOOLS = {"prometheus": "promtool", "alertmanager": "amtool"}
_POLICY = Path("usr/sbin/policy-rc.d")


def distribution(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the distribution and its parents, such as `("ubuntu", "debian")`; empty if unknown."""
    for place in ("etc/os-release", "usr/lib/os-release"):
        try:
            text = (root / place).read_text(encoding="utf-8")
        except OSError:
            continue
        fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
        return tuple(f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").replace("'", "").split())
    return ()


def can_install(root: Path = Path("/")) -> bool:
    """Return True on Debian, Ubuntu and derived distributions."""
    return bool({"debian", "ubuntu"} & set(distribution(root)))


def instructions(missing: Sequence[str], root: Path = Path("/")) -> str:
    """Return how to install the missing programs: with apt-get, or from the container images."""
    names = " and ".join(name.capitalize() for name in missing)
    verb = "is" if len(missing) == 1 else "are"
    lines = [f"{names} {verb} not installed (not on PATH)."]
    if can_install(root):
        packages = " ".join(_PACKAGES[name] for name in missing)
        lines += ["As root: apt-get update && apt-get install --no-install-recommends " + packages]
    else:
        lines += [
            "Copy the programs from their container images (they run without a container; podman works like docker):",
            "",
            "  mkdir -p ~/.local/bin",
        ]
        for name in missing:
            lines += [
                f"  id=$(docker create {_IMAGES[name]})",
                f"  docker cp $id:/bin/{name} ~/.local/bin/ && docker cp $id:/bin/{_TOOLS[name]} ~/.local/bin/",
                "  docker rm $id",
            ]
        lines += [
            '  PATH="$HOME/.local/bin:$PATH" stallscope up',
            "",
            "or download them from https://prometheus.io/download/ and add them to PATH.",
        ]
    return "\n".join(lines)


def install(missing: Sequence[str], show: Callable[[str], None], root: Path = Path("/")) -> None:
    """Install programs with apt-get, as root or through sudo; their services stay off.

    Args:
        missing: names from `Programs.missing`.
        show: prints a line, before sudo may request a password.
        root: root of the machine's file system.

    Raises:
        StackError: neither root nor sudo is available, or apt-get failed; the message has its output.
    """
    packages = [_PACKAGES[name] for name in missing]
    if os.geteuid() == 0:
        as_root: list[str] = []
    elif sudo := shutil.which("sudo"):
        as_root = [sudo]
    else:
        raise StackError(f"{instructions(missing, root)}\n(`stallscope up` installs them itself as root or with sudo)")
    through = " through sudo" if as_root else ""
    show(f"installing {' and '.join(packages)} with apt-get{through}; their own services stay off")
    environment = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive"]
    with _services_kept_from_starting(as_root, root):
        _run([*environment, "apt-get", "update", "-qq"])
        _run([*environment, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages])
    if shutil.which("systemctl"):
        # Otherwise the services would start at the next boot.
        subprocess.run([*as_root, "systemctl", "disable", *packages], capture_output=True, check=False)


@contextmanager
def _services_kept_from_starting(as_root: list[str], root: Path) -> Iterator[None]:
    """Prevent Debian's packages from starting their services. An existing policy file is left unchanged."""
    policy = root / _POLICY
    if policy.exists():
        yield
        return
    write = ["sh", "-c", 'printf "#!/bin/sh\\nexit 101\\n" >"$1" && chmod 755 "$1"', "sh", str(policy)]
    _run([*as_root, *write])
    try:
        yield
    finally:
        _run([*as_root, "rm", "-f", str(policy)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise StackError(f"`{' '.join(command)}` failed with status {done.returncode}:\n{output}")
