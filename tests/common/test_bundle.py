"""The bundle's folders: inside an installed package, else around a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.common.bundle import FOLDERS, bundle_folder


@pytest.mark.parametrize("name", FOLDERS)
def test_every_folder_of_this_checkout_is_found(name: str) -> None:
    assert bundle_folder(name).is_dir()


def test_an_installed_package_has_the_folders_inside(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "stallscope"
    (package / "bundle" / "alerts").mkdir(parents=True)
    assert bundle_folder("alerts", package) == package / "bundle" / "alerts"


def test_a_checkout_has_the_folders_at_its_top(tmp_path: Path) -> None:
    package = tmp_path / "exporter" / "stallscope"
    package.mkdir(parents=True)
    (tmp_path / "alerts").mkdir()
    (tmp_path / "pyproject.toml").touch()
    assert bundle_folder("alerts", package) == tmp_path / "alerts"


def test_a_stray_folder_around_an_installed_package_is_not_taken(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "stallscope"
    package.mkdir(parents=True)
    (tmp_path / "alerts").mkdir()
    with pytest.raises(FileNotFoundError, match="alerts/ is missing from"):
        bundle_folder("alerts", package)


def test_an_unknown_folder_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no folder 'deploy'"):
        bundle_folder("deploy")
