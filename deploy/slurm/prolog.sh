#!/bin/sh
# Prolog= of slurm.conf, for nodes with an exporter: no job starts on a node that has lost a GPU. With status 1, Slurm
# drains the node and requeues the job. If the exporter does not respond, the job starts: monitoring must not block jobs.
# When the job starts, its GPUs are recorded for the exporter, which then knows their owner before a process uses them.
#
# A GPU counts as lost after six seconds, because a driver that was just loaded needs some time. A GPU that was removed on
# purpose is reported for a week, or until the exporter is restarted.
url=${STALLSCOPE_NODE_URL:-http://127.0.0.1:19400}
allocations=${STALLSCOPE_ALLOCATIONS:-/run/stallscope-slurm}

# Write the job's allocation, and let the job start whether or not this succeeds. Slurm's numbers of GPUs follow its
# configuration; the UUIDs in CUDA_VISIBLE_DEVICES, which it knows with AutoDetect, are unambiguous.
start_job() {
  case ${SLURM_JOB_ID:-} in "" | *[!0-9]*) exit 0 ;; esac
  [ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
  umask 022
  draft=$allocations/.$SLURM_JOB_ID
  { mkdir -p "$allocations" &&
    printf 'boot=%s\njob=%s\nuser=%s\ngpus=%s\ndevices=%s\n' "$(cat /proc/sys/kernel/random/boot_id)" "$SLURM_JOB_ID" \
      "${SLURM_JOB_USER:-}" "$SLURM_JOB_GPUS" "${CUDA_VISIBLE_DEVICES:-${ROCR_VISIBLE_DEVICES:-}}" >"$draft" &&
    mv -f "$draft" "$allocations/$SLURM_JOB_ID"; } ||
    echo "stallscope: $allocations: the job's GPUs are not recorded; check that root may write there" >&2
  exit 0
}
for _ in 1 2 3 4 5 6; do
  page=$(curl --silent --fail --max-time 2 "$url/metrics") || start_job
  # Released GPUs, MIG instances that the previous job destroyed, and late readings are no faults.
  lost=$(printf '%s\n' "$page" | sed -nE '/reason="(released|mig_reconfigured|stale)"/d
    s/^stallscope_gpu_lost_info\{.*gpu="([^"]*)".*reason="([^"]*)".*\} 1$/\1 (\2)/p' | tr '\n' ' ')
  [ -n "$lost" ] || start_job
  sleep "${STALLSCOPE_PROLOG_WAIT:-1}"
done
echo "stallscope: GPU ${lost% }: lost; see alerts/runbooks/GpuLost.md" >&2
exit 1
