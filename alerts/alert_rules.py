"""Generate the alerts on causes, alerts/*.yml, from the rows in `stallscope/model/catalogue/causes.py`.

Run by `make generate`; a test fails when a committed file differs from the output. Alerts without a cause are written
by hand in alerts/stallscope.yml, except the alert on the number of thresholds.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from stallscope.common.bundle import RUNBOOKS
from stallscope.model.catalogue.causes import (
    CAUSES,
    Alert,
    Cause,
    DeviceClass,
    Evidence,
    Found,
    Loss,
    Over,
    Straggler,
    Subject,
    Value,
)
from stallscope.model.catalogue.conditions import general_of
from stallscope.model.view.verdict_words import PHASE_WORDS, ROOT_WORDS, root_words

_TOP = Path(__file__).parents[1]
FOLDER = _TOP / "alerts"
THRESHOLDS = _TOP / "prometheus" / "rules" / "thresholds.yml"

# Labels that identify a run, a GPU, a GPU with the rank on it, and a host.
RUN = "cluster, namespace, run"
GPU = "cluster, job, instance, gpu, uuid, mig"
PAIR = f"{GPU}, namespace, run, rank"
HOST = "cluster, job, instance"

RELIEVED = "input_.+|h2d_bound|sync_stall|callback_stall|comm_bound|straggler_.+|stage_imbalance"
"""Regular expression of the causes that shorter steps end: `run:relieved:info`."""
RELIEVED_BY_SMS = "small_batch|launch_bound"
"""Regular expression of the causes that busier GPUs end, there too."""
_RELIEVED_KEEP = "1m"
"""`keep_firing_for` of their alerts: the expression lets them go on, and ends them at once when the cause is fixed."""

_MUTED_AFTERWARDS = "15m"
"""Time for which an alert on a host stays muted once the alert that mutes it has ended."""

_THIS_RUN = "{run=%q,namespace=%q,cluster=%q}"
_RUN_LABELS = "$labels.run $labels.namespace $labels.cluster"
_RANK = "{run=%q,namespace=%q,cluster=%q,rank=%q}"
_RANK_LABELS = f"{_RUN_LABELS} $labels.rank"
# The GPUs of a run are known only while it reports them.
_GPU_HOURS = (
    f'{{{{ with printf "%f * 24 * run:gpus:count{_THIS_RUN}" $value {_RUN_LABELS} | query }}}}'
    '{{ . | first | value | printf "%.1f" }} GPU-hours a day{{ end }}'
)
_FAILED_RANKS = (
    "bottomk(3, (stallscope_training_state{run=%q,cluster=%q,state=~'failed|lost|terminated'} == 1)"
    " unless on (cluster, run, rank) rank:live:info)"
)
"""Up to three ranks whose process has ended."""

_ODD_STACKS = f'printf "bottomk(3, rank:odd_stack:info{_THIS_RUN})" {_RUN_LABELS} | query'
"""Up to three ranks that differ from most ranks of a stalled run by the place in their code."""
_STACKS = f'printf "topk(1, count by (location, function, call) (rank:stack:info{_THIS_RUN}))" {_RUN_LABELS} | query'
"""The place of most ranks of a stalled run."""
_KNOWN_RANK = (
    f'printf "bottomk(1, rank:odd_stack:info{_THIS_RUN} or run:culprit:info{_THIS_RUN[:-1]},cause=%q}})"'
    f" {_RUN_LABELS} {_RUN_LABELS} $labels.cause | query"
)
"""A rank that the others wait for in a standstill, if one is known."""
_PLACE = "{{ with .Labels.call }}{{ . }}{{ else }}{{ .Labels.function }}{{ end }} at {{ .Labels.location }}"

_HOLDERS = (
    "bottomk(3, group by (namespace, pod, container, slurm_job, user)"
    " (stallscope_gpu_owner_info{instance=%q,gpu=%q,uuid=%q,namespace=%q,user=%q}))"
)
"""Up to three holders of a GPU in the namespace and with the user of the alert."""

_XID = "gpu:xid_hw:timestamp_seconds{instance=%q,gpu=%q,uuid=%q,cluster=%q}"
"""The hardware errors of the GPU."""

_FIRST_NONFINITE = (
    f'{{{{ range printf "topk(1, rank_gpu:claim:info{_THIS_RUN} and on ({RUN}, rank) rank:first_nonfinite:info)"'
    f" {_RUN_LABELS} | query }}}}"
)
"""Start of a template on a GPU of the rank whose loss was the first that is not a number."""
_ITS_FAULTS = (
    '{{ range printf "topk(1, gpu:xid_hw:timestamp_seconds{%[1]s} or gpu:xid_app:timestamp_seconds{%[1]s})"'
    ' (printf "instance=%q,gpu=%q,uuid=%q" .Labels.instance .Labels.gpu .Labels.uuid) | query }}'
    " In the last hour its GPU reported Xid {{ .Labels.xid }}.{{ end }}"
    '{{ range printf "increase(stallscope_gpu_ecc_errors_total{kind=%q,instance=%q,gpu=%q,uuid=%q}[1h]) > 0"'
    ' "uncorrected" .Labels.instance .Labels.gpu .Labels.uuid | query }}'
    ' In the last hour its memory had {{ .Value | printf "%.0f" }} uncorrected errors.{{ end }}'
)
"""The last Xid and the memory errors of this GPU."""

_CULPRIT_PLACE = (
    "rank {{ .Labels.rank }}{{ with .Labels.gpu }}, GPU {{ . }}{{ end }}{{ with .Labels.mig }} MIG {{ . }}{{ end }}"
    " of {{ .Labels.instance }}"
)
"""Place of a culprit, in the format of `place_of` in `stallscope/model/view/verdict_words.py`."""

_ROUNDED = {
    "humanizePercentage": 'printf "%.2f" | humanizePercentage | reReplaceAll "%" " %"',
    "humanizeDuration": (
        'printf "%.1f" | humanizeDuration | reReplaceAll "^([^ ]+ [^ ]+) .*" "$1" | reReplaceAll "( 0[hms])+$" ""'
        ' | reReplaceAll "m( |$)" "min$1" | reReplaceAll "([0-9])([a-z])" "$1 $2"'
    ),
    "humanize1024": (
        'printf "round(vector(%[1]f), scalar(1024 ^ floor(ln(vector(%[1]f)) / ln(vector(1024))) / 10))" | query'
        ' | first | value | humanize1024 | reReplaceAll "k" "K" | reReplaceAll "([0-9])([A-Z]|$)" "$1 $2"'
    ),
}
"""The pipeline for each function that alone would write up to four digits, as in 38.12% or 7.582s."""


def roots(*domains: str) -> tuple[Cause, ...]:
    """Return the causes of these domains that can be the root cause of a verdict."""
    return tuple(
        cause for cause in CAUSES.values() if cause.domain in domains and cause.tier and cause.name not in ROOT_WORDS
    )


def culprit_query(*labels: str) -> str:
    """Return the start of a template on the culprit of a run; the culprit and the alert must share these labels too."""
    names = ("run", "namespace", "cluster", *labels)
    matchers = ",".join(f"{name}=%q" for name in names)
    values = " ".join(f"$labels.{name}" for name in names)
    return f'{{{{ range printf "run:culprit:info{{{matchers}}}" {values} | query }}}}'


def chain(causes: Iterable[Cause], result: str, otherwise: str = "") -> str:
    """Return a template that depends on a culprit's root cause.

    Args:
        causes: the root causes with a template of their own.
        result: the template for these causes; TEXT stands for the words and the remedy of the cause.
        otherwise: the template for all other causes.
    """
    cases = "{{ else if ".join(
        f'eq .Labels.cause "{cause.name}" }}}}' + result.replace("TEXT", f": {root_words(cause.name)}. {cause.remedy}")
        for cause in causes
    )
    default = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    return f"{{{{ if {cases}{default}{{{{ end }}}}"


def root_or(*domains: str) -> str:
    """Return a template with the root cause of a straggler; the text up to `{end}` is used if the cause is unknown."""
    # The culprit must be the alert's rank: the verdict of the run may be about another rank.
    assigned = chain(roots(*domains), '{{ $root = "TEXT" }}')
    found = f'{{{{ $root := "" }}}}{culprit_query("rank")}{assigned}{{{{ end }}}}'
    return found + "{{ if $root }}{{ $root }}{{ else }}"


def reason_or(general: str) -> str:
    """Return a template with the reason of a general cause; the text up to `{end}` is used if none is known."""
    reasons = reasons_of(CAUSES[general])
    named = "|".join(cause.name for cause in reasons)
    query = f'printf "topk(1, run_cause:time_lost:ratio5m{_THIS_RUN[:-1]},cause=~%q}})" {_RUN_LABELS} "{named}" | query'
    cases = "{{ else if ".join(
        f'eq .Labels.cause "{cause.name}" }}}}{{{{ $reason = "The reason is now known: '
        f'{root_words(cause.name).split(": ", 1)[-1]}. {cause.remedy}" }}}}'
        for cause in reasons
    )
    found = f'{{{{ $reason := "" }}}}{{{{ range {query} }}}}{{{{ if {cases}{{{{ end }}}}{{{{ end }}}}'
    return found + "{{ if $reason }}{{ $reason }}{{ else }}"


def reasons_of(general: Cause) -> tuple[Cause, ...]:
    """Return the causes that name the reason of a general cause."""
    return tuple(cause for cause in CAUSES.values() if general_of(cause.name) == general.name)


def loaders(text: str, condition: str = "") -> str:
    """Return a template with a text on the largest number of loader workers of a rank, if it meets the condition."""
    query = f'"max(stallscope_training_dataloader_workers{{run=%q,cluster=%q}}){condition}"'
    return f"{{{{ with printf {query} $labels.run $labels.cluster | query }}}}{text}{{{{ end }}}}"


PHRASES = {
    "run": "{{ $labels.run }}",
    "rank": "{{ $labels.rank }}",
    "instance": "{{ $labels.instance }}",
    "gpu": "GPU {{ $labels.gpu }} ({{ $labels.uuid }}) of {{ $labels.instance }}",
    "value": "{{ $value }}",
    "share": "{{ $value | humanizePercentage }}",
    "bytes": "{{ $value | humanize1024 }}B",
    "rounded": '{{ $value | printf "%.0f" }}',
    "loses": (
        "Run {{ $labels.run }} loses {{ $value | humanizePercentage }} of its "
        f'{{{{ with printf "run:gpus:count{_THIS_RUN}" {_RUN_LABELS} | query }}}}GPU {{{{ end }}}}time'
    ),
    "faster": (
        "without that it would be up to "
        '{{ printf "1 / (1 - clamp_max(vector(%f), 0.99))" $value | query | first | value | printf "%.1f" }} '
        "times as fast"
    ),
    "gone": (
        f'{{{{ with printf "{_FAILED_RANKS}" $labels.run $labels.cluster | query }}}} Start with rank'
        '{{ range sortByLabel "rank" . }} {{ .Labels.rank }}{{ end }}: its process has ended.{{ end }}'
    ),
    "workers": loaders(" (currently {{ . | first | value }})"),
    "idle_sms": "{{ if gt $value 0.0 }} ({{ $value | humanizePercentage }} of GPU time is SMs without work){{ end }}",
    "cgroups": (
        "{{ with printf "
        '"topk(3, host_cgroup:oom_kills:increase10m{instance=%q,cluster=%q})" $labels.instance $labels.cluster '
        '| query }}, in {{ range $index, $found := sortByLabel "cgroup" . }}{{ if $index }}, {{ end }}'
        "{{ .Labels.cgroup }}{{ end }}{{ end }}"
    ),
    "oom_ranks": (
        "{{ with printf "
        '"bottomk(3, rank:oom_kill:info{run=%q,instance=%q,cluster=%q})" $labels.run $labels.instance $labels.cluster '
        '| query }} (rank{{ range sortByLabel "rank" . }} {{ .Labels.rank }}{{ end }}){{ end }}'
    ),
    "used_by": "{{ if $labels.run }} Run {{ $labels.run }} has rank {{ $labels.rank }} on it.{{ end }}",
    "since": "{{ if $labels.run }} It began under run {{ $labels.run }} (rank {{ $labels.rank }}).{{ end }}",
    "held_by": (
        "{{ if $labels.run }} Run {{ $labels.run }} has rank {{ $labels.rank }} on it.{{ else }}"
        f'{{{{ with printf "{_HOLDERS}" $labels.instance $labels.gpu $labels.uuid $labels.namespace $labels.user '
        '| query }} It is held by {{ range $number, $found := sortByLabel "pod" . }}{{ if $number }}, {{ end }}'
        "{{ with .Labels }}{{ if .pod }}pod {{ .namespace }}/{{ .pod }}{{ else }}"
        "{{ if .slurm_job }}Slurm job {{ .slurm_job }}{{ else if .container }}container {{ .container }}{{ end }}"
        "{{ if and .user (or .slurm_job .container) }} of {{ end }}{{ with .user }}{{ . }}{{ end }}"
        "{{ end }}{{ else }}an unknown process{{ end }}{{ end }}.{{ end }}{{ end }}"
    ),
    "began": (
        f'{{{{ range printf "topk(1, group by (xid) (last_over_time({_XID}[10m])))" $labels.instance $labels.gpu '
        "$labels.uuid $labels.cluster | query }} It began as hardware error Xid {{ .Labels.xid }} (GpuXidHw).{{ end }}"
    ),
    "unused": "{{ if $labels.unused }} The GPU is not in use.{{ end }}",
    "culprit": (
        f"{culprit_query()} The first suspect is {_CULPRIT_PLACE}{chain(roots('hardware'), 'TEXT', '.')}{{{{ end }}}}"
    ),
    "first_nonfinite": f"{_FIRST_NONFINITE} It began on {_CULPRIT_PLACE}.{_ITS_FAULTS}{{{{ end }}}}",
    "slow_link": (
        f'{{{{ range printf "bottomk(1, run_link:speed_of_peers:ratio{_THIS_RUN})" {_RUN_LABELS} | query }}}} Link '
        "{{ .Labels.device }}{{ with .Labels.port }} port {{ . }}{{ end }} of {{ .Labels.instance }} has "
        "{{ .Value | humanizePercentage }} of the speed of that link on the run's other hosts: if the run uses it, "
        "repair it first.{{ end }}"
    ),
    "unless_known": f"{{{{ with {_KNOWN_RANK} }}}}{{{{ else }}}}",
    "stacks": "`stallscope stacks {{ $labels.run }}`",
    "straggler": f"{culprit_query('rank')}{_CULPRIT_PLACE}{{{{ else }}}}rank {{{{ $labels.rank }}}}{{{{ end }}}}",
    "slowed_or": root_or("hardware"),
    "starved_or": root_or("input"),
    "reason_or": reason_or("input_bound"),
    "clocks": (
        f'{{{{ range printf "run_rank:sm_clock:ratio5m{_RANK}" {_RANK_LABELS} | query }}}}: its clock is at '
        "{{ .Value | humanizePercentage }} of its maximum{{ end }}{{ range printf "
        f'"run_rank:sm_clock:ratio5m{_RANK} / run_rank:clock_of_peers:ratio5m" {_RANK_LABELS} | query }}}}, '
        "the other ranks' at {{ .Value | humanizePercentage }}{{ end }}"
    ),
    "stages": (
        f'{{{{ range printf "run_stage:work_of_others:ratio5m{_THIS_RUN}" {_RUN_LABELS} | query }}}} '
        "{{ with .Labels.pipeline_stage }}Stage {{ . }}{{ else }}A group of ranks with equal delays, which is taken "
        "for a stage,{{ end }} "
        'computes {{ .Value | printf "%.1f" }} times as long as the other ranks'
        f'{{{{ range printf "run:stages:count{_THIS_RUN}" {_RUN_LABELS} | query }}}}, in a pipeline of {{{{ .Value }}}}'
        "{{ end }}.{{ end }}"
    ),
    "end": "{{ end }}",
}
"""Phrases that descriptions share. A description names them in single braces."""

_CLUSTER = "{{ with $labels.cluster }}&var-cluster={{ . | urlquery }}{{ end }}"
_DASHBOARDS: dict[Subject, str] = {
    "training": (
        "/d/stallscope-run?var-run={{ $labels.run | urlquery }}"
        f"{{{{ with $labels.namespace }}}}&var-namespace={{{{ . | urlquery }}}}{{{{ end }}}}{_CLUSTER}"
    ),
    "gpu": (
        "/d/stallscope-gpu?var-instance={{ $labels.instance | urlquery }}"
        f"&var-gpu={{{{ $labels.gpu | urlquery }}}}{_CLUSTER}"
    ),
    "host": f"/d/stallscope-host?var-instance={{{{ $labels.instance | urlquery }}}}{_CLUSTER}",
}

_HEADERS = {
    "training_input": "Alerts on waiting for data.",
    "training_device": "Alerts on GPUs that do too little useful work, and on GPUs that wait for the host.",
    "training_memory": "Alerts on GPU memory, as the framework's allocator reports it.",
    "training_time": "Alerts on time without steps, and on slow steps.",
    "training_ranks": "Alerts on differences between the ranks of a run.",
    "gpu_hardware": (
        "Alerts on the health of GPUs. `run` and `rank` are set if a run uses the GPU, `later_run` if it started after "
        "the alert, `unused` if nothing uses it."
    ),
    "gpu_use": "Alerts on the use of GPUs. `namespace` and `user` come from the run on the GPU, or from its holder.",
    "host": "Alerts on host problems, whether or not they slow training.",
}
"""First line of each file, by its name."""


def stem(cause: Cause) -> str:
    """Return the name of the file with the alert on a cause, without its extension."""
    return cause.domain if cause.subject == cause.domain else f"{cause.subject}_{cause.domain}"


def block(text: str, spaces: int = 2) -> str:
    """Return a text with every line indented."""
    return textwrap.indent(text, " " * spaces)


def threshold(name: str) -> str:
    """Return the PromQL of a threshold."""
    return f'scalar(stallscope:threshold{{name="{name}"}})'


def firing(cause: Cause) -> str:
    """Return the PromQL that selects the alert while it fires."""
    return f'ALERTS{{alertname="{cause.alert}", alertstate="firing"}}'


def is_relieved(cause: Cause) -> bool:
    """Return True if the rules see the end of the cause in `run:relieved:info`."""
    return re.fullmatch(f"{RELIEVED}|{RELIEVED_BY_SMS}", cause.name) is not None


def kept(value: str, cause: Cause, shape: Loss | None, labels: str) -> str:
    """Return the PromQL that lets an alert go on for `keep`, unless its run was relieved of the cause or is renewed."""
    assert cause.rule
    clearing = f"\n  >=\n    {threshold(shape.warning)} * {threshold('clear_ratio')}" if shape else ""
    return f"""\
