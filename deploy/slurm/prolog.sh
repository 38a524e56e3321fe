#!/bin/sh
# Prolog= of slurm.conf, on nodes with an exporter of their own: no job starts on a node of which a GPU is gone. Status 1
# has Slurm drain the node and put the job back into the queue. Where the exporter does not answer, the job starts: what
# watches must not stand in the way.
url=${STALLSCOPE_NODE_URL:-http://127.0.0.1:19400}
page=$(curl --silent --fail --max-time 2 "$url/metrics") || exit 0
lost=$(printf '%s\n' "$page" | sed -nE 's/^stallscope_gpu_up\{.*gpu="([^"]*)".*\} 0(\.0)?$/\1/p' | tr '\n' ' ')
[ -z "$lost" ] || { echo "stallscope: GPU ${lost% } of this node is gone; reboot it" >&2; exit 1; }
