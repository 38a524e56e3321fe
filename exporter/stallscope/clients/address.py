"""The default address of Prometheus."""

from __future__ import annotations

import os

VARIABLE = "STALLSCOPE_PROMETHEUS_URL"
LOCAL = "http://localhost:9090"
STACK_PORT = 19090
"""Port of the Prometheus that `stallscope up` starts."""


def default_url() -> str:
    """Return the address in the environment, or this machine's."""
    return os.environ.get(VARIABLE) or LOCAL