or on ({labels})
    {value}{clearing}
and on ({labels})
  {firing(cause)}
unless on ({RUN})
  (max_over_time(run:relieved:info[{cause.rule.keep}]) or run:renewed:info)"""


def levels(value: str, lost: str, cause: Cause, shape: Loss, over: str, labels: str) -> str:
    """Return the PromQL of an alert with two levels.

    The alert clears when the value falls below the warning level times the clearing ratio.

    Args:
        value: the series that is compared and returned.
        lost: the GPU time that the run loses, which must exceed the warning level for the whole window.
        cause: the cause of the alert.
        shape: the levels.
        over: the matching of `value` and `lost`, as in `and on (…)`.
        labels: the labels that identify the subject of the alert.
    """
    return f"""\
  {value} >= {threshold(shape.high)}
or
  {value}
and{over}
  min_over_time({lost}[{shape.window}]) >= {threshold(shape.warning)}
and{over}
  {lost} offset {shape.window}
or
  {value} >= {threshold(shape.warning)} * {threshold("clear_ratio")}
and on ({labels})
  {firing(cause)}"""


def of_one_rank(loses: str, straggler: str, cause: Cause, shape: Loss) -> str:
    """Return the PromQL of an alert on a straggler that keeps its rank for as long as this rank delays the others.

    Of several ranks that are equally slow, another one is the straggler every few minutes. Each would be another
    notification, and its wait would begin again.

    Args:
        loses: the PromQL of the loss, by run.
        straggler: the series of the present straggler.
        cause: the cause of the alert.
        shape: the levels.
    """
    return f"""\
  max by ({RUN}) (
{block(loses, 4)}
  )
