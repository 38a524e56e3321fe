"""The cases are as many, as various and as independent of the rules as a score needs."""

from __future__ import annotations

import ast
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from stallscope.model.catalogue.causes import CAUSES
from stallscope.model.catalogue.metrics import FAMILIES, Family, MetricType
from tests.known_names import read_by
from tests.scenarios import CASES, HELD_OUT, LIVES
from tests.scenarios.case import KINDS, Case, Series, render
from tests.scenarios.cases.settings import WELL
from tests.scenarios.runner import SERVING

ROOM = Path(__file__).parent
GENERATOR = sorted(
    {
        *(ROOM / "cases").rglob("*.py"),
        *(
            ROOM / f"{name}.py"
            for name in [
                "__init__",
                "case",
                "disturbance",
                "machines",
                "model",
                "page",
                "page_gpu",
                "page_host",
                "page_serving",
                "page_training",
                "reports",
                "sheet",
                "story",
                "utilization",
                "world",
            ]
        ),
    }
)
MAY_KNOW = re.compile(
    r"numpy(\.typing)?|stallscope\.model\.catalogue\.metrics|stallscope\.lab\.(replay\.series|simulation\.simulated_run)"
    r"|stallscope\.node\.(drivers\.(peak_flops|signals)|intake\.runs|sampling\.(integrals|reading))"
    r"|tests\.scenarios\.(case|cases|disturbance|machines|model|page\w*|reports|sheet|story|utilization|world)(\.\w+)*"
)
META = ("healthy", "compute_bound", "insufficient_data")
OF_SERVERS = {"serving_idle": "ServingIdle", "serving_starved": "ServingStarved", "serving_kv_full": "ServingKvFull"}
"""Alerts of the causes of inference servers, which are no part of the catalogue."""
ALERTS = {**{name: cause.alert for name, cause in CAUSES.items()}, **OF_SERVERS}
VERDICTS = {*ALERTS, *META, "serving_busy"}
META_ALERTS = {
    "StallscopeExporterDown",
    "StallscopeSourceFailing",
    "StallscopeSourceStuck",
    "StallscopeReportsRejected",
    "StallscopeSeriesDropped",
    "TrainingTelemetryMissing",
}
WITHOUT_NUMBER = frozenset(
    # An event, a state, a count of one, or a cause that others' numbers make.
    [
        "hang_spin",
        "hang_io",
        "clocks_limited",
        "xid_hw",
        "xid_app",
        "lost",
        "ecc_uncorrected",
        "row_remap_pending",
        "row_remap_failed",
        "pcie_degraded",
        "nvlink_errors",
        "nvlink_down",
        "shared_unexpectedly",
        "oom_kill",
        "network_errors",
    ]
)
ALL = (*CASES, *HELD_OUT, *LIVES)
BY_NAME = {case.name: case for case in ALL}
VARIOUS = [
    BY_NAME[name]
    for name in (
        "input_cpu_saturated_two_nodes",
        "input_cgroup_throttled_pods",
        "input_remote_latency_server",
        "ac_01_batch_of_four",
        "checkpoint_stall_laptop",
        "restart_loop_server",
        "stalled_in_silence",
        "loss_nonfinite_laptop",
        "lost_node",
        "low_mfu_node",
        "ac_17_two_jobs_on_one_gpu",
        "clocks_limited_node",
        "driver_is_silent",
        "reports_are_refused",
        "run_that_finished",
        "held_one_worker_on_a_mig_instance",
        "held_four_processors_for_a_t4",
        "held_out_of_memory_again_and_again",
        "held_late_rank_of_three",
    )
]


@pytest.fixture(scope="module", params=VARIOUS, ids=lambda case: case.name)
def rendered(request: pytest.FixtureRequest) -> tuple[Case, list[Series]]:
    case: Case = request.param
    return case, render(case, 3, noise=True, labels={"cluster": "here"})


def of(kind: str) -> list[Case]:
    return [case for case in CASES if case.kind == kind]


def test_names_are_unique_words() -> None:
    counted = Counter(case.name for case in ALL)
    assert not [name for name, count in counted.items() if count > 1]
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name) for name in counted)


def test_there_are_as_many_as_a_score_needs() -> None:
    assert {case.kind for case in CASES} == set(KINDS)
    assert len(of("positive")) >= 40
    assert len(of("negative")) >= 20
    assert len(of("abstention")) >= 6


