"""Runs found by name on a real Prometheus, and errors for runs that are not found."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from stallscope.lab.replay.series import Series
from stallscope.model.analysis.runs import (
    AmbiguousRunError,
    Claim,
    NoDataError,
    Place,
    Run,
    RunError,
    UnknownRunError,
    find_run,
    run_names,
)
from tests.analysis.scrapes import INTERVAL, SCRAPES, Held, gauge, of_rank, scraped

LATE = range(17, 45)
NAME = 'od"d\\|.*\n\x1b'
"""A run's name with the special characters of PromQL and regular expressions."""


def everything() -> Iterator[Series]:
    yield from of_rank("resnet50", 0, uuid="GPU-a", world_size=12)
    yield from of_rank("resnet50", 10, uuid="GPU-b", instance="other:19400", world_size=12)
    yield from of_rank("resnet50", 2, uuid="", instance="other:19400", world_size=12)
    yield from of_rank("late", only=LATE)
    yield from of_rank("east/red/twins", instance="slashes")
    yield from of_rank("over", state="finished")
    for cluster, namespace in (("east", "red"), ("west", "red"), ("west", "blue")):
        yield from of_rank("twins", instance=f"{cluster}-{namespace}", cluster=cluster, namespace=namespace)
    yield from of_rank("moved", instance="first", only=range(20))
    yield from of_rank("moved", instance="second", only=range(20, SCRAPES))
    for job in ("stallscope", "again"):
        for each in of_rank("twice", uuid="GPU-c"):
            yield Series(each.name, {**each.labels, "job": job}, each.values)
    for job, scrapes in (("stallscope", range(25)), ("again", range(25, SCRAPES))):
        for each in of_rank("handed", uuid="GPU-d", only=scrapes):
            yield Series(each.name, {**each.labels, "job": job}, each.values)
    yield from of_rank(NAME)


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    with scraped(list(everything())) as held:
        yield held


def find(held: Held, name: str, cluster: str | None = None, namespace: str | None = None) -> Run:
    return find_run(held.server, name, held.start - 3600, held.end, cluster=cluster, namespace=namespace)


def message(held: Held, name: str, kind: type[RunError], cluster: str | None = None) -> str:
    with pytest.raises(kind) as refused:
        find(held, name, cluster)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_run_has_the_places_and_claims_of_its_ranks(held: Held) -> None:
    run = find(held, "resnet50")
    job = "stallscope"
    assert run.places == (
        Place("0", job, "resnet50:19400"),
        Place("2", job, "other:19400"),
        Place("10", job, "other:19400"),
    )
    assert run.claims == (
        Claim("0", job, "resnet50:19400", "0", "GPU-a"),
        Claim("2", job, "other:19400", "2", ""),
        Claim("10", job, "other:19400", "10", "GPU-b"),
    )
    assert run.instances == ("resnet50:19400", "other:19400")
    assert run.ranks == ("0", "2", "10")
    assert (run.world_size, run.info["framework"]) == (12, "pytorch")
    assert (run.cluster, run.namespace) == ("", "")


def test_start_and_end_are_exact_to_the_scrape(held: Held) -> None:
    late = find(held, "late")
    assert (late.start, late.end) == (held.start + LATE.start * INTERVAL, held.start + (LATE.stop - 1) * INTERVAL)
    assert not late.goes_on
    whole = find_run(held.server, "resnet50", held.start, held.end)
    assert whole.end == held.end
    half = find_run(held.server, "resnet50", held.start - 3600, held.start + 10.5 * INTERVAL)
    assert (half.start, half.end) == (held.start, held.start + 10 * INTERVAL)


def test_an_exporter_that_two_jobs_scrape_counts_once(held: Held) -> None:
    run = find(held, "twice")
    assert run.places == (Place("0", "again", "twice:19400"),)
    assert [claim.job for claim in run.claims] == ["again"]


def test_an_exporter_whose_job_was_renamed_counts_under_both_names(held: Held) -> None:
    run = find(held, "handed")
    assert {place.job for place in run.places} == {"stallscope", "again"}
    assert (run.ranks, run.instances) == (("0",), ("handed:19400",))
    found = held.server.query(f"count(stallscope_training_step{{{run.matchers}}})", held.end)
    assert [each.value for each in found] == [1]