* on ({RUN}) group_right ()
  topk by ({RUN}) (1,
    group by ({RUN}, rank) (
        ALERTS{{alertname="{cause.alert}"}}
      and on ({RUN}, rank)
        run_rank:straggler_score:ratio5m >= {threshold(shape.warning)} * {threshold("clear_ratio")}
    )
    or on ({RUN})
    group by ({RUN}, rank) ({straggler})
  )"""


def one_episode(loses: str, cause: Cause, shape: Loss) -> str:
    """Return the PromQL of a loss, such that a loss and its reason are one alert, whichever fires first.

    The alert on the general cause goes on once the reason becomes known. The alert on the reason starts
    only without it.

    Args:
        loses: the PromQL of the alert alone.
        cause: the cause of the alert.
        shape: the levels.
    """
    if reasons := reasons_of(cause):
        named = "|".join(each.name for each in reasons)
        return f"""\
{loses}
or on ({RUN})
    max by ({RUN}) (run_cause:time_lost:ratio5m{{cause=~"{named}"}})
  >=
    {threshold(shape.warning)} * {threshold("clear_ratio")}
and on ({RUN})
  {firing(cause)}"""
    if general := general_of(cause.name):
        return f"""\
  (
{block(loses, 4)}
  )
unless on ({RUN})
  ({firing(CAUSES[general])} unless on ({RUN}) {firing(cause)})"""
    return loses


def cleared_late(series: str, name: str, cause: Cause, labels: str) -> str:
    """Return the PromQL of an alert with one level, which clears below that level times the clearing ratio."""
    return f"""\
  {series} >= {threshold(name)}
