"""Install Prometheus and Alertmanager on Debian and Ubuntu; print instructions elsewhere."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stallscope.lab.stack.errors import StackError

_PACKAGES = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager"}
"""Debian and Ubuntu packages. The first includes promtool, the second amtool."""

_VERSIONS = {"prometheus": "2.53.0", "alertmanager": "0.27.0"}
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


def instructions(missing: Sequence[str]) -> str:
    """Return the three ways to install the missing programs, as commands to paste."""
    names = " and ".join(name.capitalize() for name in missing)
    verb = "is" if len(missing) == 1 else "are"
    packages = " ".join(_PACKAGES[name] for name in missing)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    downloads = [
        f"     curl -fL https://github.com/prometheus/{name}/releases/download/v{version}/{name}-{version}.linux-{machine}"
        f".tar.gz | tar -xz --strip-components=1 -C ~/.local/bin --wildcards '*/{name}' '*/{_TOOLS[name]}'"
        for name in missing
        for version in (_VERSIONS[name],)
    ]
    copies = [
        f"     id=$(docker create prom/{name}:v{_VERSIONS[name]}) && docker cp $id:/bin/{name} ~/.local/bin/ && "
        f"docker cp $id:/bin/{_TOOLS[name]} ~/.local/bin/ && docker rm $id"
        for name in missing
    ]
    return "\n".join(
        [
            f"{names} {verb} not installed; install them in one of three ways, then start again:",
            "  1. Debian and Ubuntu, as root:",
            f"     apt-get update && apt-get install --no-install-recommends {packages}",
            "  2. Any Linux, without root, from https://prometheus.io/download/:",
            "     mkdir -p ~/.local/bin",
            *downloads,
            "  3. From the container images, with docker or podman (the programs run without a container):",
            "     mkdir -p ~/.local/bin",
            *copies,
        ]
    )


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
        raise StackError(instructions(missing))
    through = " through sudo" if as_root else ""
    show(f"installing {' and '.join(packages)} with apt-get{through}; their own services stay off")
    environment = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive"]
    try:
        with _services_kept_from_starting(as_root, root):
            _run([*environment, "apt-get", "update", "-qq"])
            _run([*environment, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages])
    except StackError as error:
        raise StackError(
            f"{error}; check the network and the package sources, or choose another way.\n{instructions(missing)}"
        ) from None
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
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        reason = next((line for line in lines if line.startswith("E: ")), lines[-1])
        raise StackError(f"`{' '.join(command)}`: failed with status {done.returncode}: {reason}")