def test_a_run_goes_on_unless_its_ranks_ended(held: Held) -> None:
    assert find(held, "resnet50").goes_on
    over = find(held, "over")
    assert not over.goes_on
    assert over.states == {"finished": 1}


def test_a_rank_that_moved_has_both_places(held: Held) -> None:
    run = find(held, "moved")
    assert run.ranks == ("0",)
    assert set(run.instances) == {"first", "second"}


def test_an_ambiguous_name_is_an_error(held: Held) -> None:
    error = message(held, "twins", AmbiguousRunError)
    assert error == (
        "several runs are called 'twins'; choose one with --cluster and --namespace, or as CLUSTER/NAMESPACE/RUN: "
        "east/red/twins, west/blue/twins, west/red/twins"
    )
    error = message(held, "twins", AmbiguousRunError, cluster="west")
    assert "choose one with --namespace, or as NAMESPACE/RUN: blue/twins, red/twins" in error
    assert find(held, "twins", cluster="east").instances == ("east-red",)
    assert find(held, "twins", cluster="west", namespace="blue").instances == ("west-blue",)
    assert "RUN: east/red/twins, west" in message(held, "twins", UnknownRunError, cluster="north")


def test_cluster_and_namespace_in_a_name_take_precedence(held: Held) -> None:
    assert find(held, "west/blue/twins", cluster="east", namespace="red").instances == ("west-blue",)
    assert find(held, "blue/twins").instances == ("west-blue",)
    assert find(held, "red/twins", cluster="east").instances == ("east-red",)
    assert find(held, "//late").name == "late"
    assert "or as CLUSTER/NAMESPACE/RUN: east/red/twins, west/red/twins" in message(
        held, "red/twins", AmbiguousRunError
    )
    assert "RUN: east/red/twins, west" in message(held, "east/blue/twins", UnknownRunError)
    assert "no run 'west/blue/twin' between" in message(held, "west/blue/twin", UnknownRunError)
    assert "did you mean twins" in message(held, "west/blue/twin", UnknownRunError)


def test_a_name_with_slashes_is_first_tried_as_a_whole(held: Held) -> None:
    assert find(held, "east/red/twins").instances == ("slashes",)
    assert find(held, "//east/red/twins").instances == ("slashes",)


def test_a_name_is_matched_literally(held: Held) -> None:
    assert find(held, NAME).name == NAME
    assert message(held, "res.*", UnknownRunError)


def test_similar_names_are_suggested(held: Held) -> None:
    assert "did you mean resnet50?" in message(held, "resnet5", UnknownRunError)
    known = 'east/red/twins, handed, late, moved, od"d\\|.*\\n\\x1b, over, resnet50, twice and 1 more'
    assert f"known runs are {known}" in message(held, "xyz", UnknownRunError)


def test_a_run_of_another_time_has_its_own_error(held: Held) -> None:
    with pytest.raises(UnknownRunError, match=r"'late' reported nothing between .* UTC; try another time"):
        find_run(held.server, "late", held.start, held.start + 5 * INTERVAL)


def test_run_names_lists_all_runs_of_a_time(held: Held) -> None:
    names = ["resnet50", "late", "over", "twins", "twice", "handed", "moved", "east/red/twins", NAME]
    assert run_names(held.server, held.start, held.end) == sorted(names)


def test_a_server_without_data_has_its_own_error() -> None:
    with scraped([Series("up", {"job": "node"}, gauge(1))]) as empty:
        assert re.search(
            r"has no Stallscope data between .*; is it the right server", message(empty, "resnet50", NoDataError)
        )


def test_exporters_without_training_have_their_own_error() -> None:
    exporters = [Series("stallscope_build_info", {"instance": f"{n}:19400"}, gauge(1)) for n in ("a", "b")]
    with scraped(exporters) as held:
        error = message(held, "resnet50", NoDataError)
    assert "scrapes 2 Stallscope exporters, but no training reported" in error