or
  {series} >= {threshold(name)} * {threshold("clear_ratio")}
and on ({labels})
  {firing(cause)}"""


def over_an_hour(cause: Cause, shape: Loss) -> str:
    """Return the PromQL of an alert on the last hour, unless the run was relieved of the cause within it."""
    series = f'run_cause:time_lost:ratio1h{{cause="{cause.name}"}}'
    return f"""\
or on ({RUN})
  (
{block(cleared_late(series, shape.warning, cause, RUN), 4)}
  )
unless on ({RUN})
  (
      max_over_time(run:relieved:info[1h])
    and on ({RUN})
      max_over_time(run:verdict:ratio5m{{cause="{cause.name}"}}[1h])
  )"""


def on_gpu(value: str, pairs: str, labels: str = "") -> str:
    """Return the PromQL that adds the labels of the runs on a GPU to a value of that GPU, which keeps `labels`."""
    return f"{block(pairs)}\n* on ({GPU}) group_left ({labels})\n  (\n{block(value, 4)}\n  )"


def under_first_run(cause: Cause, alert: Alert) -> str:
    """Return the PromQL of the pairs of an alert that keeps the run with which it began for as long as the fault lasts.

    Otherwise every run that starts on a faulty GPU would be another notification. Such a run gets an alert with the
    label `later_run`, which is muted and mutes the alerts that the fault explains. Once the rank of the first run has
    lived on another GPU for 15 minutes, the alert no longer names that run, whose other alerts it would mute. A GPU
    that nothing uses has become unused by then.
    """
    pairs = block(pairs_of(cause, alert), 4)
    began = firing(cause)[:-1] + ', later_run="", unused=""}'
    return f"""\
