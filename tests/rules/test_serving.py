"""GPUs of inference servers: the cause of each one, from what the servers export, and none that is not theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.promql_names import names_in
from tests.rules.layers import groups_of
from tests.rules.rulebook import (
    ROOT,
    RULE_FILES,
    SHARED,
    TARGET,
    Rulebook,
    Story,
    gpu,
    gpu_signal,
    growing,
    node,
    rank,
    run_tool,
    series,
    steady,
    until,
)

SERVING = ROOT / "prometheus/serving/serving.yml"
FILES = (
    *(
        path
        for path in RULE_FILES
        if path.stem in (*SHARED, "input", "device", "goodput", "hours", "use", "verdicts", "totals")
    ),
    SERVING,
)
VERDICT = "count by (instance, cause) (serving_gpu:verdict:ratio5m)"


def vllm(pod: str = "", *, at: str = "", kv: str = "vllm:kv_cache_usage_perc", **values: str) -> Story:
    """A server's series, as vLLM exports them: running, waiting, used, preempted."""
    target = {"job": "vllm", "instance": at or f"{pod}:8000", "pod": pod, "namespace": "serve" if pod else ""}
    names = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting", "used": kv}
    names["preempted"] = "vllm:num_preemptions_total"
    given = {"running": steady(0), "waiting": steady(0), "used": steady(0.1), "preempted": steady(0), **values}
    return [series(names[name], given[name], engine="0", model_name="m", **target) for name in names]


def sglang(pod: str, **values: str) -> Story:
    """A server with two ranks that report the same requests."""
    target = {"job": "sglang", "instance": f"{pod}:30000", "pod": pod, "namespace": "serve", "model_name": "m"}
    names = {"waiting": "sglang:num_queue_reqs", "used": "sglang:token_usage"}
    names["preempted"] = "sglang:num_retracted_requests_total"
    given = {"waiting": steady(0), "used": steady(0.1), "preempted": steady(0), **values}
    return [
        series(names[name], given[name], engine_type="unified", tp_rank=tensor, dp_rank="0", **target)
        for name in names
        for tensor in ("0", "1")
    ]


def escaped(story: Story) -> Story:
    """Return the series as Prometheus stores them where it negotiates `escaping=underscores`."""
    return [(re.sub(r"^(vllm|sglang):", r"\1_", name), values) for name, values in story]


def triton(at: str, uuid: str, waiting: float) -> Story:
    target = {"job": "triton", "instance": at}
    return [
        series("nv_inference_pending_request_count", steady(waiting), model="bert", version="1", **target),
        series("nv_gpu_utilization", steady(0.3), gpu_uuid=uuid, **target),
    ]


def held(pod: str, index: int = 0) -> tuple[str, str, int, dict[str, str]]:
    return gpu_signal("owner_info", steady(1), index, namespace="serve", pod=pod, container="server")


def used(busy: float, index: int = 0, uuid: str | None = None) -> Story:
    return gpu(index, idle=1 - busy, busy=busy, low_samples=1.0, uuid=uuid)


def check(rulebook: Rulebook, nodes: dict[str, tuple[Story, str]], at: str = "20m") -> None:
    """Expect this cause of the GPU of each node; none where it is empty."""
    rulebook.check(
        [each for story, _cause in nodes.values() for each in story],
        {VERDICT: [({"instance": name, "cause": cause}, 1) for name, (_story, cause) in nodes.items() if cause]},
        at=at,
        rule_files=FILES,
    )


def test_promtool_accepts_the_rules_and_their_series_are_known() -> None:
    run_tool("promtool", "check", "rules", "--lint-fatal", str(SERVING))
    (group,) = groups_of(SERVING)
    own = {rule["record"] for rule in group["rules"] if "record" in rule}
    recorded = {
        rule["record"] for path in RULE_FILES for each in groups_of(path) for rule in each["rules"] if "record" in rule
    }
    read = {name for rule in group["rules"] for name in names_in(rule["expr"]).metrics} - own
    foreign = {name for name in read if name.startswith(("vllm:", "vllm_", "sglang:", "sglang_", "nv_"))}
    assert read - foreign - recorded == {"stallscope_gpu_owner_info"}


