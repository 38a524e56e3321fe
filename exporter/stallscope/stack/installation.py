"""Install Prometheus and Alertmanager where the distribution has them; elsewhere say how a person can."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stallscope.stack.errors import StackError

_PACKAGES = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager"}
"""Debian's and Ubuntu's package of each program; the first brings promtool, the second amtool."""

_IMAGES = {"prometheus": "prom/prometheus:v2.53.0", "alertmanager": "prom/alertmanager:v0.27.0"}
_TOOLS = {"prometheus": "promtool", "alertmanager": "amtool"}
_POLICY = Path("usr/sbin/policy-rc.d")


def distribution(root: Path = Path("/")) -> tuple[str, ...]:
    """Tell the distribution and those it derives from, such as `("ubuntu", "debian")`; empty where it does not say."""
    for place in ("etc/os-release", "usr/lib/os-release"):
        try:
            text = (root / place).read_text(encoding="utf-8")
        except OSError:
            continue
        fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
        return tuple(f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").replace("'", "").split())
    return ()


def can_install(root: Path = Path("/")) -> bool:
    """Whether this is Debian, Ubuntu or one of their descendants."""
    return bool({"debian", "ubuntu"} & set(distribution(root)))


def instructions(missing: Sequence[str], root: Path = Path("/")) -> str:
    """Say how a person gets the missing programs here: the distribution's way, or the container images' way."""
    names = " and ".join(name.capitalize() for name in missing)
    verb = "is" if len(missing) == 1 else "are"
    lines = [f"{names} {verb} not installed (not on PATH)."]
    if can_install(root):
        packages = " ".join(_PACKAGES[name] for name in missing)
        lines += ["As root: apt-get update && apt-get install --no-install-recommends " + packages]
    else:
        lines += [
            "Take the programs from their container images (they need no container to run; podman works like docker):",
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
            "or install them from https://prometheus.io/download/ so that they are on PATH.",
        ]
    return "\n".join(lines)


def install(missing: Sequence[str], tell: Callable[[str], None], root: Path = Path("/")) -> None:
    """Install programs with apt-get, as root or through sudo; their services stay off.

    Args:
        missing: names of `Programs.missing`.
        tell: takes a line for the screen, before sudo may ask for a password.
        root: where the machine's file system begins.

    Raises:
        StackError: there is no way to become root, or apt-get failed; with what it said.
    """
    packages = [_PACKAGES[name] for name in missing]
    if os.geteuid() == 0:
        as_root: list[str] = []
    elif sudo := shutil.which("sudo"):
        as_root = [sudo]
    else:
        raise StackError(
            f"{instructions(missing, root)}\n(this command does it itself when run as root or where sudo is)"
        )
    through = " through sudo" if as_root else ""
    tell(f"installing {' and '.join(packages)} with apt-get{through}; their own services stay off")
    environment = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive"]
    with _services_kept_from_starting(as_root, root):
        _run([*environment, "apt-get", "update", "-qq"])
        _run([*environment, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages])
    if shutil.which("systemctl"):
        # They would start with the machine otherwise, which nobody asked for.
        subprocess.run([*as_root, "systemctl", "disable", *packages], capture_output=True, check=False)


@contextmanager
def _services_kept_from_starting(as_root: list[str], root: Path) -> Iterator[None]:
    """Debian's packages start their services unless this file says no; one that is there already is left alone."""
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
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise StackError(f"`{' '.join(command)}` failed with status {done.returncode}:\n{said}")
