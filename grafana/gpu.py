"""One GPU or a few of a node: what holds them back, and every signal that says so. For whoever got an alert of one."""

from __future__ import annotations

from grafana.builders import choices
from grafana.builders.annotations import events
from grafana.builders.choices import GPU
from grafana.builders.dashboard import Dashboard, Row
from grafana.builders.field import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    YELLOW,
    Override,
    Text,
    by_name,
    limit_line,
    limits_of_each,
    texts,
)
from grafana.builders.links import runbook, to_dashboard
from grafana.builders.panel import (
    Panel,
    bar_gauge,
    heat_map,
    state_timeline,
    status_history,
    table,
    time_series,
)
from grafana.builders.query import Query, threshold
from grafana.builders.variables import datasource
from grafana.builders.verdicts import (
    by_code,
    cause_colours,
    coded,
    columns,
    in_colour,
    of_gpus,
    runbook_by_cause,
    with_remedy,
    with_runbook,
)

_ONE = "cluster, job, instance, gpu, uuid, mig"
"""The labels that tell GPUs, and MIG instances of a GPU, apart."""
_OWNER = "namespace, pod, container, slurm_job, user"
_NAME = "{{instance}} GPU {{gpu}} {{mig}}"
_HOLDER = "{{user}} {{namespace}} {{pod}} {{container}} {{slurm_job}}"
_MINUTE = 60
_MILLISECONDS = 1000
"""Of a second: Grafana's times are in milliseconds, Prometheus's in seconds."""

_TO_RUN = to_dashboard("stallscope-run", "The run", {"run": "${__data.fields.Run}"})
_TO_RANK = to_dashboard(
    "stallscope-run", "The rank in its run", {"run": "${__data.fields.Run}", "rank": "${__data.fields.Rank}"}
)
_TO_HOST = to_dashboard("stallscope-host", "The node", {"instance": "${__data.fields.Node}"})
_TO_GPU = to_dashboard(
    "stallscope-gpu",
    "This GPU alone",
    {"instance": "${__data.fields.Node}", "gpu": "${__data.fields.GPU}"},
)
_CURVE = (
    to_dashboard(
        "stallscope-gpu",
        "This GPU alone",
        {"instance": "${__field.labels.instance}", "gpu": "${__field.labels.gpu}"},
    ),
    to_dashboard("stallscope-host", "Its node", {"instance": "${__field.labels.instance}"}),
)
_PLACE = {"instance": "Node", "gpu": "GPU", "mig": "MIG instance"}
_PLACE_LINKS = [by_name("Node", links=[_TO_HOST]), by_name("GPU", links=[_TO_GPU], custom__width=70)]


def _rate(counter: str, labels: str = "") -> str:
    """Growth of a counter a second."""
    return f"rate({counter}{{{GPU}{labels}}}[$__rate_interval])"


def _share(counter: str, labels: str = "") -> str:
    """A counter of seconds as a share of time."""
    return f"clamp_max({_rate(counter, labels)}, 1)"


# First screen: what each GPU loses, and to whom.


def _verdicts() -> Panel:
    return table(
        "Verdict of each GPU",
        "What costs each GPU most of its time, the share of the last five minutes that it costs, what to change "
        "first, and the run that computes there (one of them where several do). Click the run for its phases, the "
        "node for its host.",
        [
            Query(
                with_runbook(
                    with_remedy(
                        f"max by (cluster, instance, gpu, uuid, mig, namespace, run, rank, cause) ({of_gpus(GPU)})"
                    )
                ),
                table=True,
            )
        ],
        columns={
            **_PLACE,
            "cause": "Verdict",
            "Value": "Time lost",
            "remedy": "What to change",
            "runbook": "Runbook",
            "run": "Run",
            "rank": "Rank",
        },
        unit="percentunit",
        height=10,
        sort="Time lost",
        overrides=[
            *_PLACE_LINKS,
            by_name("MIG instance", custom__width=110),
            *columns(),
            by_name("Time lost", custom__width=100, decimals=0),
            by_name("Runbook", mappings=runbook_by_cause(), links=[runbook()], custom__width=210),
            by_name("Run", links=[_TO_RUN]),
            by_name("Rank", links=[_TO_RANK], custom__width=70),
        ],
        no_value="No verdict: no GPU was chosen, or Prometheus has no rules of Stallscope.",
    )


def _verdict_timeline() -> Panel:
    return state_timeline(
        "Verdicts over time",
        "The verdict of each GPU at each moment. A gap means that the GPU or its node told nothing.",
        [Query(coded(f"gpu:verdict:ratio5m{{{GPU}}}", "cluster", "instance", "gpu", "uuid", "mig"), _NAME)],
        mappings=by_code(),
        width=16,
        height=7,
        show_values=True,
        links=_CURVE,
    )


