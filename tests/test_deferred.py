from __future__ import annotations

import colorsys
import sys

import pytest

from tests.deferred import Deferred


def test_a_module_is_imported_at_the_first_use_of_a_name_and_not_for_a_private_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys")
    deferred = Deferred("colorsys")
    assert getattr(deferred, "_fixture", None) is None
    assert "colorsys" not in sys.modules
    assert deferred.rgb_to_hls(0, 0, 1) == colorsys.rgb_to_hls(0, 0, 1)
    assert "colorsys" in sys.modules
