"""The views of the screen as text."""

from __future__ import annotations

import pytest

from stallscope.common.formatting import percent
from stallscope.model.catalogue.metrics import FAMILIES, MetricType
from stallscope.model.view import observer
from stallscope.model.view.model import Node
from stallscope.model.view.observer import Observer
from stallscope.model.view.phase_shares import PhaseShare
from stallscope.model.view.verdicts import OddRank, RunName, Verdict, Verdicts
from stallscope.node.sampling.reading import Sample
from stallscope.tools.terminal.feed import ExporterState
from stallscope.tools.terminal.gpu_lines import SORTS
from stallscope.tools.terminal.lines import ASCII, Span, fit, length_of, phase_bar, plain, share, width_of, wrapped
from stallscope.tools.terminal.screen import Screen
from stallscope.tools.terminal.views import HELP, VIEWS, overview, title
from stallscope.training.protocol.stacks import Place
from tests.terminal.pages import NOW, node, page, rendered, sample

LATER = (1000, 1014, 1028, 1040)
"""Seconds of pages that are far enough apart for training rates."""
VERDICTS = Verdicts(
    server="http://prometheus:9090",
    runs={RunName("resnet50", ""): Verdict("input_few_workers", 0.23, 0.31)},
    ambiguous=frozenset(),
    gpus={"GPU-0": Verdict("input_few_workers", 0.23), "GPU-1": Verdict("thermal_throttle", 0.126)},
    age=12.0,
    problem="",
)


def screen(
    found: Node | None, *, verdicts: Verdicts | None = None, problem: str = "", name: str = "node1:19400"
) -> Screen:
    return Screen((ExporterState(name, found, None if found is None else 14.2 if problem else 0.4, problem),), verdicts)


def shown(of: Screen, width: int = 80, view: str = "Overview", sort: str = "number") -> str:
    return "\n".join(plain(each) for each in VIEWS[view](of, sort, width))


def test_the_overview_in_eighty_columns() -> None:
    of = screen(node(*LATER))
    assert plain(title(of, "12:34:56")) == "stallscope top  12:34:56  2 GPUs  1 run"
    assert shown(of) == OVERVIEW


OVERVIEW = """\
node1:19400
CPU ██▍·····  30 %, busiest 95 %   memory 25 % of 256.0 GiB
waiting for CPU 12 %, I/O 3 %
GPU Activity              Memory     Power  Temp  MHz Slowed Proc Owner
0   ███████▎  90 % 20.0/48.0 GiB 250/350 W 61 °C 2490      -    2 bob, job 40
1   ███████▎  90 % 21.0/48.0 GiB 251/350 W 61 °C 2490   25 %    2 alice, job 41

resnet50   running   2 ranks   training
  step 2,080 of 10,000, 20 %, 1 h 6 min left   500 ms per step   128 samples/s
  loss 0.25   last step 1 s ago, report 0 s ago
  │data wait 30 %        │forward 20 %   │backward 40 %                 │10 %
  Phases in the last 26 s. Also: other 10 %.

No verdicts: set --prometheus.url to a Prometheus with Stallscope's rules."""


def test_verdicts_are_shown_with_the_run_and_below_a_faulty_gpu() -> None:
    said = shown(screen(node(*LATER), verdicts=VERDICTS))
    below = said.splitlines()[said.splitlines().index(OVERVIEW.splitlines()[5]) + 1]
    assert below == "    Verdict: Slowed by heat. It costs 13 % of the GPU time. Check airflow, fans"
    assert (
        "  Verdict: Waiting for data: too few workers. It costs 23 % of the GPU time, all\n"
        "  causes together 31 %. Raise num_workers and prefetch_factor, and keep workers\n"
        "  alive between epochs.\n"
    ) in said
    assert said.endswith("Verdicts: http://prometheus:9090, updated 12 s ago.")


def test_verdicts_have_a_column_where_there_is_room() -> None:
    lines = shown(screen(node(*LATER), verdicts=VERDICTS), 120).splitlines()
    (head,) = (line for line in lines if line.startswith("GPU"))
    assert head.endswith("Verdict")
    assert lines[lines.index(head) + 2].endswith("alice, job 41 Slowed by heat, 13 %")