def test_held_out_cases_are_as_many_and_various_as_an_honest_score_needs() -> None:
    kinds = Counter(case.kind for case in HELD_OUT)
    for kind, least in (("positive", 36), ("negative", 14), ("abstention", 4), ("near", 8)):
        assert kinds[kind] >= least
    assert len({case.cause for case in HELD_OUT if case.kind == "positive"}) >= 36


def test_held_out_cases_share_no_machine_with_the_others() -> None:
    seen = {node for case in CASES for node in case.story.nodes}
    assert not seen & {node for case in HELD_OUT for node in case.story.nodes}


@pytest.mark.parametrize("cause", [name for name, cause in CAUSES.items() if cause.alert])
def test_every_cause_has_a_case(cause: str) -> None:
    assert [case for case in of("positive") if case.cause == cause]


@pytest.mark.parametrize(
    "cause", [name for name, cause in CAUSES.items() if cause.alert and name not in WITHOUT_NUMBER]
)
def test_every_cause_with_a_threshold_has_cases_below_and_above_it(cause: str) -> None:
    levels = {case.level for case in of("near") if case.cause == cause}
    if cause in ("loss_nonfinite", "input_cgroup_throttled"):  # three losses after another: four are the positive case
        assert 0.8 in levels
    else:
        assert levels == {0.8, 1.25}


def test_servers_have_a_case_of_each_cause_under_names_that_the_rules_read() -> None:
    cases = [case for case in CASES if case.story.servers]
    assert {case.cause for case in cases} >= {*OF_SERVERS, "serving_busy"}
    rendered = {each.name for case in cases for each in render(case, 1, noise=False, labels={})}
    assert {name for name in rendered if name.startswith(("vllm:", "sglang:"))} < read_by((SERVING,))


def test_acceptance_criteria_have_cases() -> None:
    reported = {case.name[:5] for case in CASES if case.name.startswith("ac_")}
    assert reported == {f"ac_{number:02}" for number in (1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 17)}


def test_words_are_those_of_the_contract() -> None:
    for case in ALL:
        assert case.subject in ("run", "gpu", "server", "host")
        assert case.cause in VERDICTS, case.name
        assert case.acceptable | case.forbidden <= VERDICTS, case.name
        assert not case.forbidden & ({case.cause} | case.acceptable), case.name
        known = {*ALERTS.values()} | META_ALERTS
        assert case.alerts | case.allowed <= known, case.name


def test_positive_cases_expect_the_alert_of_their_cause() -> None:
    for case in ALL:
        if case.kind == "positive" or (case.level or 0) > 1:
            if case.name == "straggler_hw_narrow_slot":
                continue  # the slot is recorded; the run may be too
            assert ALERTS[case.cause] in case.alerts, case.name
        elif case.kind in ("negative", "near"):
            assert not case.alerts, case.name


def test_near_cases_say_how_near_and_stay_silent_under() -> None:
    for case in ALL:
        if case.kind == "near":
            assert case.level in ((0.7, 1.4) if case in HELD_OUT else (0.8, 1.25)), case.name
            assert case.level > 1 or case.acceptable >= WELL


def test_culprits_exist() -> None:
    for case in ALL:
        culprit = dict(case.culprit or ())
        machines = {f"node{number}:19400": node for number, node in enumerate(case.story.nodes)}
        if "instance" in culprit:
            assert int(culprit.get("gpu", "0")) < machines[culprit["instance"]].gpus, case.name
        if "rank" in culprit:
            run = next(run for run in case.story.runs if run.name == case.run)
            assert int(culprit["rank"]) < len(run.ranks), case.name


def test_runs_and_states_name_only_what_there_is() -> None:
    for case in ALL:
        story = case.story
        gpus = sum(node.gpus for node in story.nodes)
        assert all(gpu < gpus for each in story.gpus for gpu in each.only or ()), case.name
        for run in story.runs:
            assert all(gpu < gpus for held in run.ranks for gpu in held), case.name
            assert all(rank < len(run.ranks) for each in run.work for rank in each.only or ()), case.name
        assert case.subject != "run" or case.run in {run.name for run in story.runs}, case.name


def test_causes_hold_long_enough_to_be_seen() -> None:
    for case in ALL:
        assert 0 <= case.onset < case.length, case.name
        assert case.length <= 125, case.name


_MEASURED = {
    "input": "data_wait",
    "h2d_bound": "host_copy",
    "sync_stall": "other",
    "checkpoint_stall": "checkpoint",
    "evaluation_overhead": "evaluation",
    "callback_stall": "logging",
    "rollout_wait": "rollout",
    "comm_bound": "communication",
}