def _causes() -> Panel:
    return bar_gauge(
        "Where the time of these GPUs goes",
        "Share of the time of all GPUs chosen that each cause costs, over the last five minutes. Start with the "
        "longest.",
        [
            Query(
                f"""
                topk(8,
                    sum by (cause) (gpu_cause:share:ratio5m{{{GPU}}} > 0)
                  /
                    scalar(count(gpu:up:max{{{GPU}}}))
                )
                """,
                "{{cause}}",
                instant=True,
            )
        ],
        unit="percentunit",
        width=8,
        height=7,
        maximum=1,
        overrides=cause_colours(),
    )


def _what_it_is() -> Panel:
    info = f"stallscope_gpu_info{{{GPU}}}"
    held = f"""
          {info}
        * on ({_ONE}) group_left ({_OWNER})
          topk by ({_ONE}) (1, stallscope_gpu_owner_info{{{GPU}}})
      or on ({_ONE})
        {info}
    """
    return table(
        "What each GPU is, and who holds it",
        "Model, driver, how the GPU is handed out, and who holds it now (one holder where several share; all of them "
        "stand below, under Owners). Columns without text mean: not held in that way.",
        [Query(held, table=True)],
        columns={
            **_PLACE,
            "model": "Model",
            "driver_version": "Driver",
            "cuda_version": "CUDA",
            "sharing": "Handed out",
            "user": "User",
            "namespace": "Namespace",
            "pod": "Pod",
            "container": "Container",
            "slurm_job": "Slurm job",
            "uuid": "UUID",
        },
        unit="none",
        height=5,
        overrides=_PLACE_LINKS,
        no_value="No GPU answers on the nodes chosen.",
    )


# The graphs that people know from experiment trackers.