def test_each_gpu_of_a_server_has_one_cause(rulebook: Rulebook) -> None:
    full = {"used": steady(0.97)}
    check(
        rulebook,
        {
            "idle": (node("idle", used(0.0), held("a")) + vllm("a"), "serving_idle"),
            "few": (node("few", used(0.2), held("b")) + vllm("b", running=steady(2)), "serving_idle"),
            "starved": (node("starved", used(0.2), held("c")) + vllm("c", waiting=steady(9)), "serving_starved"),
            "busy": (node("busy", used(0.9), held("d")) + vllm("d", waiting=steady(9)), "serving_busy"),
            "full": (
                node("full", used(0.9), held("e")) + vllm("e", preempted=growing(0.1), **full),
                "serving_kv_full",
            ),
            "full and waiting": (
                node("full and waiting", used(0.3), held("f")) + vllm("f", waiting=steady(9), **full),
                "serving_kv_full",
            ),
            "full, but calm": (node("full, but calm", used(0.9), held("g")) + vllm("g", **full), "serving_busy"),
            "preempted, not full": (
                node("preempted, not full", used(0.9), held("h")) + vllm("h", preempted=growing(0.1)),
                "serving_busy",
            ),
        },
    )


def test_the_servers_of_the_table_are_read_under_each_of_their_names(rulebook: Rulebook) -> None:
    old, waiting = "vllm:gpu_cache_usage_perc", {"waiting": steady(9)}
    full = {"used": steady(0.97), "preempted": growing(0.1)}
    decode = {"model_name": "m", "engine_type": "decode", "tp_rank": "0", "dp_rank": "0"}
    queued = series(
        "sglang:num_decode_prealloc_queue_reqs",
        steady(9),
        job="sglang",
        instance="x:30000",
        pod="x",
        namespace="serve",
        **decode,
    )
    both = series(
        old, steady(0.97), engine="0", model_name="m", job="vllm", instance="k:8000", pod="k", namespace="serve"
    )
    check(
        rulebook,
        {
            "old": (node("old", used(0.9), held("i")) + vllm("i", kv=old, **full), "serving_kv_full"),
            "both": ([*node("both", used(0.9), held("k")), *vllm("k", **full), both], "serving_kv_full"),
            "sglang": (node("sglang", used(0.9), held("l")) + sglang("l", **full), "serving_kv_full"),
            "vllm, escaped": (
                node("vllm, escaped", used(0.2), held("v")) + escaped(vllm("v", **waiting)),
                "serving_starved",
            ),
            "sglang, escaped": (
                node("sglang, escaped", used(0.9), held("w")) + escaped(sglang("w", **full)),
                "serving_kv_full",
            ),
            "both spellings": (
                node("both spellings", used(0.9), held("y")) + sglang("y", **full) + escaped(sglang("y", **full)),
                "serving_kv_full",
            ),
            "decode waits": ([*node("decode waits", used(0.2), held("x")), *sglang("x"), queued], "serving_starved"),
            "sglang waits": (node("sglang waits", used(0.2), held("m")) + sglang("m", **waiting), "serving_starved"),
            "triton": (
                node("triton", used(0.2, uuid="GPU-t")) + triton("elsewhere:8002", "GPU-t", 9),
                "serving_starved",
            ),
        },
    )


def test_a_server_without_pods_has_the_gpus_of_its_host_if_one_owner_alone_holds_them(rulebook: Rulebook) -> None:
    mine = gpu_signal("owner_info", steady(1), 0, user="ada")
    other = gpu_signal("owner_info", steady(1), 0, user="bob")
    waiting = {"waiting": steady(9)}

    def at(
        host: str, *owners: tuple[str, str, int, dict[str, str]], servers: int = 1, more: Story | None = None
    ) -> Story:
        story = node(f"{host}:19400", used(0.2) + (more or []), *owners)
        return story + [each for number in range(servers) for each in vllm(at=f"{host}:800{number}", **waiting)]

    check(
        rulebook,
        {
            "alone:19400": (at("alone", mine), "serving_starved"),
            "shared:19400": (at("shared", mine, other), ""),
            "two:19400": (at("two", mine, servers=2), ""),
            "free:19400": (at("free"), ""),
            "trains:19400": (at("trains", mine, more=rank(run="r")), ""),
        },
    )


