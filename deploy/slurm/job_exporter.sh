#!/bin/bash
# An exporter for one node of a Slurm job, without root; train.sbatch starts one on each node. It listens on a free port,
# receives the job's reports on a socket in its own folder, and writes a target file for Prometheus. It removes the folder
# and the target file when the job ends.
set -euo pipefail

: "${SLURM_JOB_ID:?job_exporter.sh is for a step of a Slurm job}"
command -v stallscope >/dev/null || { echo "job_exporter.sh: stallscope: not on PATH; install it from a checkout: pip install '.[exporter]'" >&2; exit 1; }
targets=${STALLSCOPE_TARGETS:-/shared/stallscope/targets}
node=${SLURMD_NODENAME:-$(hostname)}
folder=/tmp/stallscope-$(id -u)-$SLURM_JOB_ID
target=$targets/$SLURM_JOB_ID-$node.json
umask 077

mkdir "$folder" 2>/dev/null || { [ -d "$folder" ] && [ -O "$folder" ] && [ ! -L "$folder" ]; } || {
  echo "job_exporter.sh: $folder: owned by another user; have that user or root remove it" >&2
  exit 1
}

: >"$folder/log"

exporter=
finish() {
  rm -f "$target" "$target.new"
  if [ -n "$exporter" ]; then
    kill "$exporter" 2>/dev/null || true
    wait "$exporter" || true
  fi
  rm -rf "$folder"
}
trap finish EXIT
trap 'exit 0' TERM INT HUP USR1

# Reports are received on the socket only: every user of the node can reach the other receivers.
stallscope exporter --web.listen-address="${STALLSCOPE_LISTEN:-:0}" --no-web.enable-reports --no-web.enable-release \
  --report.udp-address= --report.unix-socket="$folder/report.sock" "$@" 2>>"$folder/log" &
exporter=$!
port=
for _ in {1..300}; do
  port=$(sed -nE 's/.* msg=answering address=[^ ]*:([0-9]+) .*/\1/p' "$folder/log" | head -n 1)
  if [ -n "$port" ] || ! kill -0 "$exporter" 2>/dev/null; then break; fi
  sleep 0.1
done
[ -n "$port" ] || { cat "$folder/log" >&2; exit 1; }

# Print a text as a JSON string on one line.
quoted() { printf '"%s"' "$(printf %s "$1" | tr -d '[:cntrl:]' | sed 's/[\\"]/\\&/g')"; }
# Every user can write to the folder: never write through a link or into a folder that another user created there.
rm -f "$target.new"
set -o noclobber
cat >"$target.new" <<EOF
[{"targets": [$(quoted "$(hostname -f 2>/dev/null || hostname):$port")], "labels": {
  "cluster": $(quoted "${SLURM_CLUSTER_NAME:-}"),
  "slurm_job_id": $(quoted "$SLURM_JOB_ID"),
  "slurm_job_name": $(quoted "${SLURM_JOB_NAME:-}"),
  "slurm_user": $(quoted "${SLURM_JOB_USER:-$(id -un)}"),
  "slurm_account": $(quoted "${SLURM_JOB_ACCOUNT:-}"),
  "slurm_partition": $(quoted "${SLURM_JOB_PARTITION:-}")
}}]
EOF
chmod 644 "$target.new"
mv -T "$target.new" "$target" # atomic, because Prometheus may be reading
wait "$exporter" || { tail -n 20 "$folder/log" >&2; exit 1; } # it failed; its log is deleted with the folder
