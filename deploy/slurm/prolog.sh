#!/bin/sh
# Prolog= of slurm.conf, on nodes with an exporter of their own: no job starts on a node of which a GPU is gone. Status 1
# has Slurm drain the node and put the job back into the queue. Where the exporter does not answer, the job starts: what
# watches must not stand in the way.
#
# A GPU counts as gone where it was so for six seconds: a driver that was just loaded needs some. One that was taken out
# on purpose is told for a week, unless the exporter is restarted.
url=${STALLSCOPE_NODE_URL:-http://127.0.0.1:19400}
for _ in 1 2 3 4 5 6; do
  page=$(curl --silent --fail --max-time 2 "$url/metrics") || exit 0
  # What the exporter was asked to let go of, instances of MIG that the job before took apart, and late readings are well.
  lost=$(printf '%s\n' "$page" | sed -nE '/reason="(released|mig_reconfigured|stale)"/d
    s/^stallscope_gpu_lost_info\{.*gpu="([^"]*)".*reason="([^"]*)".*\} 1$/\1 (\2)/p' | tr '\n' ' ')
  [ -n "$lost" ] || exit 0
  sleep "${STALLSCOPE_PROLOG_WAIT:-1}"
done
echo "stallscope: gone from this node: GPU ${lost% }" >&2
exit 1