def _utilisation() -> Panel:
    return time_series(
        "GPU utilisation",
        "Share of time with at least one kernel resident. It says that the GPU was in use, not that it was used well: "
        "read it beside the activity of its multiprocessors.",
        [Query(_share("stallscope_gpu_busy_seconds_total"), _NAME)],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _memory_access() -> Panel:
    return time_series(
        "Time accessing memory",
        "Share of time in which device memory was read or written. Near the utilisation at a small batch, it means "
        "much traffic for little computing; it isn't bandwidth.",
        [Query(_share("stallscope_gpu_memory_busy_seconds_total"), _NAME)],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _memory_allocated() -> Panel:
    return time_series(
        "Memory allocated",
        "Frame buffer held by processes, of all that there is. Frameworks that reserve everything show 100 % whatever "
        "they need: the run's dashboard has what tensors use.",
        [
            Query(
                f"stallscope_gpu_memory_used_bytes{{{GPU}}} / stallscope_gpu_memory_total_bytes{{{GPU}}}",
                _NAME,
            )
        ],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _power() -> Panel:
    return time_series(
        "Power",
        "Board power, and the limit in force as a dashed line. Well under the limit while busy: too little work at a "
        "time. At the limit: raise the limit, or cool better.",
        [
            Query(f"stallscope_gpu_power_watts{{{GPU}}}", _NAME),
            Query(f"stallscope_gpu_power_limit_watts{{{GPU}}}", f"{_NAME} limit"),
        ],
        unit="watt",
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _temperature() -> Panel:
    return time_series(
        "Temperature",
        "Of the GPU and of its memory, and the lowest limits among the GPUs chosen, at which the driver slows down or "
        "shuts down. Near them: check fans, airflow and hot neighbours.",
        [
            Query(f"stallscope_gpu_temperature_celsius{{{GPU}}}", f"{_NAME} {{{{sensor}}}}"),
            Query(f"min by (limit) (stallscope_gpu_temperature_limit_celsius{{{GPU}}})", "{{limit}} limit"),
        ],
        unit="celsius",
        minimum=None,
        overrides=limit_line("/ limit$/"),
        links=_CURVE,
    )


def _clocks() -> Panel:
    return time_series(
        "Clock of the multiprocessors",
        "The clock now; dashed, the highest of this model or, where somebody set a lower one, that. Under it while "
        "busy: see what holds it down beside this.",
        [
            Query(f'stallscope_gpu_clock_hertz{{{GPU}, clock="sm"}}', _NAME),
            Query(f'stallscope_gpu_clock_max_hertz{{{GPU}, clock="sm"}}', f"{_NAME} highest limit"),
            Query(f'stallscope_gpu_clock_configured_hertz{{{GPU}, clock="sm"}}', f"{_NAME} configured limit"),
        ],
        unit="hertz",
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _throttling() -> Panel:
    return status_history(
        "What held clocks down",
        "Share of time in which clocks were held down, by reason; empty: never. Thermal reasons want cooling, a power "
        "cap a higher limit, a power brake or hardware slowdown a look at the power supply.",
        [
            Query(
                f"max by (cluster, instance, gpu, mig, reason) ({_share('stallscope_gpu_throttled_seconds_total')})",
                f"{_NAME} {{{{reason}}}}",
                least_step="1m",
            )
        ],
        unit="percentunit",
        maximum=1,
        mappings=texts({"0": Text("never", "transparent")}),
        width=12,
        links=_CURVE,
    )


def _fans() -> Panel:
    return time_series(
        "Fans",
        "Speed over the maximum. At the maximum while hot: the air is too warm or blocked. Passively cooled GPUs have "
        "none.",
        [Query(f"stallscope_gpu_fan_speed_ratio{{{GPU}}}", f"{_NAME} fan {{{{fan}}}}")],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _usual() -> tuple[Panel, ...]:
    return (
        _utilisation(),
        _memory_access(),
        _memory_allocated(),
        _power(),
        _temperature(),
        _clocks(),
        _throttling(),
        _fans(),
    )


# What happens inside.


def _sm_active() -> Panel:
    return time_series(
        "Multiprocessors at work",
        "Share of multiprocessors with work. Far under the utilisation: kernels are too small; enlarge the batch or "
        "fuse kernels. Under the dashed line, the rules look for a batch that is too small.",
        [
            Query(_share("stallscope_gpu_sm_active_seconds_total"), _NAME),
            threshold("small_batch_sm", "too few"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("too few"),
        links=_CURVE,
    )


def _occupancy() -> Panel:
    return time_series(
        "Occupancy",
        "Resident warps over the most that the multiprocessors can hold. Low with many multiprocessors at work is a "
        "matter of the kernels' own limits (registers, shared memory), not of the batch.",
        [Query(_share("stallscope_gpu_sm_occupancy_seconds_total"), _NAME)],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _tensor() -> Panel:
    return time_series(
        "Tensor cores",
        "Share of time in which they issued work. Under the dashed line while multiprocessors work: enable mixed "
        "precision or TF32, and dimensions that are multiples of eight.",
        [
            Query(_share("stallscope_gpu_pipe_active_seconds_total", ', pipe="tensor"'), _NAME),
            threshold("tensor_low", "unused"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("unused"),
        links=_CURVE,
    )


def _pipes() -> Panel:
    return time_series(
        "Other pipes",
        "Share of time in which the floating-point and integer pipes issued work: which arithmetic the kernels really "
        "use.",
        [Query(_share("stallscope_gpu_pipe_active_seconds_total", ', pipe!="tensor"'), f"{_NAME} {{{{pipe}}}}")],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _dram() -> Panel:
    return time_series(
        "Memory bandwidth",
        "Share of the peak bandwidth of device memory. Over the dashed line with idle tensor cores, memory is the "
        "limit: fuse elementwise operations, use 16-bit activations.",
        [
            Query(_share("stallscope_gpu_dram_active_seconds_total"), _NAME),
            threshold("bandwidth_high", "bound by memory"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("bound by memory"),
        links=_CURVE,
    )


def _engines() -> Panel:
    return time_series(
        "Engines",
        "Share of time in which encoder, decoder, JPEG and optical-flow engines worked. Decoding of images and video "
        "on the GPU shows here.",
        [Query(_share("stallscope_gpu_engine_busy_seconds_total"), f"{_NAME} {{{{engine}}}}")],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _histogram() -> Panel:
    return heat_map(
        "Utilisation, sample by sample",
        "How the driver's own samples are distributed, several a second: a band at 0 beside one at 100 % is a GPU "
        "that waits and computes in turn, which a mean hides.",
        Query(
            f"sum by (le) (rate(stallscope_gpu_utilization_samples_bucket{{{GPU}}}[$__rate_interval]))",
            "{{le}}",
            heat_map=True,
            least_step="30s",
        ),
        unit="percentunit",
        width=12,
    )


def _below() -> Panel:
    return time_series(
        "Time under a level of utilisation",
        "Share of time in samples of utilisation 0, and under 0.1 and 0.5. Time at 0 is time paid for and not used.",
        [
            Query(_share("stallscope_gpu_idle_seconds_total"), f"{_NAME} at 0"),
            Query(_share("stallscope_gpu_below_seconds_total"), f"{_NAME} under {{{{level}}}}"),
        ],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _dips() -> Panel:
    return time_series(
        "Dips a minute",
        "How often utilisation fell under 0.1 after at least a second above 0.5. Something outside of the step "
        "interrupts training: checkpoints, logging, validation, slow batches.",
        [Query(f"{_MINUTE} * {_rate('stallscope_gpu_dips_total')}", _NAME)],
        unit="short",
        links=_CURVE,
    )


def _dip_period() -> Panel:
    return time_series(
        "Period of dips",
        "Time between dips, in seconds and in steps of the run there, where they come regularly; a period of fifty "
        "steps points at what the code does every fifty steps. Nothing here: no regular dips.",
        [
            Query(f"gpu:dip_period:seconds30m{{{GPU}}}", f"{_NAME} seconds"),
            Query(f"gpu:dip_period:steps30m{{{GPU}}}", f"{_NAME} steps"),
        ],
        unit="s",
        overrides=[Override(("byRegexp", "/ steps$/"), {"unit": "none", "custom.axisPlacement": "right"})],
        links=_CURVE,
    )


def _inside() -> tuple[Panel, ...]:
    return (_sm_active(), _occupancy(), _tensor(), _pipes(), _dram(), _engines())


def _rhythm() -> tuple[Panel, ...]:
    return (_histogram(), _below(), _dips(), _dip_period())


# Memory, clocks, and what else the driver holds.


def _memory_bytes() -> Panel:
    return time_series(
        "Memory in bytes",
        "Frame buffer held by processes and kept by the driver; dashed, all that there is. Held without any process: "
        "a dead process still has it, find who holds the device's files.",
        [
            Query(f"stallscope_gpu_memory_used_bytes{{{GPU}}}", f"{_NAME} used"),
            Query(f"stallscope_gpu_memory_reserved_bytes{{{GPU}}}", f"{_NAME} kept by the driver"),
            Query(f"stallscope_gpu_memory_total_bytes{{{GPU}}}", f"{_NAME} limit"),
        ],
        unit="bytes",
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _zombies() -> Panel:
    return time_series(
        "Memory that no process holds",
        "Frame buffer still taken on a GPU without processes, over the least that counts (dashed). Find holders of "
        "/dev/nvidia*, end them, or reset the GPU once it is drained. Nothing here: there is none.",
        [
            Query(f"gpu:zombie_memory:bytes5m{{{GPU}}}", _NAME),
            threshold("zombie_bytes", "least that counts"),
        ],
        unit="bytes",
        overrides=limit_line("least that counts"),
        links=_CURVE,
    )


def _bar1() -> Panel:
    return time_series(
        "BAR1 aperture",
        "The window through which other devices reach this GPU's memory, used and (dashed) in all. Full: peer-to-peer "
        "and GPUDirect mappings fail.",
        [
            Query(f"stallscope_gpu_bar1_used_bytes{{{GPU}}}", _NAME),
            Query(f"stallscope_gpu_bar1_total_bytes{{{GPU}}}", f"{_NAME} limit"),
        ],
        unit="bytes",
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _other_clocks() -> Panel:
    return time_series(
        "Other clocks",
        "Clocks of memory, graphics and video now; dashed, the highest of this model and those configured.",
        [
            Query(f'stallscope_gpu_clock_hertz{{{GPU}, clock!="sm"}}', f"{_NAME} {{{{clock}}}}"),
            Query(f'stallscope_gpu_clock_max_hertz{{{GPU}, clock!="sm"}}', f"{_NAME} {{{{clock}}}} highest limit"),
            Query(
                f'stallscope_gpu_clock_configured_hertz{{{GPU}, clock!="sm"}}',
                f"{_NAME} {{{{clock}}}} configured limit",
            ),
        ],
        unit="hertz",
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _clock_share() -> Panel:
    return time_series(
        "Clock reached, over five minutes",
        "Mean clock of the multiprocessors over the one that is configured or, without one, the highest. Under the "
        "dashed line and hot, the rules speak of thermal throttling.",
        [
            Query(f"gpu:sm_clock:ratio5m{{{GPU}}}", _NAME),
            threshold("thermal_clock", "slow"),
        ],
        unit="percentunit",
        maximum=1,
        overrides=limit_line("slow"),
        links=_CURVE,
    )


def _held_down() -> Panel:
    return time_series(
        "Held down by heat or power supply",
        "Share of the last ten minutes as the alerts judge it, with their thresholds as dashed lines. Nothing here: "
        "never.",
        [
            Query(f"gpu:thermal_throttled:ratio10m{{{GPU}}}", f"{_NAME} heat"),
            Query(f"gpu:power_braked:ratio10m{{{GPU}}}", f"{_NAME} power brake"),
            threshold("thermal_share", "too much heat"),
            threshold("power_brake_share", "too much braking"),
        ],
        unit="percentunit",
        overrides=limit_line("too much heat", "too much braking"),
        links=_CURVE,
    )


def _persistence() -> Panel:
    return state_timeline(
        "Persistence mode",
        "Whether the driver keeps the GPU initialised while nobody uses it. Where it doesn't, every first use waits: "
        "run nvidia-persistenced.",
        [Query(f"max by (cluster, instance, gpu, mig) (stallscope_gpu_persistence_mode{{{GPU}}})", _NAME)],
        mappings=texts({"1": Text("kept initialised", GREEN), "0": Text("left between uses", YELLOW)}),
        width=12,
        height=8,
        show_values=True,
        links=_CURVE,
    )


def _held() -> tuple[Panel, ...]:
    return (
        _memory_bytes(),
        _zombies(),
        _bar1(),
        _persistence(),
        _clock_share(),
        _held_down(),
        _other_clocks(),
    )


# The ways in and out.


def _pcie() -> Panel:
    return time_series(
        "PCIe throughput",
        "Bytes a second each way. Dashed, what the link can carry as it is now: lanes x 2 ^ generation x the bytes a "
        "second of a lane per such unit (threshold h2d_lane_bytes). Near it: send fewer bytes, or overlap copies with "
        "computing.",
        [
            Query(_rate("stallscope_gpu_pcie_receive_bytes_total"), f"{_NAME} to the GPU"),
            Query(_rate("stallscope_gpu_pcie_transmit_bytes_total"), f"{_NAME} from the GPU"),
            Query(
                f"""
                  stallscope_gpu_pcie_link_width{{{GPU}}}
                * 2 ^ stallscope_gpu_pcie_link_generation{{{GPU}}}
                * scalar(max(stallscope:threshold{{name="h2d_lane_bytes"}}))
                """,
                f"{_NAME} limit",
            ),
        ],
        unit="Bps",
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _nvlink() -> Panel:
    return time_series(
        "NVLink throughput",
        "Bytes a second over all links, each way. The driver doesn't say what the links can carry, so that no limit "
        "is drawn. Nothing here: this GPU has no NVLink.",
        [
            Query(_rate("stallscope_gpu_nvlink_receive_bytes_total"), f"{_NAME} received"),
            Query(_rate("stallscope_gpu_nvlink_transmit_bytes_total"), f"{_NAME} sent"),
        ],
        unit="Bps",
        links=_CURVE,
    )


def _pcie_link() -> Panel:
    return table(
        "PCIe link",
        "Generation and lanes now, and the most that GPU and slot can do. Fewer lanes than possible: reseat the card. "
        "A lower generation is normal while idle.",
        [
            Query(f"max by ({_ONE}) (stallscope_gpu_pcie_link_generation{{{GPU}}})", table=True),
            Query(f"max by ({_ONE}) (stallscope_gpu_pcie_link_generation_max{{{GPU}}})", table=True),
            Query(f"max by ({_ONE}) (stallscope_gpu_pcie_link_width{{{GPU}}})", table=True),
            Query(f"max by ({_ONE}) (stallscope_gpu_pcie_link_width_max{{{GPU}}})", table=True),
        ],
        columns={
            **_PLACE,
            "Value #A": "Generation",
            "Value #B": "possible",
            "Value #C": "Lanes",
            "Value #D": "possible lanes",
        },
        unit="none",
        width=12,
        overrides=_PLACE_LINKS,
        no_value="No GPU here tells its PCIe link.",
    )


def _pcie_state() -> Panel:
    return time_series(
        "PCIe link against what is possible",
        "Generation and lanes over the most possible; 100 % is right. The generation may fall while idle; the last "
        "curve is what the rules call degraded.",
        [
            Query(
                f"stallscope_gpu_pcie_link_generation{{{GPU}}} / stallscope_gpu_pcie_link_generation_max{{{GPU}}}",
                f"{_NAME} generation",
            ),
            Query(
                f"stallscope_gpu_pcie_link_width{{{GPU}}} / stallscope_gpu_pcie_link_width_max{{{GPU}}}",
                f"{_NAME} lanes",
            ),
            Query(f"gpu:pcie_degraded:ratio{{{GPU}}}", f"{_NAME} degraded"),
        ],
        unit="percentunit",
        maximum=1,
        links=_CURVE,
    )


def _replays() -> Panel:
    return time_series(
        "PCIe replays a minute",
        "Packets sent again. A few are normal; where the rules judge them too many for this link, that curve is drawn "
        "too: reseat the card or its riser.",
        [
            Query(f"{_MINUTE} * {_rate('stallscope_gpu_pcie_replays_total')}", _NAME),
            Query(f"gpu:pcie_replays:per_minute5m{{{GPU}}}", f"{_NAME} too many"),
        ],
        unit="short",
        overrides=[Override(("byRegexp", "/ too many$/"), {"color": {"mode": "fixed", "fixedColor": RED}})],
        links=_CURVE,
    )


def _links_up() -> Panel:
    return time_series(
        "NVLinks up",
        "Links that are up; dashed, those that the GPU has. Fewer while its neighbours have all: check the fabric "
        "manager, then the bridge or baseboard.",
        [
            Query(f"stallscope_gpu_nvlink_links_active{{{GPU}}}", _NAME),
            Query(f"stallscope_gpu_nvlink_links{{{GPU}}}", f"{_NAME} limit"),
        ],
        unit="none",
        decimals=0,
        overrides=limits_of_each(),
        links=_CURVE,
    )


def _ways() -> tuple[Panel, ...]:
    return (_pcie(), _nvlink(), _pcie_state(), _replays(), _pcie_link(), _links_up())


# Errors.


def _xids() -> Panel:
    seen = f"max by ({_ONE}, xid) (stallscope_gpu_xid_last_timestamp_seconds{{{GPU}}})"
    return table(
        "Xid errors",
        "The driver's error codes that each GPU has had since its exporter started, when each last came, what class "
        "it is, and what to do. Hardware: drain the node.",
        [
            Query(
                f"""
                {_MILLISECONDS} * (
                    {seen}
                  * on (xid) group_left (class, action)
                    topk by (xid) (1, stallscope:xid:class)
                  or on ({_ONE}, xid)
                    label_replace(
                      label_replace({seen}, "class", "unknown", "", ""),
                      "action", "look the code up in NVIDIA's Xid catalogue", "", ""
                    )
                )
                """,
                table=True,
            )
        ],
        columns={**_PLACE, "xid": "Xid", "Value": "Last time", "class": "Class", "action": "What to do"},
        unit="none",
        height=7,
        sort="Last time",
        overrides=[
            *_PLACE_LINKS,
            by_name("Last time", unit="dateTimeAsIso"),
            by_name(
                "Class",
                mappings=texts(
                    {
                        "hw": Text("hardware", RED),
                        "application": Text("application", YELLOW),
                        "workflow": Text("follow-up", ORANGE),
                        "log": Text("for the record", GREY),
                        "unknown": Text("unknown", ORANGE),
                    }
                ),
                **in_colour(),
            ),
            by_name("What to do", custom__minWidth=300),
        ],
        no_value="No Xid since the exporters started, or the driver gives no events.",
    )


def _lost() -> Panel:
    return table(
        "GPUs that don't answer",
        "GPUs that are not read now, and why. Off the bus: read the kernel log for Xid 79 and reboot. Released: "
        "somebody asked for it, and nothing is wrong.",
        [Query(f"stallscope_gpu_lost_info{{{GPU}}} == 1", table=True)],
        columns={**_PLACE, "uuid": "UUID", "reason": "Reason"},
        unit="none",
        width=12,
        height=6,
        overrides=_PLACE_LINKS,
        no_value="Every GPU chosen is read.",
    )


def _reading_age() -> Panel:
    return time_series(
        "Age of the newest reading",
        "Time since each GPU was last read. It grows while a driver hangs, and what the other panels show is absent "
        "then.",
        [Query(f"time() - stallscope_gpu_last_reading_timestamp_seconds{{{GPU}}}", _NAME)],
        unit="s",
        height=6,
        links=_CURVE,
    )


def _ecc() -> Panel:
    return time_series(
        "ECC errors",
        "Memory errors within the step shown. Corrected ones cost nothing but may foretell others; an uncorrected one "
        "ends the job: reset the GPU.",
        [
            Query(
                f"increase(stallscope_gpu_ecc_errors_total{{{GPU}}}[$__rate_interval])",
                f"{_NAME} {{{{kind}}}}",
            )
        ],
        unit="short",
        bars=True,
        links=_CURVE,
    )


def _remapped() -> Panel:
    return time_series(
        "Memory rows remapped and pages retired",
        "Memory taken out of use for its errors. It only grows; fast growth or many uncorrected ones are a case for "
        "the maker.",
        [
            Query(f"stallscope_gpu_remapped_rows{{{GPU}}}", f"{_NAME} rows {{{{kind}}}}"),
            Query(f"stallscope_gpu_retired_pages{{{GPU}}}", f"{_NAME} pages {{{{cause}}}}"),
        ],
        unit="none",
        decimals=0,
        links=_CURVE,
    )


def _remap_state() -> Panel:
    return state_timeline(
        "Row remapping",
        "Whether a remap waits for a reset (reset the GPU when its job ends) or failed (replace the GPU).",
        [
            Query(
                f"max by (cluster, instance, gpu, mig) (stallscope_gpu_row_remap_pending{{{GPU}}})", f"{_NAME} pending"
            ),
            Query(
                f"2 * max by (cluster, instance, gpu, mig) (stallscope_gpu_row_remap_failed{{{GPU}}})",
                f"{_NAME} failed",
            ),
        ],
        mappings=texts({"0": Text("no", GREEN), "1": Text("waits for a reset", YELLOW), "2": Text("failed", RED)}),
        width=12,
        links=_CURVE,
    )


def _nvlink_errors() -> Panel:
    return time_series(
        "NVLink errors",
        "Errors over all links within the step shown; dashed, how many in five minutes the rules take for a fault. "
        "Recoveries and errors that come back: check bridge or baseboard.",
        [
            Query(
                f"increase(stallscope_gpu_nvlink_errors_total{{{GPU}}}[$__rate_interval])",
                f"{_NAME} {{{{kind}}}}",
            ),
            threshold("nvlink_errors", "a fault"),
        ],
        unit="short",
        overrides=limit_line("a fault"),
        links=_CURVE,
    )


def _errors() -> tuple[Panel, ...]:
    return (_xids(), _lost(), _reading_age(), _ecc(), _nvlink_errors(), _remapped(), _remap_state())


# Owners.


def _holders() -> Panel:
    by = f"cluster, instance, gpu, uuid, mig, {_OWNER}"
    return table(
        "Who holds them now",
        "Every holder of every GPU, with the memory that its processes hold and the share of time in which they "
        "computed. A holder that never computes: ask whether the GPU can be given back.",
        [
            Query(f"max by ({by}) (stallscope_gpu_owner_info{{{GPU}}})", table=True),
            Query(f"sum by ({by}) (stallscope_gpu_owner_memory_used_bytes{{{GPU}}})", table=True),
            Query(f"sum by ({by}) ({_rate('stallscope_gpu_owner_busy_seconds_total')})", table=True),
        ],
        columns={
            **_PLACE,
            "user": "User",
            "namespace": "Namespace",
            "pod": "Pod",
            "container": "Container",
            "slurm_job": "Slurm job",
            "Value #B": "Memory",
            "Value #C": "Computing",
        },
        unit="none",
        height=7,
        sort="Memory",
        overrides=[
            *_PLACE_LINKS,
            by_name("Memory", unit="bytes"),
            by_name("Computing", unit="percentunit"),
        ],
        no_value="Nobody holds these GPUs, or the exporter may not see who does.",
    )


def _ranks() -> Panel:
    return table(
        "Runs on these GPUs",
        "Each rank of a training run that computes there. Two runs on one GPU share its time: see whether that was "
        "meant.",
        [
            Query(
                f'max by (cluster, instance, gpu, mig, namespace, run, rank) (gpu_rank:pair:info{{{GPU}, run!=""}})',
                table=True,
            )
        ],
        columns={**_PLACE, "namespace": "Namespace", "run": "Run", "rank": "Rank"},
        unit="none",
        width=12,
        height=7,
        overrides=[*_PLACE_LINKS, by_name("Run", links=[_TO_RUN]), by_name("Rank", links=[_TO_RANK])],
        no_value="No run reports from these GPUs: add the shim to the training code to see it.",
    )


def _history() -> Panel:
    return state_timeline(
        "Who held them",
        "One row for each GPU and holder. A row that goes on while utilisation is nothing is a GPU kept for nothing.",
        [
            Query(
                f"max by (cluster, instance, gpu, mig, {_OWNER}) (stallscope_gpu_owner_info{{{GPU}}})",
                f"GPU {{{{gpu}}}} {_HOLDER}",
                least_step="1m",
            )
        ],
        mappings=texts({"1": Text("holds it", BLUE)}),
        width=12,
        height=7,
        links=_CURVE,
    )


def _busy_by_owner() -> Panel:
    return time_series(
        "Computing, by holder",
        "Share of time in which each holder's processes had kernels resident. It tells who uses a shared GPU.",
        [Query(_rate("stallscope_gpu_owner_busy_seconds_total"), f"GPU {{{{gpu}}}} {_HOLDER}")],
        unit="percentunit",
        links=_CURVE,
    )


def _memory_by_owner() -> Panel:
    return time_series(
        "Memory, by holder",
        "Frame buffer of each holder's processes. A curve without a name is memory that no known holder accounts for.",
        [Query(f"stallscope_gpu_owner_memory_used_bytes{{{GPU}}}", f"GPU {{{{gpu}}}} {_HOLDER}")],
        unit="bytes",
        links=_CURVE,
    )


def _processes() -> Panel:
    return time_series(
        "Processes",
        "Processes with a context on the GPU. More than the run's own: something was left behind, or somebody came "
        "along.",
        [Query(f"stallscope_gpu_processes{{{GPU}}}", f"{_NAME} {{{{kind}}}}")],
        unit="none",
        decimals=0,
        links=_CURVE,
    )


def _sharers() -> Panel:
    return time_series(
        "GPUs with several holders",
        "How many share a GPU that is to be handed out whole. Check CUDA_VISIBLE_DEVICES and the scheduler's "
        "allocation. Nothing here: none is shared by mistake.",
        [Query(f"gpu:sharers:count{{{GPU}}}", _NAME)],
        unit="none",
        decimals=0,
        links=_CURVE,
    )


def _unused() -> Panel:
    return time_series(
        "Held and not used",
        "How long a GPU has been held without computing, once it is longer than the rules allow (dashed). Give it "
        "back, or tell its holder. Nothing here: none.",
        [
            Query(f"gpu:idle_allocated:seconds{{{GPU}}}", _NAME),
            threshold("idle_seconds", "allowed"),
        ],
        unit="s",
        overrides=limit_line("allowed"),
        links=_CURVE,
    )


def _owners() -> tuple[Panel, ...]:
    return (
        _holders(),
        _ranks(),
        _history(),
        _busy_by_owner(),
        _memory_by_owner(),
        _processes(),
        _sharers(),
        _unused(),
    )


# What there is to see at all.


def _mig() -> Panel:
    return table(
        "MIG instances",
        "Parts of GPUs that are handed out on their own; each has verdicts and curves of its own wherever they are "
        "shown.",
        [
            Query(
                f'max by (cluster, instance, gpu, mig, uuid, model) (stallscope_gpu_info{{{GPU}, mig!=""}})', table=True
            )
        ],
        columns={**_PLACE, "model": "Model", "uuid": "UUID"},
        unit="none",
        width=12,
        overrides=_PLACE_LINKS,
        no_value="No GPU chosen is divided into MIG instances.",
    )


def _unsupported() -> Panel:
    return table(
        "Not supported by this GPU and driver",
        "Signals that a model lacks with its driver, and on how many GPUs: panels of these are empty for that reason, "
        "and nothing is wrong.",
        [
            Query(
                f"""
                count by (model, driver_version, signal) (
                    (stallscope_gpu_signal_supported{{{GPU}}} == 0)
                  + on ({_ONE}) group_left (model, driver_version)
                    stallscope_gpu_info{{{GPU}}}
                )
                """,
                table=True,
            )
        ],
        columns={"model": "Model", "driver_version": "Driver", "signal": "Signal", "Value": "GPUs"},
        unit="none",
        width=12,
        sort="GPUs",
        no_value="Every signal is supported here.",
    )


def _available() -> tuple[Panel, ...]:
    return (_unsupported(), _mig())


def dashboard() -> Dashboard:
    """Return the dashboard of GPUs."""
    return Dashboard(
        uid="stallscope-gpu",
        title="Stallscope / GPU",
        description="What holds a GPU back, who has it, and every signal that says so.",
        variables=(datasource(), choices.cluster(), choices.instance(everything=False), choices.gpu()),
        rows=(
            Row("", (_verdicts(), _verdict_timeline(), _causes(), _what_it_is())),
            Row("Use, power, temperature and clocks", _usual()),
            Row("Inside: multiprocessors, pipes, bandwidth", _inside(), collapsed=True),
            Row("Rhythm: dips and idle moments", _rhythm(), collapsed=True),
            Row("PCIe and NVLink", _ways(), collapsed=True),
            Row("Errors", _errors(), collapsed=True),
            Row("Owners, runs and processes", _owners(), collapsed=True),
            Row("Memory and clocks in detail", _held(), collapsed=True),
            Row("Signals and MIG instances", _available(), collapsed=True),
        ),
        annotations=(
            events(
                "Alerts",
                # Alerts of the node have no GPU.
                'ALERTS{cluster=~"$cluster", instance=~"$instance", gpu=~"$gpu|", alertstate="firing", cause!=""}',
                title="{{alertname}}",
                text="{{severity}}: GPU {{gpu}} of {{instance}}",
                colour=ORANGE,
                labels="severity,instance,gpu",
            ),
            events(
                "Xids",
                f"{_MILLISECONDS} * stallscope_gpu_xid_last_timestamp_seconds{{{GPU}}}",
                title="Xid {{xid}}",
                text="GPU {{gpu}} of {{instance}}",
                colour=RED,
                labels="instance,gpu,xid",
                at_value=True,
            ),
        ),
    )