(
{pairs}
  unless on ({GPU})
    {began}
  or
    max by ({PAIR}) ({began})
  and on ({GPU})
{pairs}
  unless on ({RUN}, rank)
    (
        rank_gpu:before_alert:info
      unless on ({RUN}, rank)
        (rank_gpu:before_alert:info and on ({GPU}) {began})
    )
  or
    label_replace(
{block(pairs_of(cause, alert, 'run!=""'), 8)}
      and on ({GPU})
        {began}
      unless on ({PAIR})
        {began},
      "later_run", "true", "", ""
    )
)"""


def lasts_over_runs(cause: Cause, alert: Alert) -> bool:
    """Return True if the alert is on a fault of a GPU that runs do not cause, and someone is notified of it."""
    return cause.domain == "hardware" and alert.severity != "info" and isinstance(alert.shape, (Over, Evidence, Value))


def filled(pattern: str, names: Mapping[str, str], text: str, cause: Cause) -> str:
    """Replace each name that the pattern finds in a text of the table of causes."""

    def replacement(found: re.Match[str]) -> str:
        if found[1] not in names:
            raise ValueError(f"{cause.name}: unknown name {found[0]}; use one of {', '.join(names)}")
        return names[found[1]]

    return re.sub(pattern, replacement, text)


def promql(text: str, cause: Cause) -> str:
    """Expand the abbreviations in an expression of the table of causes."""
    names = {"run": RUN, "gpu": GPU, "pair": PAIR, "firing": firing(cause)}
    text = filled(r"\{(\w+)\}", names, textwrap.dedent(text).strip("\n").rstrip(), cause)
    return re.sub(r"threshold\((\w+)\)", lambda found: threshold(found[1]), text)


def condition(cause: Cause, alert: Alert, pairs: str = "") -> str:
    """Return the alert's condition as PromQL, by its shape; `pairs` for those of an alert on a GPU."""
    shape = alert.shape
    lost = f'run_cause:time_lost:ratio5m{{cause="{cause.name}"}}'
    if isinstance(shape, Loss):
        loses = one_episode(levels(lost, lost, cause, shape, "", RUN), cause, shape)
        every = "|".join(each.name for each in (cause, *reasons_of(cause)))
        longest = f'max by ({RUN}) (max_over_time(run_cause:time_lost:ratio5m{{cause=~"{every}"}}[{alert.keep}]))'
        if is_relieved(cause):
            loses = f"{loses}\n{kept(longest, cause, shape, RUN)}"
        return f"{loses}\n{over_an_hour(cause, shape)}" if shape.hour else loses
    if isinstance(shape, Straggler):
        straggler = f'run_rank_cause:straggler:ratio5m{{cause="{cause.name}"}}'
        both = Loss("straggler_warning", "straggler_high", window="3m")
        loses = of_one_rank(levels(straggler, lost, cause, both, f" on ({RUN})", RUN), straggler, cause, both)
        longest = f"max_over_time({straggler}[{alert.keep}])"
        return f"{loses}\n{kept(longest, cause, both, f'{RUN}, rank')}"
    if isinstance(shape, DeviceClass):
        ranks = f"""\
  {lost}
and
    count by ({RUN}, cause) (
      count by ({RUN}, rank, cause) (pair_cause:time_lost:ratio5m{{cause="{cause.name}"}})
    )
  >= on ({RUN}) group_left ()
    {threshold("device_ranks")} * run:ranks:count"""
        longest = f"max_over_time({lost}[{alert.keep}])"
        return f"{ranks}\n{kept(longest, cause, None, RUN)}" if is_relieved(cause) else ranks
    if isinstance(shape, Found):
        return f"{lost} > 0"
    if isinstance(shape, Over):
        labels = {"training": RUN, "gpu": GPU, "host": HOST}[cause.subject]
        inner = cleared_late(shape.series, shape.threshold, cause, labels)
        return on_gpu(inner, pairs) if cause.subject == "gpu" else inner
    if isinstance(shape, Evidence):
        return f"{block(pairs)}\n* on ({GPU}) group_left ()\n  {shape.value}" if shape.value else block(pairs)
    if isinstance(shape, Value):
        return on_gpu(promql(shape.promql, cause), pairs, shape.labels)
    return promql(shape.promql, cause)


