#!/bin/sh
# Prolog= of slurm.conf, for nodes with an exporter: no job starts on a node that has lost a GPU. With status 1, Slurm
# drains the node and requeues the job. If the exporter does not respond, the job starts: monitoring must not block jobs.
#
# A GPU counts as lost after six seconds, because a driver that was just loaded needs some time. A GPU that was removed on
# purpose is reported for a week, or until the exporter is restarted.
url=${STALLSCOPE_NODE_URL:-http://127.0.0.1:19400}
for _ in 1 2 3 4 5 6; do
  page=$(curl --silent --fail --max-time 2 "$url/metrics") || exit 0
  # Released GPUs, MIG instances that the previous job destroyed, and late readings are no faults.
  lost=$(printf '%s\n' "$page" | sed -nE '/reason="(released|mig_reconfigured|stale)"/d
    s/^stallscope_gpu_lost_info\{.*gpu="([^"]*)".*reason="([^"]*)".*\} 1$/\1 (\2)/p' | tr '\n' ' ')
  [ -n "$lost" ] || exit 0
  sleep "${STALLSCOPE_PROLOG_WAIT:-1}"
done
echo "stallscope: GPU ${lost% }: lost; see alerts/runbooks/GpuLost.md" >&2
exit 1
