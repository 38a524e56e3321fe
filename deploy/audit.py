"""Look up known vulnerabilities of locked packages: `make audit`, or `python -m deploy.audit [--osv-url URL]`.

Exit status: 0 if no vulnerability is known, and with a notice if the database does not respond; 1 if a vulnerability is
known or the audit failed. CI does not run it, because a build must not depend on a database on the network.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKS = (
    "deploy/requirements-exporter.lock",
    "deploy/requirements-build.lock",
    "deploy/requirements-up.lock",
    "deploy/requirements-docs.lock",
    "requirements-dev.lock",
    "requirements-frameworks.lock",
)
OSV = "https://api.osv.dev/v1/query"
_UNREACHABLE = ("requests.exceptions.", "ServiceError", "ConnectionError")
"""Texts in pip-audit's last line if its database did not respond, or responded with an error."""


class UnreachableError(Exception):
    """The database of vulnerabilities did not respond."""


def audited(lock: Path, url: str) -> list[dict[str, Any]]:
    """Return the packages of a lock that this machine would install, each with its known vulnerabilities.

    Raises:
        UnreachableError: the database did not respond.
        RuntimeError: pip-audit failed otherwise.
    """
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    command += ["--vulnerability-service", "osv", "--osv-url", url, "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, LookupError, TypeError):
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        if any(words in reason for words in _UNREACHABLE):
            raise UnreachableError from None
        raise RuntimeError(f"{lock}: pip-audit failed: {reason}") from None
    return packages


def findings(packages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each vulnerability."""
    for package in packages:
        for found in package.get("vulns", ()):
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            yield f"{package['name']} {package['version']}: {found['id']}; fixed in {fixed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit every lock; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.audit", description=__doc__)
    parser.add_argument("--osv-url", default=OSV, help="query endpoint of an OSV database (default: %(default)s)")
    parser.add_argument("--lock", action="append", type=Path, help="audit this lock; repeatable (default: all)")
    parsed = parser.parse_args(arguments)
    status = 0
    for lock in parsed.lock or [ROOT / name for name in LOCKS]:
        try:
            packages = audited(lock, parsed.osv_url)
        except UnreachableError:
            print(f"audit skipped: {parsed.osv_url}: no response; set --osv-url to a mirror")
            return status
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        known = list(findings(packages))
        print(f"{lock.name}: {len(packages)} packages, {len(known)} known vulnerabilities")
        print("".join(f"  {line}\n" for line in known), end="")
        status |= bool(known)
    return status


if __name__ == "__main__":
    sys.exit(main())