def pairs_of(cause: Cause, alert: Alert, matcher: str = "") -> str:
    """Return the PromQL of the pairs of GPU and rank that an alert on a GPU is about; empty if its shape has none."""
    shape = alert.shape
    if isinstance(shape, Evidence):
        matchers = ", ".join(filter(None, (f'cause="{cause.name}", domain="{cause.domain}"', matcher)))
        lost = f"pair_cause:time_lost:ratio5m{{{matchers}}}"
        return f"max by ({PAIR}) (\n  {lost} >= bool 0\n)"
    series = getattr(shape, "of", "gpu_rank:unhealthy:info")
    return f"{series}{{{matcher}}}" if matcher else series


def pages_for_gpu(cause: Cause, alert: Alert) -> bool:
    """Return True if the alert is critical on a GPU in use and a warning on an unused GPU."""
    return cause.subject == "gpu" and alert.severity == "critical"


def marked_unused(in_use: str, unused: str) -> str:
    """Return the PromQL of an alert with the label `unused` on unused GPUs.

    Args:
        in_use: PromQL of the alert on GPUs in use.
        unused: PromQL of the alert on unused GPUs.
    """
    matching = f"on ({GPU})\n  gpu:unused:info"
    return f"""\
  (
{block(in_use, 4)}
  )
unless {matching}
or
  label_replace(
      (
{block(unused, 8)}
      )
    and {block(matching, 4).strip()},
    "unused", "true", "", ""
  )"""