def test_an_unknown_verdict() -> None:
    said = shown(screen(node(*LATER), verdicts=VERDICTS._replace(runs={}, ambiguous=frozenset(VERDICTS.runs))))
    assert "Verdict: unknown. Prometheus has several runs of this name" in said
    lost = VERDICTS._replace(runs={}, gpus={}, age=None, problem="http://prometheus:9090: no answer within 5 s")
    said = shown(screen(node(*LATER), verdicts=lost), 100)
    assert said.endswith("No newer verdicts: http://prometheus:9090: no answer within 5 s. No verdicts are known.")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_screen(view: str, width: int) -> None:
    lines = VIEWS[view](screen(node(*LATER, gpus=4, ranks=4), verdicts=VERDICTS), "number", width)
    widest = max(lines, key=length_of)
    assert length_of(widest) <= width, plain(widest)


def test_unknown_values_are_dashes() -> None:
    missing = (
        observer.BUSY,
        observer.UTILIZATION,
        observer.POWER,
        observer.TEMPERATURE,
        observer.PROCESSES,
        observer.OWNER_INFO,
    )
    (row,) = (
        line for line in shown(screen(node(*LATER, gpus=1, ranks=0, without=missing))).splitlines() if line[:1] == "0"
    )
    assert row.split() == ["0", "-", "20.0/48.0", "GiB", "-", "-", "2490", "-", "-", "-"]


def test_problems_are_shown_above_the_gpus() -> None:
    extra = [
        sample(observer.GPU_UP, ("7", "GPU-7"), 0),
        sample(observer.LOST_INFO, ("7", "GPU-7", "gpu_lost")),
        sample(observer.LAST_READING, ("7", "GPU-7"), 1_700_000_980.0),
        sample(observer.SOURCE_UP, ("owners",), 0),
        sample(observer.RECEIVER_UP, ("udp",), 0),
        sample(observer.RECEIVER_UP, ("unix",), 1),
        sample(observer.SERIES_DROPPED, ("max_series",), 17),
    ]
    of = screen(node(1000, extra=extra))
    assert plain(title(of, "12:34:56")) == "stallscope top  12:34:56  3 GPUs (1 down)  1 run"
    said = shown(of)
    assert (
        "GPU 7 is down (gpu_lost). It fell off the bus: drain the node and reboot. Last\nreading 20 s ago.\n"
        "Source owners is down (last reading never); see the exporter's log.\n"
        "The udp receiver of training reports is not open; see the exporter's log.\n"
        "17 series were dropped at the exporter's limits.\nGPU "
    ) in said
    assert "\n7   down gpu_lost" in said


@pytest.mark.parametrize(("ratio", "text"), [(0.0, "  0 %"), (0.003, "under 1 %"), (0.06, "  6 %"), (1.0, "100 %")])
def test_a_share_is_written_as_in_the_summary(ratio: float, text: str) -> None:
    assert share(ratio) == text
    assert share(ratio).strip() == percent(ratio)


def test_many_problems_are_cut_short() -> None:
    down = [sample(observer.GPU_UP, (str(index), f"GPU-{index}"), 0) for index in range(10, 40)]
    assert "and 22 more\n" in shown(screen(node(1000, extra=down)))


def test_outdated_values_are_grey_and_have_their_age() -> None:
    lines = overview(screen(node(*LATER), problem="no answer within 5 s"), "number", 80)
    assert lines[0] == (Span("node1:19400: no answer within 5 s. The values shown are 14 s old.", "bad"),)
    roles = {span.role for each in lines[1:-1] for span in each}
    assert roles == {"stale"}


def test_an_exporter_that_never_responded() -> None:
    assert shown(screen(None)) == "node1:19400  connecting"
    assert shown(screen(None, problem="it can't be reached")) == "node1:19400: it can't be reached."


@pytest.mark.parametrize(
    ("sort", "first"), [("number", "0"), ("memory", "1"), ("power", "1"), ("owner", "1"), ("activity", "0")]
)
def test_gpus_are_sorted(sort: str, first: str) -> None:
    assert sort in SORTS
    lines = shown(screen(node(*LATER)), sort=sort).splitlines()
    assert lines[lines.index(OVERVIEW.splitlines()[3]) + 1][0] == first


def test_owners_can_be_filtered() -> None:
    of = screen(node(*LATER)).of("ALI")
    assert [gpu.index for gpu in of.exporters[0].node.gpus] == ["1"]  # type: ignore[union-attr]
    assert not of.runs  # the run is bob's
    assert [run.name.run for run in screen(node(*LATER)).of("bob").runs] == ["resnet50"]


def test_a_gpu_without_owner_belongs_to_the_owner_of_its_rank() -> None:
    of = screen(node(*LATER, ranks=1, without=[observer.OWNER_INFO])).of("bob")
    assert [gpu.index for gpu in of.exporters[0].node.gpus] == ["0"]  # type: ignore[union-attr]


