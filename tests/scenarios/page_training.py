"""A node's training series: what the shim of each rank there would have reported."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sqrt

import numpy as np

from stallscope.model.catalogue.metrics import ACTIVITIES, RUN_STATES, STEP_BUCKETS
from tests.scenarios.disturbance import Floats
from tests.scenarios.model import COLUMN, COLUMNS, Course
from tests.scenarios.page_gpu import allocator
from tests.scenarios.sheet import Mask, Sheet
from tests.scenarios.world import Claim, World, gone

_REPORT_SECONDS = 5.0
"""Between two reports of a rank."""
_EXPIRY = 900.0
"""Seconds for which a run that ended stays on the page."""
_REPORTED_AS = {"slow": "forward"}
_IN_STEP = (
    "data_wait",
    "host_copy",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "logging",
    "checkpoint",
    "rollout",
    "other",
)
_ON_DEVICE = ("host_copy", "forward", "backward", "communication", "optimizer")
_OUTSIDE = ("evaluation", "initialization", "restore")
_SLOW_LINES = {"data/augment.py:41": 0.62, "data/read.py:7": 0.2}
"""Lines of code in which a rank waits for data, with their share."""
_PERIODS = 10.0
"""Periods of a cgroup's quota in a second."""


def show_training(sheet: Sheet, world: World) -> None:
    """Add the series of every rank that reports to one node's exporter."""
    for claim in world.ranks_on(sheet.node):
        if claim.run.instrumented and claim.rank not in world.disturbance.missing[claim.number]:
            _Page(sheet, world, claim).show()


