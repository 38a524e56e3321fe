from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from stallscope.common import logs

EVENT = logging.getLogger("stallscope.node.web.http.server")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield io.StringIO()
    root.handlers[:], root.level, logging.raiseExceptions = handlers, level, raising


def test_a_plain_line_holds_time_level_place_message_and_fields(log: io.StringIO) -> None:
    logs.configure("info", "plain", log)
    EVENT.warning("no reports through %s", "/run/x", extra={"fields": {"cause": "busy"}})
    time, rest = log.getvalue().split(" ", 1)
    assert time.startswith("ts=2")
    assert time.endswith("Z")
    assert rest == 'level=warning logger=web.http.server msg="no reports through /run/x" cause=busy\n'


def test_a_json_line_is_one_object_with_the_same(log: io.StringIO) -> None:
    logs.configure("info", "json", log)
    EVENT.error('a "quoted"\nname', extra={"fields": {"cause": "busy"}})
    reported = json.loads(log.getvalue())
    assert (reported["level"], reported["logger"], reported["msg"], reported["cause"]) == (
        "error",
        "web.http.server",
        'a "quoted"\nname',
        "busy",
    )


@pytest.mark.parametrize("form", logs.FORMATS)
def test_an_exception_or_a_hostile_name_stays_on_one_line(log: io.StringIO, form: str) -> None:
    logs.configure("info", form, log)
    try:
        raise ValueError("a\nb")
    except ValueError:
        EVENT.exception("run x\nts=forged level=error\u2028\x85")
    assert len(log.getvalue().splitlines()) == 1
    assert "ValueError" in log.getvalue()


def test_the_level_decides_and_can_be_changed_under_way(log: io.StringIO) -> None:
    logs.configure("warning", "plain", log)
    EVENT.info("quiet")
    assert log.getvalue() == ""
    logs.configure("debug", "plain", log)
    EVENT.debug("loud")
    assert log.getvalue().count("\n") == 1


def test_a_closed_log_stream_causes_no_error(log: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "plain", log)
    log.close()
    EVENT.info("into the void")
    assert capsys.readouterr().err == ""


def test_what_clients_cause_again_and_again_is_logged_a_few_times_a_minute_with_the_number_dropped(
    log: io.StringIO,
) -> None:
    now = [100.0]
    logs.configure("info", "plain", log)
    (handler,) = logging.getLogger().handlers
    handler.filters[:] = [logs.RateLimit(lambda: now[0])]
    for second in (0, 59, 61, 62):
        now[0] = 100.0 + second
        for number in range(100):
            EVENT.warning("run %s failed", f"{second}.{number}")
        logging.getLogger("stallscope.node.collectors.gpu.gpu").warning("GPU %d is gone", second)
    messages = re.findall('msg="([^"]*)"(.*)', log.getvalue())
    assert [message for message, _ in messages if message.startswith("GPU")] == [
        f"GPU {second} is gone" for second in (0, 59, 61, 62)
    ]
    runs = [message for message in messages if message[0].startswith("run")]
    assert runs[:20] == [(f"run 0.{number} failed", "") for number in range(20)]
    assert runs[20:] == [
        ("run 61.0 failed", " dropped=180"),
        *((f"run 61.{number} failed", "") for number in range(1, 20)),
    ]


def test_other_messages_of_the_same_file_are_not_dropped(log: io.StringIO) -> None:
    logs.configure("info", "plain", log)
    for _ in range(1000):
        EVENT.warning("a flood")
    EVENT.warning("something else")
    assert log.getvalue().count("a flood") == 20
    assert log.getvalue().count("something else") == 1