@pytest.mark.parametrize("view", ["Overview", "GPUs", "Runs", "Owners"])
def test_a_filter_without_match_suggests_owners(view: str) -> None:
    said = shown(screen(node(*LATER)).of("carol"), 200, view)
    assert said.endswith("No owner matches 'carol'. Known owners: alice, job 41; bob, job 40.")
    assert "of that owner." in said
    alone = shown(screen(node(*LATER, without=[observer.OWNER_INFO, observer.RANK_INFO])).of("carol"), 200, view)
    assert alone.endswith("No owner matches 'carol'. The exporters report no owners.")


def test_a_filter_that_matches_an_owner_without_runs_suggests_no_one() -> None:
    said = shown(screen(node(*LATER)).of("alice"), view="Runs")
    assert said == "No training run of that owner."
    assert "No owner matches" not in shown(screen(None, problem="it can't be reached").of("alice"))


def test_the_other_views() -> None:
    of = screen(node(*LATER), verdicts=VERDICTS)
    assert "slowed by hw_thermal 25 % of the time\n    held by alice, job 41 (18.0 GiB)" in shown(of, view="GPUs")
    assert "Verdict of its run: Waiting for data: too few workers, 23 %." in shown(of, view="GPUs")
    assert "     1    1  running  2,080     500 ms  ███▎····  40 % backward  0 s ago" in shown(of, view="Runs")
    assert "alice, job 41     1  1        ███████▎  90 %  18.0 GiB  -" in shown(of, view="Owners")
    assert "nvme0n1 busy 50 %   Stallscope 1.2.3\n" in shown(of, view="Nodes")


def test_owners_that_share_a_gpu_have_their_own_activity() -> None:
    carol = ("0", "GPU-0", "ml", "eval-7", "main", "", "carol")
    bob = ("0", "GPU-0", "", "", "", "40", "bob")
    watching = observer.Observer()
    for second in LATER:
        extra = [
            sample(observer.OWNER_INFO, carol),
            sample(observer.OWNER_BUSY, carol, 0.2 * second),
            sample(observer.OWNER_BUSY, bob, 0.7 * second),
        ]
        found = watching.observe(page(second, gpus=1, ranks=1, extra=extra), second)
    lines = shown(screen(found), view="Owners").splitlines()
    assert lines[2].endswith("█████▋··  70 %  18.0 GiB  resnet50")  # the rank names bob as its owner
    assert lines[3].endswith("█▋······  20 %         -  -")
    said = shown(screen(found), 200, view="GPUs")
    assert "held by bob, job 40 (18.0 GiB, busy 70 %), ml/eval-7 (busy 20 %)" in said


def test_a_run_without_owner_belongs_to_the_only_owner_of_its_gpu() -> None:
    nameless = ("resnet50", "0", "0", "1", "pytorch", "node1", "", "", "", "", "", "production")
    extra = [sample(observer.RANK_INFO, nameless)]
    alone = node(*LATER, gpus=2, ranks=1, extra=extra, without=[observer.RANK_INFO])
    assert "bob, job 40       1  0        ███████▎  90 %  18.0 GiB  resnet50" in shown(screen(alone), view="Owners")


def test_free_gpus_and_unknown_owners_differ() -> None:
    without_owners = [observer.OWNER_INFO, observer.OWNER_MEMORY]
    assert "\nunknown     2  0, 1" in (said := shown(screen(node(1000, without=without_owners)), view="Owners"))
    assert said.splitlines()[2].endswith(" -  resnet50")
    owners_up = [sample(observer.SOURCE_UP, ("owners",), 1)]
    assert "\nnobody " in shown(screen(node(1000, without=without_owners, extra=owners_up)), view="Owners")


def test_a_split_gpu_itself_has_no_owner() -> None:
    split = [
        sample(observer.GPU_INFO, ("0", "MIG-0", "NVIDIA H200", *[""] * 7, "mig", "1g.18gb")),
        sample(observer.OWNER_INFO, ("0", "MIG-0", "", "", "", "", "carol", "1g.18gb")),
    ]
    lines = shown(screen(node(1000, without=[observer.OWNER_INFO], gpus=1, extra=split)), view="Owners").splitlines()
    assert len([line for line in lines if line]) == 3
    assert lines[2].split()[:4] == ["carol", "1", "0", "1g.18gb"]


def test_lost_ranks_are_shown_among_a_thousand() -> None:
    extra = [sample(observer.RANK_STATE, ("resnet50", "999", "lost"))]
    without = [observer.RANK_STATE]
    said = shown(screen(node(1000, ranks=1000, without=without, extra=extra)), view="Runs")
    assert "936 more ranks are not shown" in said
    assert "999  999  lost" in said


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\x9b31m\r\n\ud83d日本語"


