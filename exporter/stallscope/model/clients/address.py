"""The default addresses of Prometheus and of the exporter."""

from __future__ import annotations

import os

from stallscope.common.local_stack import newest_stack

VARIABLE = "STALLSCOPE_PROMETHEUS_URL"
LOCAL = "http://localhost:9090"
LOCAL_EXPORTER = "http://localhost:19400"
LOCAL_STACK = "a running `stallscope up`"


def default_url() -> str:
    """Return the address in the environment, or that of a running `stallscope up`, or this machine's."""
    if url := os.environ.get(VARIABLE):
        return url
    stack = newest_stack()
    return stack.prometheus if stack else LOCAL


def default_exporter() -> str:
    """Return the address of the exporter of a running `stallscope up`, or this machine's."""
    stack = newest_stack()
    return stack.exporter if stack else LOCAL_EXPORTER
