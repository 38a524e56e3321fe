from __future__ import annotations

import pytest

from stallscope.node.web.http.negotiation import accepts_gzip, accepts_openmetrics

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3_TEXT_FIRST = (
    "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.4"
)
PROMETHEUS_2_5 = "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS_2_42, True),
        (PROMETHEUS_3, True),
        (PROMETHEUS_3_TEXT_FIRST, False),
        (PROMETHEUS_2_5, False),
        ("application/openmetrics-text", True),
        ('application/openmetrics-text; version="1.0.0"', True),
        ("APPLICATION/OPENMETRICS-TEXT;VERSION=1.0.0", True),
        ("text/plain;q=0.9,application/openmetrics-text;version=1.0.0;q=0.9", True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;version=1.0.0;q=0", False),
        ("application/openmetrics-text;version=1.0.0;q=nonsense", False),
        ("application/openmetrics-text;version=1.0.0;q=nan", False),
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/json", False),
        (",;q=,;;=", False),
    ],
)
def test_the_format_goes_by_the_weights_of_the_accept_header(accept: str, openmetrics: bool) -> None:
    assert accepts_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("accept_encoding", "gzip"),
    [
        ("gzip", True),
        ("GZIP", True),
        ("gzip, deflate, br", True),
        ("deflate;q=1, gzip;q=0.5", True),
        ("*", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("x-gzipped", False),
    ],
)
def test_gzip_is_for_who_takes_it(accept_encoding: str, gzip: bool) -> None:
    assert accepts_gzip(accept_encoding) is gzip
