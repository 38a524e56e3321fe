"""Pages of inference servers, under the names that their releases export."""

from __future__ import annotations

import numpy as np

from stallscope.lab.replay.series import Series
from tests.scenarios.sheet import Sheet
from tests.scenarios.world import World

_VLLM = {"model_name": "qwen3-8b", "engine": "0"}
_SGLANG = {"model_name": "qwen3-8b", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
_CACHE_NAMES = {
    "vllm": ("vllm:kv_cache_usage_perc",),
    "vllm_0_11": ("vllm:gpu_cache_usage_perc",),
    "vllm_both": ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
    "sglang": ("sglang:token_usage",),
}


def server_pages(world: World) -> list[Series]:
    """Return the series of every server, each scraped as a target of its own pod."""
    programs = {gpu: each.state.program for each in world.story.servers for gpu in each.only or ()}
    return [series for gpu, program in programs.items() for series in _page(world, gpu, program)]


def _page(world: World, gpu: int, program: str) -> list[Series]:
    node, _ = world.gpus[gpu]
    target = {
        "job": "serve/llm",
        "instance": f"10.0.{node}.{gpu}:8000",
        "namespace": "serve",
        "pod": f"llm-{gpu}",
    }
    sheet = Sheet(node, world.disturbance, absent=world.story.absent, down=None, target=target)
    times = sheet.times
    responds = world.server_state(gpu, lambda state: float(not state.refuses), times) > 0
    waiting = world.server_state(gpu, lambda state: state.waiting, times)
    used = world.server_state(gpu, lambda state: state.cache_used, times)
    preempted = np.floor(world.server_integral(gpu, lambda state: state.preempted, times))
    queue, evictions, labels = "vllm:num_requests_waiting", "vllm:num_preemptions_total", _VLLM
    if program == "sglang":
        queue, evictions, labels = "sglang:num_queue_reqs", "sglang:num_retracted_requests_total", _SGLANG
    sheet.add(queue, waiting, responds, **labels)
    sheet.add(evictions, preempted, responds, **labels)
    for name in _CACHE_NAMES[program]:
        sheet.add(name, used, responds, **labels)
    return sheet.series
