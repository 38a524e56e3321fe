"""GPUs of inference servers: causes of their own, and none of training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.scenarios.case import Case
from tests.scenarios.cases.settings import ONSET, QUIET, WELL, negative, positive
from tests.scenarios.machines import SINGLE
from tests.scenarios.story import ALWAYS, From, Gpu, Server, Story

_POD = "serve/llm-0"
_BUSY = 0.85
_OF_TRAINING = frozenset(
    {
        "small_batch",
        "launch_bound",
        "sync_stall",
        "mem_bw_bound",
        "tensor_cores_unused",
        "low_mfu",
        "h2d_bound",
        "input_bound",
        "underused",
        "periodic_host_work",
        "idle_allocated",
        "mem_zombie",
        "packing_candidate",
        "spin_suspected",
    }
)
_SERVER: dict[str, Any] = {
    "subject": "server",
    "run": "",
    "before": frozenset({"serving_busy"}),
    "culprit": (("instance", "node0:19400"), ("gpu", "0")),
    "length": 24.0,
}


def _serves(*states: tuple[float, float, Server]) -> Story:
    """A server in a pod, with the share of time that its GPU is busy and what it reports from each minute on."""
    return Story(
        nodes=(SINGLE,),
        hosts=(From(ALWAYS, QUIET[SINGLE]),),
        gpus=tuple(
            From(minute, Gpu(foreign=(_POD,), foreign_busy=busy, foreign_memory=0.9)) for minute, busy, _ in states
        ),
        servers=tuple(From(minute, server, (0,)) for minute, _, server in states),
    )


def _changes(busy: float, before: Server, after: Server) -> Story:
    return _serves((ALWAYS, _BUSY, before), (ONSET, busy, after))


def _causes() -> Iterator[Case]:
    usual = Server(waiting=0.4)
    yield positive(
        "serving_idle_at_night",
        "serving_idle",
        _changes(0.0, usual, Server(cache_used=0.0)),
        alerts=frozenset({"ServingIdle"}),
        lost=1.0,
        **{**_SERVER, "length": 80.0},
    )
    sglang = Server(program="sglang", waiting=0.4)
    yield positive(
        "serving_starved_sglang",
        "serving_starved",
        _changes(0.2, sglang, replace(sglang, waiting=24.0)),
        alerts=frozenset({"ServingStarved"}),
        lost=0.8,
        **_SERVER,
    )
    both = Server(program="vllm_both", waiting=0.4)
    yield positive(
        "serving_kv_full_preempts",
        "serving_kv_full",
        _changes(0.9, both, replace(both, waiting=24.0, cache_used=0.99, preempted=0.8)),
        alerts=frozenset({"ServingKvFull"}),
        lost=0.1,
        **_SERVER,
    )
    old = Server(program="vllm_0_11", waiting=0.4)
    yield positive(
        "serving_kv_full_waits",
        "serving_kv_full",
        _changes(0.3, old, replace(old, waiting=24.0, cache_used=0.99)),
        alerts=frozenset({"ServingKvFull"}),
        lost=0.7,
        **_SERVER,
    )
    yield negative(
        "serving_busy_with_a_long_queue",
        _serves((ALWAYS, 0.9, Server(waiting=40.0, cache_used=0.8))),
        cause="serving_busy",
        acceptable=frozenset(),
        forbidden=_OF_TRAINING,
        **_SERVER,
    )


def _no_cause_of_training() -> Iterator[Case]:
    gpu: dict[str, Any] = {
        "kind": "abstention",
        "subject": "gpu",
        "cause": "insufficient_data",
        "run": "",
        "acceptable": WELL,
        "forbidden": _OF_TRAINING,
        "onset": 0.0,
        "length": 40.0,
    }
    few = Server(waiting=0.1, cache_used=0.05)
    yield Case(
        name="serving_few_requests_is_not_underused",
        story=_serves((ALWAYS, 0.25, few)),
        **gpu,
    )
    yield Case(
        name="serving_that_refuses_scrapes_is_not_underused",
        story=_serves((ALWAYS, 0.25, few), (12.0, 0.25, replace(few, refuses=True))),
        **gpu,
    )


CASES: tuple[Case, ...] = (*_causes(), *_no_cause_of_training())
