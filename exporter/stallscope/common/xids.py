"""Classes of Xids, as the alerting rules have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from stallscope.common.bundle import bundle_folder

_CLASS = re.compile(r'class: hw, action: "([^"]*)"\}\n +expr: .*\{xid=~"([0-9|]+)"')


@cache
def xids_of_hardware() -> Mapping[str, str]:
    """Return the action for each Xid caused by hardware, by number, from the alerting rules."""
    rules = (bundle_folder("prometheus") / "rules/xid.yml").read_text(encoding="utf-8")
    return {xid: action for action, xids in _CLASS.findall(rules) for xid in xids.split("|")}
