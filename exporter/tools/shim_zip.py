"""Write the shim as one file that Python imports directly, for programs that can't have another package installed.

    make vendor        # dist/stallscope_shim.zip

The file holds the package's modules for the training process, unchanged. It needs the standard library alone.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

EXPORTER = Path(__file__).parents[1]
OUTPUT = EXPORTER.parent / "dist" / "stallscope_shim.zip"
_PARTS = (
    "__init__.py",
    "common/__init__.py",
    "common/cluster_tls.py",
    "common/file_trust.py",
    "common/hidden_library.py",
    "common/program_files.py",
    "common/silence.py",
    "common/standard_error.py",
    "common/standard_library.py",
    "common/version.py",
    "integrations",
    "training",
)


def write(output: Path) -> None:
    """Write the file, with equal bytes for equal modules."""
    output.parent.mkdir(exist_ok=True)
    package = EXPORTER / "stallscope"
    sources = [path for part in _PARTS for path in (sorted((package / part).rglob("*.py")) or [package / part])]
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sources:
            name = zipfile.ZipInfo(str(path.relative_to(EXPORTER)))  # dated 1980, whatever the clock says
            name.external_attr = 0o644 << 16
            archive.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    write(OUTPUT)
    print(OUTPUT)