def unless_muted(whole: str, muting: Iterable[Cause]) -> str:
    """Return the PromQL of an alert on a host that other alerts mute, also for some time after they have ended.

    Memory stays short for minutes after the kernel has killed a process: that is the same incident.
    """
    named = "|".join(str(each.alert) for each in muting)
    return f"""\
  (
{block(whole, 4)}
  )
unless on ({HOST})
  last_over_time(ALERTS{{alertname=~"{named}", alertstate="firing", severity!="info"}}[{_MUTED_AFTERWARDS}])"""


def expression(cause: Cause, alert: Alert) -> str:
    """Return the alert's whole PromQL; alerts on runs also get job class and user, for severity and routes."""
    plain = condition(cause, alert, pairs_of(cause, alert))
    whole = condition(cause, alert, under_first_run(cause, alert)) if lasts_over_runs(cause, alert) else plain
    if pages_for_gpu(cause, alert):
        return marked_unused(whole, plain)
    if muting := [
        each for each in CAUSES.values() if cause.subject == each.subject == "host" and cause.name in each.mutes
    ]:
        return unless_muted(whole, muting)
    if cause.subject != "training":
        return whole
    return f"  (\n{block(whole, 4)}\n  )\n* on ({RUN}) group_left (job_class, user)\n  run:job_class:info"


def severity(cause: Cause, alert: Alert) -> str:
    """Return the severity label as a Go template."""
    found: str = alert.severity
    if alert.info_where:
        found = f"{{{{ if {alert.info_where} }}}}info{{{{ else }}}}{found}{{{{ end }}}}"
    if pages_for_gpu(cause, alert):
        found = f"{{{{ if $labels.unused }}}}warning{{{{ else }}}}{found}{{{{ end }}}}"
    if cause.subject == "training":
        found = f'{{{{ if eq $labels.job_class "experiment" }}}}info{{{{ else }}}}{found}{{{{ end }}}}'
    return found


def lost(cause: Cause, alert: Alert) -> str:
    """Return the annotation on lost GPU-hours; empty if the alert's value is not a share of GPU time."""
    shape = alert.shape
    if isinstance(shape, DeviceClass):
        return f"{{{{ if gt $value 0.0 }}}}{_GPU_HOURS}{{{{ end }}}}"
    if not (isinstance(shape, (Loss, Straggler, Found)) or getattr(shape, "loses", False)):
        return ""
    if cause.subject == "training":
        return _GPU_HOURS
    return '{{ with printf "24 * %f" $value | query }}{{ . | first | value | printf "%.1f" }} GPU-hours a day{{ end }}'


def rounded(text: str) -> str:
    """Return a template with every share, time and size rounded and written as the other views write them."""
    return re.sub("|".join(_ROUNDED), lambda found: _ROUNDED[found[0]], text)


def description(cause: Cause, alert: Alert) -> str:
    """Return the description on one line, with its phrases expanded."""
    names = {**PHRASES, "line": line_of_phase(cause, " "), "place": place_of_ranks(" ")}
    return rounded(" ".join(filled(r"(?<!\{)\{(\w+)\}(?!\})", names, alert.description, cause).split()))


def line_of_code(cause: Cause, alert: Alert) -> str:
    """Return the annotation on the line of code, which the description has too; empty if it names none."""
    if "{place}" in alert.description:
        return place_of_ranks()
    return rounded(line_of_phase(cause)) if "{line}" in alert.description else ""


def line_of_phase(cause: Cause, before: str = "") -> str:
    """Return a template with the line of code in which the time of the cause passes, after the text `before`."""
    own, named = cause.phase == "*", "|".join(PHASE_WORDS)
    query = (
        f'printf "topk(1, run_phase:code:ratio2m{_THIS_RUN[:-1]},phase{"!~" if own else "="}%q}})" {_RUN_LABELS} '
        f'"{named if own else cause.phase}" | query'
    )
    phase = PHASE_WORDS.get(cause.phase, "phase {{ .Labels.phase }}")
    line = "{{ .Labels.location }}{{ with .Labels.function }} {{ . }}{{ end }}"
    if cause.phase == "data_wait":
        line += loaders(", with {{ . | first | value }} loader workers", " > 1")
    return f"{{{{ range {query} }}}}{before}{{{{ .Value | humanizePercentage }}}} of {phase} is in {line}.{{{{ end }}}}"