@pytest.mark.parametrize("view", VIEWS)
def test_names_from_outside_can_not_control_the_terminal(view: str) -> None:
    """Every label of every parsed family contains control characters."""
    samples: list[Sample] = []
    for name in sorted(observer.WANTED):
        found = FAMILIES.get(name)
        if found is not None and found.type is not MetricType.HISTOGRAM:
            labels = ["0" if label == "rank" else HOSTILE for label in found.all_labels]
            samples.append(Sample(found, tuple(labels), 1.0))
    samples.append(sample(observer.LOST_INFO, ("1", "GPU-1", HOSTILE)))
    samples.append(sample(observer.GPU_UP, ("1", "GPU-1"), 0.0))
    page = rendered(samples)
    watching = Observer()
    for second in (0.0, 20.0):
        found_node = watching.observe(observer.wanted(page), second)
    verdicts = VERDICTS._replace(
        server=HOSTILE,
        problem=HOSTILE,
        runs={run.name: Verdict(HOSTILE, 0.5) for run in screen(found_node).runs},
        gpus=dict.fromkeys((gpu.uuid for gpu in found_node.gpus), Verdict(HOSTILE, 0.5)),
    )
    of = screen(found_node, verdicts=verdicts, problem=HOSTILE, name=HOSTILE)
    lines = [title(of, ""), *VIEWS[view](of, "number", 80)]
    assert any("evil" in plain(each) for each in lines)
    assert all(span.text.isprintable() for each in lines for span in each)


def test_in_a_hang_the_rank_that_differs_comes_first_and_equal_ranks_share_a_row() -> None:
    places = {number: Place("train.py:88", "step", "all_reduce") for number in (0, 1, 3)}
    places[2] = Place("metrics.py:46", "report", "all_gather")
    stopped = [sample(observer.LAST_STEP, ("resnet50", str(number)), NOW) for number in places]
    stopped += [sample(observer.STEP, ("resnet50", str(number)), 1024) for number in places]
    stacks = [sample(observer.STACK_INFO, ("resnet50", str(number), *place)) for number, place in places.items()]
    left_out = [observer.LAST_STEP, observer.STEP]
    found = observer.node_of(page(ranks=4, without=left_out, extra=[*stopped, *stacks]))
    odd = (OddRank("2", places[2]),)
    verdicts = VERDICTS._replace(runs={RunName("resnet50", ""): Verdict("hang_spin", 1.0, odd=odd)})
    said = shown(screen(found, verdicts=verdicts), width=160, view="Runs")
    first, second = [each.split("  ") for each in said.splitlines() if " train.py:88" in each or "differs from" in each]
    assert "Rank 2 is in all_gather at metrics.py:46, unlike most ranks." in said
    assert ("2" in first, "in all_gather at metrics.py:46" in " ".join(first)) == (True, True)
    assert "3 ranks as rank 0" in second
    assert "Phases" not in said


def test_phases_fill_the_bar_and_are_named_once() -> None:
    shares = [PhaseShare("forward", 0.6), PhaseShare("my_own", 0.37), PhaseShare("", 0.03)]
    bar, unlabelled = phase_bar(shares, 40)
    assert plain(bar) == "│forward 60 %           │my own 37 %   │"
    assert [span.role for span in bar] == ["phase:forward", "phase:my_own", "phase:"]
    assert unlabelled == "small phases 3 %"


@pytest.mark.parametrize(
    ("text", "width", "cut"),
    [
        ("short", 7, "short  "),
        ("longer", 4, "lon…"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日… "),
        ("é" * 3, 3, "ééé"),
    ],
)
def test_a_text_is_cut_to_its_cells(text: str, width: int, cut: str) -> None:
    spans = fit((Span(text),), width)
    assert "".join(span.text for span in spans) == cut
    assert sum(width_of(span.text) for span in spans) == width


def test_wide_characters_are_wrapped_by_their_cells() -> None:
    lines = wrapped("学習 " * 30 + "is down", 40)
    assert max(map(length_of, lines)) <= 40
    assert "".join(map(plain, lines)).count("学習") == 30


def test_all_characters_have_an_ascii_replacement() -> None:
    of = screen(node(*LATER), verdicts=VERDICTS, problem="gone")
    lines = [each for view in VIEWS.values() for width in (40, 80) for each in view(of, "number", width)]
    assert all(span.text.translate(ASCII).isascii() for each in [*lines, *HELP] for span in each)
