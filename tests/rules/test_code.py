"""The line of code that a verdict is about: one for each run, of the right phase, and none without samples."""

from __future__ import annotations

from tests.rules.rulebook import Rulebook, Story, gpu, growing, growing_until, host, rank, series

LINE = "run:code:ratio2m"
OF_PHASE = "run_phase:code:ratio2m"


def code(
    location: str, per_second: str, *, phase: str = "data_wait", function: str = "elastic", number: int = 0
) -> tuple[str, str]:
    """Return a line of code in a phase of a rank."""
    labels = {"run": "train", "rank": str(number), "job": "stallscope", "instance": "node1:19400"}
    return series(
        "stallscope_training_code_seconds_total",
        per_second,
        phase=phase,
        location=location,
        function=function,
        **labels,
    )


def found(location: str, cause: str, share: int, phase: str = "data_wait") -> tuple[dict[str, str], int]:
    labels = {"run": "train", "cause": cause, "phase": phase, "location": location, "function": "elastic"}
    return labels, share


WAITING: Story = rank(wait=0.3) + gpu(idle=0.3)


def test_the_line_with_the_largest_share_of_the_wait(rulebook: Rulebook) -> None:
    story = [*WAITING, code("data/augment.py:41", growing(0.18)), code("data/read.py:7", growing(0.06))]
    rulebook.check_percent(story, LINE, [found("data/augment.py:41", "input_bound", 60)])


def test_the_line_belongs_to_the_more_exact_cause_too(rulebook: Rulebook) -> None:
    story = [*WAITING, *host(0.95), code("data/augment.py:41", growing(0.18))]
    rulebook.check_percent(story, LINE, [found("data/augment.py:41", "input_cpu_saturated", 60)])


def test_the_line_of_another_phase_is_not_the_verdicts(rulebook: Rulebook) -> None:
    story = [*WAITING, code("callback.py:3", growing(0.1), phase="other"), code("save.py:3", growing(0.1), phase="x")]
    rulebook.check(story, {LINE: []})


def test_every_phase_has_its_line_whatever_the_verdict_is(rulebook: Rulebook) -> None:
    """Alerts on two causes of one run each name the line of their phase."""
    story = [*WAITING, code("data/augment.py:41", growing(0.18)), code("save.py:3", growing(0.08), phase="checkpoint")]
    story += [code("log.py:3", growing(0.01), phase="log"), code("plot.py:3", growing(0.02), phase="plot")]
    phases = {phase: growing(0.1) for phase in ("checkpoint", "log", "plot")}
    target = {"run": "train", "rank": "0", "job": "stallscope", "instance": "node1:19400"}
    story += [
        series("stallscope_training_phase_seconds_total", each, phase=phase, **target) for phase, each in phases.items()
    ]
    labels = {"run": "train", "function": "elastic"}
    expected = [
        ({**labels, "phase": "data_wait", "location": "data/augment.py:41"}, 60),
        ({**labels, "phase": "checkpoint", "location": "save.py:3"}, 80),
        ({**labels, "phase": "plot", "location": "plot.py:3"}, 20),
    ]
    rulebook.check_percent(story, OF_PHASE, expected)


def test_a_line_of_a_compute_phase_hides_no_line_of_a_custom_phase(rulebook: Rulebook) -> None:
    """Compute phases are sampled on request."""
    target = {"run": "train", "rank": "0", "job": "stallscope", "instance": "node1:19400"}
    story = [*WAITING, code("model.py:9", growing(0.3), phase="forward"), code("log.py:3", growing(0.02), phase="log")]
    story += [series("stallscope_training_phase_seconds_total", growing(0.1), phase="log", **target)]
    labels = {"run": "train", "function": "elastic", "phase": "log", "location": "log.py:3"}
    rulebook.check_percent(story, OF_PHASE, [(labels, 20)])


def test_a_healthy_run_has_no_line(rulebook: Rulebook) -> None:
    story = [*rank(wait=0.02), *gpu(idle=0.02), code("data/augment.py:41", growing(0.02))]
    rulebook.check(story, {LINE: []})


def test_a_line_with_little_of_the_phase_explains_nothing(rulebook: Rulebook) -> None:
    story = [*WAITING, code("data/augment.py:41", growing(0.02)), code("data/read.py:7", growing(0.01))]
    rulebook.check(story, {LINE: []})


def test_without_samples_there_is_no_line(rulebook: Rulebook) -> None:
    rulebook.check(WAITING, {LINE: [], OF_PHASE: [], "run_code:time:rate2m": [], "run_phase:sampled_time:rate2m": []})


def test_a_line_that_is_no_longer_reported_ends(rulebook: Rulebook) -> None:
    name, values = code("data/augment.py:41", growing(0.18))
    gone = (name, values.replace("x120", "x60") + " _x60")
    rulebook.check([*WAITING, gone], {LINE: [], OF_PHASE: []}, at="40m")


def test_a_line_of_a_phase_that_pauses_stays(rulebook: Rulebook) -> None:
    story = [*WAITING, code("data/augment.py:41", growing_until(28, 0.18))]
    rulebook.check(story, {f"count by (location) ({LINE})": [({"location": "data/augment.py:41"}, 1)]}, at="45m")


def test_ranks_without_samples_do_not_count(rulebook: Rulebook) -> None:
    other = rank(1, wait=0.3, gpus=(("1", "GPU-1"),)) + gpu(1, idle=0.3)
    story = [*WAITING, *other, code("data/augment.py:41", growing(0.18))]
    rulebook.check_percent(story, LINE, [found("data/augment.py:41", "input_bound", 60)])