def _phase_of(case: Case) -> str | None:
    if case.name.startswith("late_batches"):
        return None  # the others wait in communication
    return _MEASURED.get("input" if case.cause.startswith("input_") else case.cause)


@pytest.mark.parametrize(
    "case",
    [case for case in ALL if case.kind in ("positive", "near") and case.lost is not None and _phase_of(case)],
    ids=lambda case: case.name,
)
def test_lost_shares_are_those_that_phases_have(case: Case) -> None:
    series = render(case, 1, noise=False, labels={})
    spent: dict[str, float] = {}
    last = None if case.end is None else int(case.end * 2)
    for each in series:
        if each.name == "stallscope_training_phase_seconds_total" and each.labels["run"] == case.run:
            values = [
                value for value in each.values[int(case.onset * 2) + 2 : last] if value is not None and value == value
            ]
            if values and each.labels["rank"] == "0":
                spent[each.labels["phase"]] = values[-1] - values[0]
    assert case.lost is not None
    assert spent[str(_phase_of(case))] / sum(spent.values()) == pytest.approx(case.lost, abs=0.015)


def _families() -> Iterator[tuple[str, Family]]:
    for family in FAMILIES.values():
        for name in family.series_names:
            yield name, family


SERIES_NAMES = dict(_families())


def test_only_names_labels_and_values_of_the_catalogue_are_rendered(rendered: tuple[Case, list[Series]]) -> None:
    for each in rendered[1]:
        if each.name == "up":
            assert set(each.labels) == {"cluster", "job", "instance"}
            continue
        family = SERIES_NAMES[each.name]
        own = set(each.labels) - {"cluster", "job", "instance"}
        bucket = {"le"} if family.type is MetricType.HISTOGRAM and each.name.endswith("_bucket") else set()
        assert own <= {*family.all_labels, *bucket}, each
        for label, values in family.values:
            assert each.labels.get(label, values[0]) in values, each


def test_each_series_is_rendered_once(rendered: tuple[Case, list[Series]]) -> None:
    counted = Counter((each.name, frozenset(each.labels.items())) for each in rendered[1])
    assert not [key for key, count in counted.items() if count > 1]


def test_every_value_is_a_number_on_the_grid(rendered: tuple[Case, list[Series]]) -> None:
    case, series = rendered
    for each in series:
        assert len(each.values) == case.length * 2 + 1
        assert all(value is None or math.isfinite(value) for value in each.values), each.name
        assert any(value is not None for value in each.values), each.name


def test_counters_fall_only_where_something_began_again(rendered: tuple[Case, list[Series]]) -> None:
    case, series = rendered
    restarts = max((len(run.restarts) for run in case.story.runs), default=0)
    for each in series:
        family = SERIES_NAMES.get(each.name)
        if family is None or family.type not in (MetricType.COUNTER, MetricType.HISTOGRAM, MetricType.SUMMARY):
            continue
        values = [value for value in each.values if value is not None]
        falls = sum(later < earlier for earlier, later in pairwise(values))
        allowed = restarts if each.name.startswith("stallscope_training_") else 1
        assert falls <= allowed, each.name


def test_gpus_show_what_a_page_of_their_kind_shows() -> None:
    """The families of a recorded page of a healthy GPU, and those of owners, which no recording has."""
    for name, capture in (
        ("input_single_thread_server", "stand-in__nvidia-l40s__590.48.01.golden.txt"),
        ("healthy_node", "stand-in__nvidia-h100-80gb-hbm3__590.48.01.golden.txt"),
        ("healthy_laptop", "stand-in__nvidia-geforce-rtx-4080-super__590.48.01.golden.txt"),
    ):
        page = (ROOM.parent / "captures" / capture).read_text()
        recorded = set(re.findall(r"^(stallscope_gpu_\w+)\{", page, flags=re.MULTILINE))
        reported = {each.name for each in render(BY_NAME[name], 1, noise=False, labels={})}
        reported = {each for each in reported if re.match(r"stallscope_gpu_(?!owner_)", each)}
        assert reported ^ recorded == {"stallscope_gpu_xid_events_total", "stallscope_gpu_xid_last_timestamp_seconds"}


@pytest.mark.parametrize("path", GENERATOR, ids=lambda path: str(path.relative_to(ROOM)))
def test_the_generator_knows_nothing_of_the_rules(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [str(node.module)]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called.split(".")[-1] not in ("open", "read_text", "read_bytes", "run", "import_module"), called
            continue
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.search(r"\.ya?ml|stallscope:threshold|prometheus/rules", node.value), node.value
            continue
        else:
            continue
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or MAY_KNOW.fullmatch(name), name