def test_without_data_of_a_server_there_is_no_cause(rulebook: Rulebook) -> None:
    gone = {name: until(5, 9, 9).split(" ")[0] for name in ("running", "waiting", "used", "preempted")}
    check(
        rulebook,
        {
            "no server": (node("no server", used(0.2), held("n")), ""),
            "refuses": (node("refuses", used(0.2), held("o")) + vllm("o", **gone), ""),
            "another": (node("another", used(0.2), held("p")) + vllm("q", waiting=steady(9)), ""),
            "two pods": (
                node("two pods", used(0.2), held("s"), held("t"))
                + vllm("s", waiting=steady(9))
                + vllm("t", waiting=steady(9)),
                "",
            ),
        },
    )


def test_a_serving_gpu_has_no_cause_of_training_and_its_loss_is_apart(rulebook: Rulebook) -> None:
    def long(story: Story) -> Story:
        return [(name, values.replace("x120", "x300")) for name, values in story]

    serves = node("serves", used(0.0), held("u")) + vllm("u")
    low = node("low", used(0.3), held("v")) + vllm("v", running=steady(1))
    trains = node("holds", used(0.0), gpu_signal("owner_info", steady(1), 0, user="ada"))
    rulebook.check(
        long(serves + low + trains),
        {
            "count by (instance, cause) (pair_cause:time_lost:ratio5m)": [
                ({"instance": "holds", "cause": "idle_allocated"}, 1)
            ],
            "round(serving_owner:gpus_lost:sum5m, 0.1)": [({"namespace": "serve", "cause": "serving_idle"}, 1.7)],
            'count by (namespace) (owner_cause:gpus_lost:sum5m{namespace="serve"})': [],
            "round(sum by (server, cause) (serving:gpus_lost:sum5m), 0.1)": [
                ({"server": "serve/u", "cause": "serving_idle"}, 1),
                ({"server": "serve/v", "cause": "serving_idle"}, 0.7),
            ],
            'count by (alertname, server) (ALERTS{alertname=~"Serving.*", alertstate="firing"})': [
                ({"alertname": "ServingIdle", "server": "serve/u"}, 1)
            ],
        },
        at="100m",
        rule_files=FILES,
    )


def test_an_instance_loses_its_part_of_the_card(rulebook: Rulebook) -> None:
    card = {**TARGET, "gpu": "0"}
    verdict = {"uuid": "MIG-1", "mig": "1", "server": "serve/a", "cause": "serving_idle"}
    rulebook.check(
        [
            *(series("gpu:up:max", steady(1), **card, uuid=f"MIG-{each}", mig=str(each)) for each in range(4)),
            series("serving_gpu:verdict:ratio5m", steady(1), **card, **verdict),
        ],
        {"100 * serving:gpus_lost:sum5m": [({"server": "serve/a", "cause": "serving_idle"}, 25)]},
        rule_files=(SERVING,),
    )


def test_the_readme_has_a_section_for_each_alert() -> None:
    text = (SERVING.parent / "README.md").read_text()
    (group,) = groups_of(SERVING)
    for rule in group["rules"]:
        if "alert" in rule:
            assert f"\n### {rule['labels']['cause']}\n" in text
            assert rule["annotations"]["runbook_url"].endswith(f"#{rule['labels']['cause']}")


@pytest.mark.parametrize("server", ["vLLM", "SGLang", "Triton"])
def test_the_readme_names_the_series_of_each_server(server: str) -> None:
    rows = [line for line in (SERVING.parent / "README.md").read_text().splitlines() if line.startswith(f"| {server}")]
    text = Path(SERVING).read_text()
    named = {
        word.strip("`,")
        for row in rows
        for word in row.split()
        if word.strip("`,").startswith(("vllm:", "sglang:", "nv_"))
    }
    assert named
    assert all(name in text for name in named)