def place_of_ranks(before: str = "") -> str:
    """Return a template with the place in the code of the ranks that differ, or else of most ranks, after `before`."""
    odd = f"Rank {{{{ .Labels.rank }}}} is in {_PLACE}, unlike most ranks."
    most = f"Stack of {{{{ .Value }}}} of its ranks: in {_PLACE}."
    return (
        f'{{{{ with {_ODD_STACKS} }}}}{{{{ range $number, $_ := sortByLabel "rank" . }}}}'
        f"{before or '{{ if $number }} {{ end }}'}{odd}{{{{ end }}}}"
        f"{{{{ else }}}}{{{{ range {_STACKS} }}}}{before}{most}{{{{ end }}}}{{{{ end }}}}"
    )


def quoted(text: str) -> str:
    """Return a text as a YAML string."""
    return "'" + text.replace("'", "''") + "'"


def folded(name: str, text: str) -> str:
    """Return an annotation as a folded YAML block that does not break short Go templates."""
    whole = re.sub(r"\{\{[^}]{,70}\}\}", lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.fill(whole, 105, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
    return f"          {name}: >-\n" + block(lines, 12) + "\n"


def rule(cause: Cause, alert: Alert) -> str:
    """Return the alerting rule as YAML."""
    assert cause.alert
    is_kept = isinstance(alert.shape, (Loss, Straggler, DeviceClass)) and is_relieved(cause)
    times = {"for": alert.wait, "keep_firing_for": _RELIEVED_KEEP if is_kept else alert.keep}
    # Give the indentation (`|2`), because most expressions begin with spaces.
    written = f"      - alert: {cause.alert}\n        expr: |2\n{block(expression(cause, alert), 10)}\n"
    written += "".join(f"        {name}: {value}\n" for name, value in times.items() if value != "0m")
    written += f"        labels:\n          severity: {quoted(severity(cause, alert))}\n          cause: {cause.name}\n"
    written += f"        annotations:\n          summary: {quoted(alert.summary)}\n"
    if hours := lost(cause, alert):
        written += f"          lost: {quoted(hours)}\n"
    written += folded("description", description(cause, alert))
    if line := line_of_code(cause, alert):
        written += folded("line", line)
    written += f"          runbook_url: {RUNBOOKS}/{cause.alert}.md\n"
    return written + f"          dashboard_url: {quoted(_DASHBOARDS[cause.subject])}\n"


def cause_file(name: str) -> str:
    """Return the file with the alerts of a domain."""
    found = [(cause, cause.rule) for cause in CAUSES.values() if stem(cause) == name]
    rules = "\n".join(rule(cause, alert) for cause, alert in found if alert)
    return f"""\
# {_HEADERS[name]}
# Generated from `stallscope/model/catalogue/causes.py` by `make generate`; do not edit.
groups:
  - name: stallscope-alerts-{name.replace("_", "-")}
    rules:
{rules}"""


_GUARD = """\
      - alert: StallscopeThresholdMissing
        expr: |2
            (count(count by (name) (stallscope:threshold)) or vector(0)) != COUNT
          or
            count by (name) (stallscope:threshold) > 1
        for: 5m
        labels:
          severity: warning
          cause: threshold_missing
        annotations:
          summary: A threshold of the Stallscope rules is missing or duplicated.
          description: >-
            {{ if $labels.name }}Threshold {{ $labels.name }} is defined {{ $value }} times{{ else }}Prometheus has
            {{ $value }} thresholds, but the rules use COUNT{{ end }}. Rules that use a missing or duplicated threshold
            return nothing. Run `stallscope doctor`, which lists missing thresholds. Restore each name once in
            prometheus/rules/thresholds.yml, check that rule_files lists that file once, and reload Prometheus.
          runbook_url: RUNBOOKS/StallscopeThresholdMissing.md
          dashboard_url: /d/stallscope-health
"""
_GUARD_BEGIN = "      # -- Generated from `prometheus/rules/thresholds.yml` by `make generate`; do not edit.\n"
_GUARD_END = "      # -- End of the generated alert.\n"


def between(path: Path, begin: str, end: str, text: str) -> str:
    """Return the text of a hand-written file, with the generated text between two of its lines."""
    before, found, remainder = path.read_text(encoding="utf-8").partition(begin)
    _, ended, after = remainder.partition(end)
    assert found, f"{path}: no line {begin.strip()!r}"
    assert ended, f"{path}: no line {end.strip()!r}"
    return before + begin + text + end + after


def stallscope_file() -> str:
    """Return alerts/stallscope.yml with the current number of thresholds."""
    count = THRESHOLDS.read_text(encoding="utf-8").count("record: stallscope:threshold")
    guard = _GUARD.replace("COUNT", str(count)).replace("RUNBOOKS", RUNBOOKS)
    return between(FOLDER / "stallscope.yml", _GUARD_BEGIN, _GUARD_END, guard)


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every generated file."""
    for name in _HEADERS:
        yield f"{name}.yml", cause_file(name)
    yield "stallscope.yml", stallscope_file()


if __name__ == "__main__":
    for file_name, written_text in files():
        (FOLDER / file_name).write_text(written_text, encoding="utf-8")
