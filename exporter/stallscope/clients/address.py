"""Where Prometheus is unless somebody says otherwise."""

from __future__ import annotations

import os

VARIABLE = "STALLSCOPE_PROMETHEUS_URL"
LOCAL = "http://localhost:9090"


def default_url() -> str:
    """The address in the environment, or this machine's."""
    return os.environ.get(VARIABLE) or LOCAL