class _Page:
    """One rank."""

    def __init__(self, sheet: Sheet, world: World, claim: Claim) -> None:
        self._sheet = sheet
        self._world = world
        self._claim = claim
        self._course: Course = claim.course
        self._rank = claim.rank
        self._run = claim.run
        self._labels = {"run": claim.run.name, "rank": str(claim.rank)}
        self._gone = gone(self._course, self._rank)
        until = min(
            self._gone, self._course.end, np.inf if self._run.reports_until is None else self._run.reports_until * 60
        )
        reported = np.floor(sheet.times / _REPORT_SECONDS) * _REPORT_SECONDS
        self._reported: Floats = np.minimum(reported, until)
        """When the report on each page was made."""
        self._present: Mask = (reported > self._course.start) & (sheet.times < self._gone + _EXPIRY)
        begun = np.array([self._course.start, *(minute * 60 for minute in self._run.restarts)])
        self._session = np.maximum(0, np.searchsorted(begun, self._reported, side="right") - 1)
        self._begun: Floats = begun[self._session]
        """When the session of each report began."""

    def show(self) -> None:
        self._identity()
        self._life()
        self._steps()
        self._phases()
        self._work_done()
        self._processes()
        self._allocator()

    def _add(self, name: str, values: Floats | float, present: Mask | bool = True, /, **labels: str) -> None:
        self._sheet.add(f"stallscope_training_{name}", values, self._present & present, **self._labels, **labels)

    def _counted(self, integral: Callable[[Floats], Floats]) -> Floats:
        """A counter of the session: restarts with the process."""
        return integral(self._reported) - integral(self._begun)

    def _identity(self) -> None:
        run, world = self._run, self._world
        node, index = world.gpus[run.ranks[self._rank][0]]
        held = [rank for rank, gpus in enumerate(run.ranks) if world.gpus[gpus[0]][0] == node]
        del index
        stage = run.stages[self._rank] if run.stages else None
        self._add(
            "rank_info",
            1,
            local_rank=str(held.index(self._rank)),
            world_size=str(run.world_size or len(run.ranks)),
            framework=run.framework,
            hostname=f"node{node}",
            namespace=run.namespace,
            pod=f"{run.name}-{self._rank}" if run.pods else "",
            slurm_job=run.slurm_job,
            user=run.user,
            git_commit="33be154",
            job_class=run.job_class,
            pipeline_stage="" if stage is None else str(stage),
        )
        for gpu in run.ranks[self._rank]:
            self._add("rank_gpu_info", 1, gpu=str(world.index(gpu)), uuid=world.uuid(gpu))
        self._add("precision_info", 1, precision=run.precision)

    def _life(self) -> None:
        run, course, sheet = self._run, self._course, self._sheet
        completed = course.done((course.steps > 0).astype(np.float64), self._reported)
        first = self._first_steps()
        stepped = self._reported >= first
        over = sheet.times >= course.end if run.end is not None else np.zeros(len(sheet.times), dtype=bool)
        lost = (sheet.times >= self._gone) & ~over
        state = np.where(over, run.outcome, np.where(lost, "lost", np.where(stepped, "running", "starting")))
        for name in RUN_STATES:
            self._add("state", (state == name).astype(np.float64), state=name)
        doing = np.array([self._activity_at(moment) for moment in self._reported])
        for name in ACTIVITIES:
            self._add("activity", (doing == name).astype(np.float64), activity=name)
        self._add("start_timestamp_seconds", sheet.clock(self._begun))
        self._add("first_step_timestamp_seconds", sheet.clock(first), stepped)
        ended = course.ends[course.steps > 0]
        last = ended[np.clip(completed.astype(np.int64) - 1, 0, len(ended) - 1)] if len(ended) else self._reported
        self._add("last_step_timestamp_seconds", sheet.clock(last), stepped & (completed > 0))
        self._add("last_push_timestamp_seconds", sheet.clock(self._reported))
        self._add("restarts_total", self._session.astype(np.float64))

    def _first_steps(self) -> Floats:
        """When the first step of each report's session ended, or infinity."""
        ended = self._course.ends[self._course.steps > 0]
        if not len(ended):
            return np.full_like(self._reported, np.inf)
        places = np.searchsorted(ended, self._begun, side="right")
        return np.where(places < len(ended), ended[np.minimum(places, len(ended) - 1)], np.inf)

    def _activity_at(self, moment: float) -> str:
        column = self._course.column_at(self._rank, moment - 1e-3)
        return column if column in ACTIVITIES else "training"

    def _steps(self) -> None:
        course = self._course
        inside = course.lengths - course.durations[:, 0, [COLUMN[name] for name in _OUTSIDE]].sum(axis=1)
        steps = course.steps.astype(np.float64)
        single = course.steps <= 1
        mean = inside / np.maximum(steps, 1)
        spread = np.maximum(course.per_row(0, "spread") * mean, 1e-6)
        for bound in STEP_BUCKETS:
            exact = steps * (inside <= bound)
            if not single.all():
                several = steps * _below((bound - mean) / spread)
                exact = np.where(single, exact, several)
            within = self._counted(lambda times, rows=exact: course.done(rows, times))  # type: ignore[misc]
            self._add("step_seconds_bucket", np.floor(within + 1e-6), le=str(float(bound)))
        count = self._counted(lambda times: course.done(steps, times))
        self._add("step_seconds_bucket", count, le="+Inf")
        self._add("step_seconds_count", count)
        self._add("step_seconds_sum", self._counted(lambda times: course.done(inside * (steps > 0), times)))
        slow, excess = self._slow(inside)
        self._add("slow_steps_total", self._counted(lambda times: course.done(slow, times)))
        self._add("slow_step_excess_seconds_total", self._counted(lambda times: course.done(excess, times)))
        self._add("step", count)
        self._own_work()

    def _own_work(self) -> None:
        """Add what the shim counts of own work, from each row of steps and the one before it."""
        run, course = self._run, self._course
        if not run.phases:
            return
        durations = course.durations[:, self._rank, :]
        named = durations[:, [COLUMN[name] for name in ("checkpoint", "logging", "rollout", *_OUTSIDE)]].sum(axis=1)
        length = durations.sum(axis=1) - named - durations[:, COLUMN["data_wait"]]
        if run.measures_communication:
            own = length - durations[:, [COLUMN["communication"], COLUMN["sync"]]].sum(axis=1)
        else:
            own = np.minimum(3 * durations[:, [COLUMN["forward"], COLUMN["slow"]]].sum(axis=1), length)
        if not own.any():
            return
        steps = np.maximum(course.steps, 1)
        wait = durations[:, COLUMN["data_wait"]]
        rest = length - own
        if run.device_events:
            on_device = durations[:, [COLUMN[name] for name in (*_ON_DEVICE, "slow", "sync")]].sum(axis=1)
            rest = on_device - np.minimum(3 * durations[:, [COLUMN["forward"], COLUMN["slow"]]].sum(axis=1), on_device)
        mean = np.cumsum(length + wait) / np.cumsum(steps)
        weight = (course.steps > 0) * steps * np.minimum(wait / steps / np.maximum(0.1 * mean, 1e-9), 30.0) ** 6
        alike = (course.steps > 0) & (durations[:, [COLUMN[name] for name in _OUTSIDE]].sum(axis=1) == 0)
        pairs = np.concatenate([[False], alike[1:] & alike[:-1]])
        product = 0.5 * pairs * np.diff(own, prepend=0.0) * np.diff(length - own, prepend=0.0)
        for name, rows in (
            ("own_work_seconds", own * (course.steps > 0)),
            ("uneven_work_square_seconds", np.maximum(-product, 0.0)),
            ("even_work_square_seconds", np.maximum(product, 0.0)),
            ("late_batch_steps", weight),
            ("late_batch_rest_seconds", weight * rest / steps),
        ):
            self._add(f"{name}_total", self._counted(lambda times, rows=rows: course.done(rows, times)))  # type: ignore[misc]

    def _slow(self, inside: Floats) -> tuple[Floats, Floats]:
        """Outlying steps and what they lost, by row: over median + 3 MAD and 1.1 medians, named host work aside."""
        course = self._course
        named = course.durations[:, 0, [COLUMN["checkpoint"], COLUMN["logging"], COLUMN["rollout"]]].sum(axis=1)
        durations = inside - named
        slow, excess = course.slow.copy(), course.slow * course.durations[:, 0, COLUMN["slow"]]
        for number, segment in enumerate(course.segments):
            rows = (course.segment_of_row == number) & (course.steps == 1)
            if rows.sum() < 20 or segment.kind != "training" or segment.works[0].drift_per_hour:
                continue
            work = segment.works[0]
            if work.tokens_per_sample and work.buckets:
                # Tokens of each step are reported: seconds for each are compared, and no short step is slow.
                rates = durations / course.lengthened
                usual = float(np.median(rates[rows]))
                deviation = float(np.median(np.abs(rates[rows] - usual)))
                expected = np.maximum(usual * course.lengthened, float(np.median(durations[rows])))
                outlying = rows & (durations > 1.1 * expected) & (rates > usual + 3 * deviation)
                slow = np.where(rows, outlying, slow)
                excess = np.where(rows, outlying * (durations - expected), excess)
                continue
            median = float(np.median(durations[rows]))
            deviation = float(np.median(np.abs(durations[rows] - median)))
            outlying = rows & (durations > max(1.1 * median, median + 3 * deviation))
            slow = np.where(rows, outlying, slow)
            excess = np.where(rows, outlying * (durations - median), excess)
        return slow.astype(np.float64), excess

    def _phases(self) -> None:
        run, course = self._run, self._course
        columns = course.phases(self._rank, self._reported) - course.phases(self._rank, self._begun)
        longest = np.stack([course.longest(self._rank, moment) for moment in self._reported])
        reported_as = {
            **_REPORTED_AS,
            "sync": "communication" if run.measures_communication else "backward",
            **({} if run.measures_communication else {"communication": "backward"}),
        }
        if not run.phases:
            reported_as = {name: "other" for name in COLUMNS if name not in _OUTSIDE}
        seconds: dict[str, Floats] = {}
        most: dict[str, Floats] = {}
        for name, index in COLUMN.items():
            phase = reported_as.get(name, name)
            seconds[phase] = seconds.get(phase, 0.0) + columns[:, index]
            most[phase] = most.get(phase, 0.0) + longest[:, index]
        steps = self._counted(lambda times: course.done(course.steps.astype(np.float64), times))
        pauses = {
            name: (course.durations[:, self._rank, COLUMN[name]] > 0).astype(np.float64)
            for name in ("checkpoint", "rollout", *_OUTSIDE)
        }
        total = sum(spent[-1] for spent in seconds.values())
        for phase, spent in seconds.items():
            used = spent > 0
            if not used.any():
                continue
            self._add("phase_seconds_total", spent, used, phase=phase)
            rows = pauses.get(phase)
            occurred = (
                steps
                if rows is None
                else np.ceil(
                    self._counted(lambda times, rows=rows: course.done(rows, times))  # type: ignore[misc]
                )
            )
            self._add("phase_occurrences_total", occurred, used, phase=phase)
            self._add("phase_max_seconds", most[phase], used, phase=phase)
            if phase == "data_wait" and spent[-1] > 0.1 * total:  # else no stacks are sampled
                for location, share in _SLOW_LINES.items():
                    self._add(
                        "code_seconds_total", share * spent, used, phase=phase, location=location, function="load"
                    )
            if run.phases and run.device_events and phase in _ON_DEVICE:
                self._add("phase_gpu_seconds_total", spent, used, phase=phase)

    def _work_done(self) -> None:
        run, course, rank = self._run, self._course, self._rank
        batch = course.per_row(rank, "batch") * course.steps
        epochs = self._counted(lambda times: course.done(course.steps.astype(np.float64), times)) // 1000
        self._add("epoch", epochs)
        self._add("learning_rate", 3e-4)
        steps = course.done(course.steps.astype(np.float64), self._reported)
        wrong = np.minimum(1.0, course.per_row(rank, "losses_not_finite")) * course.steps
        shown = self._counted(lambda times: np.floor(course.done(wrong, times) + 1e-6))
        self._add("nonfinite_losses_total", shown)
        # A loss that is not a number is not reported: the gauge is absent meanwhile.
        spoilt = course.elapsed(rank, "losses_not_finite", self._reported) - course.elapsed(
            rank, "losses_not_finite", self._reported - 5
        )
        self._add("loss", 1.2 + 5 * np.exp(-steps / 3000), spoilt < 2.5)
        if run.reports_batch:
            sizes = np.array([each.works[rank].batch for each in course.segments])
            starts = np.array([each.start for each in course.segments])
            place = np.maximum(0, np.searchsorted(starts, self._reported, side="right") - 1)
            self._add("batch_size", sizes[place])
            self._add("samples_total", self._counted(lambda times: course.done(batch, times)))
        for name, per_sample in (("tokens_total", "tokens_per_sample"), ("flops_total", "flops_per_sample")):
            amount = (
                batch
                * course.lengthened
                * course.per_row(rank, per_sample)
                * self._world.disturbance.pace[self._claim.number]
            )
            if amount.any():
                self._add(name, self._counted(lambda times, rows=amount: course.done(rows, times)))  # type: ignore[misc]
        for name, value in run.values.items():
            # Larger samples are slower on one GPU alone as well.
            pace = self._world.disturbance.pace[self._claim.number] if name.endswith("_per_second") else 1.0
            self._add("value", value / pace, name=name)

    def _processes(self) -> None:
        world, claim, run, course, rank = self._world, self._claim, self._run, self._course, self._rank
        limit = world.cores(claim)
        self._add("process_cpu_seconds_total", self._counted(lambda times: world.rank_cpu(claim, times)))
        self._add("main_thread_cpu_seconds_total", self._counted(lambda times: world.main_thread(claim, times)))
        self._add("cpu_limit_cores", limit)
        workers = course.segments[-1].works[rank].loader_workers
        if workers is not None:
            self._add("dataloader_workers", workers)
        self._add("process_memory_bytes", 6e9 + 9e8 * (workers or 0))
        collected = self._counted(lambda times: course.elapsed(rank, "collector", times))
        self._add("garbage_collection_seconds_total", collected)
        node = world.gpus[run.ranks[rank][0]][0]
        self._add("cgroup_oom_kills_total", world.oom_kills(node, self._reported))
        self._add("shim_overhead_seconds_total", 1e-4 * (self._reported - self._begun))
        # A pod's cgroup has these counters without a quota as well, and then they stay at zero.
        if run.quota or run.pods:
            periods = _PERIODS if run.quota else 0.0
            self._add("cpu_periods_total", np.floor(periods * (self._reported - self._begun)))
            throttled = self._counted(lambda times: course.elapsed(rank, "quota_throttled", times))
            self._add("cpu_throttled_periods_total", np.floor(_PERIODS * throttled))
            waited = self._counted(lambda times: course.elapsed(rank, "quota_waited", times))
            self._add("cpu_throttled_seconds_total", waited)

    def _allocator(self) -> None:
        gpu = self._run.ranks[self._rank][0]
        memory = self._world.node(gpu).card.memory
        for name, share in allocator(self._claim, self._reported).items():
            self._add(f"allocator_{name}_bytes", np.floor(share * memory))
        retries = self._counted(lambda times: self._course.elapsed(self._rank, "allocator_retries", times) / 60)
        self._add("allocator_retries_total", np.floor(retries))
        self._add("out_of_memory_total", 0)


def _below(deviates: Floats) -> Floats:
    """Share of a normal distribution under each standardized bound."""
    rounded = np.round(np.clip(deviates, -6, 6), 2)
    values, places = np.unique(rounded, return_inverse=True)
    return np.array([(1 + erf(value / sqrt(2))) / 2 for value in values])[places]
