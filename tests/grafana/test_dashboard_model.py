"""Grafana's own model of a dashboard, from its SDK, supports every key in the dashboards."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.grafana.pages import PAGES

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's SDK needs Python 3.11")


def understood(page: dict[str, Any]) -> Any:
    """Return the page after the model has read and written it."""
    with warnings.catch_warnings():
        # It would rather have the second model, which file provisioning does not take.
        warnings.simplefilter("ignore", DeprecationWarning)
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard

        register_default_plugins()
        return json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(json.dumps(page)))))


def lost(written: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of values that the second lacks."""
    if isinstance(written, dict) and isinstance(kept, dict):
        for key, value in written.items():
            if key in kept:
                yield from lost(value, kept[key], f"{path}.{key}")
            elif value is not None:  # which is as good as nothing, as in an override that takes a limit away
                yield f"{path}.{key}"
    elif isinstance(written, list) and isinstance(kept, list) and len(written) == len(kept):
        for number, (one, other) in enumerate(zip(written, kept, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif written != kept:
        yield path


@pytest.mark.parametrize("uid", PAGES)
def test_the_model_loses_nothing(uid: str) -> None:
    page = PAGES[uid]
    assert list(lost(page, understood(page))) == []


def test_an_option_that_no_panel_has_is_noticed() -> None:
    page = json.loads(json.dumps(PAGES["stallscope-run"]))
    panel = next(panel for panel in page["panels"] if panel["type"] == "stat")
    panel["options"]["colourMode"] = "value"
    assert [path for path in lost(page, understood(page)) if path.endswith("colourMode")]
