"""Commands that install an extra, by where the package was installed from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stallscope.common.installation import install_command

METADATA = """\
Metadata-Version: 2.4
Name: stallscope
Version: 0.1.0
Requires-Dist: requests>=2.31 ; extra == 'exporter'
Requires-Dist: h11>=0.14; extra == "exporter"
Requires-Dist: stallscope[exporter] ; extra == 'up'
Requires-Dist: numpy>=1.26; extra == "up"
Requires-Dist: py-spy>=0.4.1; extra == "stacks"
"""


def installed(folder: Path, direct_url: object = None) -> Path:
    """Write an installation into a folder, and return the folder of its package."""
    package = folder / "site-packages/stallscope"
    package.mkdir(parents=True)
    data = package.with_name("stallscope-0.1.0.dist-info")
    data.mkdir()
    (data / "METADATA").write_text(METADATA)
    if direct_url is not None:
        (data / "direct_url.json").write_text(direct_url if isinstance(direct_url, str) else json.dumps(direct_url))
    return package


def test_a_checkout_is_installed_again_with_the_extra(tmp_path: Path) -> None:
    checkout = tmp_path / "my checkout"
    (checkout / "exporter/stallscope").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    assert install_command("up", checkout / "exporter/stallscope") == f"pip install -e '{checkout}[up]'"


def test_a_file_or_a_folder_that_was_installed_is_installed_with_the_extra(tmp_path: Path) -> None:
    wheel = tmp_path / "stallscope-0.1.0-py3-none-any.whl"
    package = installed(tmp_path / "a", {"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("stacks", package) == "pip install 'py-spy>=0.4.1'"  # the file is gone
    wheel.touch()
    assert install_command("stacks", package) == f"pip install '{wheel}[stacks]'"
    package = installed(tmp_path / "b", {"url": tmp_path.as_uri(), "dir_info": {}})
    assert install_command("up", package) == f"pip install '{tmp_path}[up]'"


@pytest.mark.parametrize(
    ("direct_url", "expected"),
    [
        (
            {"url": "https://git.example/s.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'stallscope[up] @ git+https://git.example/s.git@abc'",
        ),
        ({"url": "https://files.example/s.whl"}, "pip install 'stallscope[up] @ https://files.example/s.whl'"),
        (None, "pip install 'h11>=0.14' 'numpy>=1.26' 'requests>=2.31'"),
        ("{", "pip install 'h11>=0.14' 'numpy>=1.26' 'requests>=2.31'"),
        ("[]", "pip install 'h11>=0.14' 'numpy>=1.26' 'requests>=2.31'"),
    ],
)
def test_an_installation_of_other_origin_gets_the_requirements(
    direct_url: object, expected: str, tmp_path: Path
) -> None:
    assert install_command("up", installed(tmp_path, direct_url)) == expected


def test_a_package_that_was_only_copied_names_the_checkout(tmp_path: Path) -> None:
    assert install_command("up", tmp_path / "stallscope") == "pip install '.[up]' in a checkout of Stallscope"


def test_no_message_names_a_package_index_that_does_not_have_it() -> None:
    package = Path(__file__).parents[2] / "exporter/stallscope"
    files = [path for path in package.rglob("*") if path.suffix in (".py", ".ipynb", ".html")]
    assert [path.name for path in files if "install 'stallscope[" in path.read_text(encoding="utf-8")] == []
