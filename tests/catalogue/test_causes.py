"""The table of causes, and the page that it makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from alerts import alert_rules, inhibition_rules
from exporter.tools import causes_reference
from stallscope.model.catalogue.causes import CAUSES, CODES, EVERYTHING, PERFORMANCE, REMAINDERS, Cause, Domain

ROOT = Path(__file__).parents[2]


def test_the_page_of_causes_is_what_the_table_says() -> None:
    printed = causes_reference.page()
    assert (ROOT / "alerts" / "CAUSES.md").read_text(encoding="utf-8") == printed, "run `make generate`"


def test_the_rule_of_codes_is_what_the_table_says() -> None:
    printed = causes_reference.rules()
    assert (ROOT / "prometheus" / "rules" / "causes.yml").read_text(encoding="utf-8") == printed, "run `make generate`"


def test_the_alerts_are_generated_from_the_table() -> None:
    files = dict(alert_rules.files())
    for name, text in files.items():
        assert (ROOT / "alerts" / name).read_text(encoding="utf-8") == text, "run `make generate`"
        assert {path.name for path in (ROOT / "alerts").glob("*.yml")} == files.keys() | {"alertmanager.yml"}


def test_who_mutes_whom_is_generated_from_the_table() -> None:
    for path, text in inhibition_rules.files():
        assert path.read_text(encoding="utf-8") == text, "run `make generate`"


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_an_alert_mutes_only_alerts_that_exist_and_no_graver_one(cause: Cause) -> None:
    targets = [CAUSES[name] for name in cause.mutes if name in CAUSES]
    others = {PERFORMANCE, EVERYTHING, "TrainingTelemetryMissing"}
    assert {target.name for target in targets} | others >= set(cause.mutes)
    assert not cause.mutes or cause.severity in ("critical", "warning")
    assert cause.severity == "critical" or "critical" not in {target.severity for target in targets}


def test_an_unknown_phrase_in_a_description_is_an_error_that_names_the_cause() -> None:
    description = alert_rules.description
    cause = CAUSES["input_bound"]
    assert cause.rule
    with pytest.raises(ValueError, match=r"input_bound: unknown name \{loss\}; use one of run, rank"):
        description(cause, replace(cause.rule, description="{loss} of {{ $value }}"))


def test_every_verdict_has_a_code_of_its_own() -> None:
    assert len(set(CODES.values())) == len(CODES) == len(CAUSES) + len(REMAINDERS)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_the_code_of_a_cause_begins_with_the_number_of_its_domain(cause: Cause) -> None:
    assert cause.code // 100 == 1 + get_args(Domain).index(cause.domain)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_a_cause_has_a_short_title_and_a_remedy_of_one_sentence(cause: Cause) -> None:
    assert cause.title[0].isupper()
    assert len(cause.title) <= 48
    assert not cause.title.endswith(".")
    assert cause.remedy.endswith(".")
    assert len(cause.remedy) <= 120


def test_no_cause_has_the_name_of_a_verdict_without_one() -> None:
    assert not CAUSES.keys() & REMAINDERS.keys()
