#!/bin/sh
# Epilog= of slurm.conf. It removes the job's allocation, which prolog.sh wrote, and the files of a job's exporter that was
# killed: Prometheus would report the leftover target as a node that is down. With STALLSCOPE_RESET_GPUS=1 it also resets
# the job's GPUs, which the node's exporter releases meanwhile. Set this only on clusters that give whole GPUs to one job.
targets=${STALLSCOPE_TARGETS:-/shared/stallscope/targets}
node=${SLURMD_NODENAME:-$(hostname)}
url=${STALLSCOPE_NODE_URL:-http://127.0.0.1:19400}
case ${SLURM_JOB_ID:-} in
  "" | *[!0-9]*) exit 0 ;;
esac
rm -f "${STALLSCOPE_ALLOCATIONS:-/run/stallscope-slurm}/$SLURM_JOB_ID"

# Run a command as the job's user, who owns the files: root may have no rights on a shared file system, and root's rights
# must not be used on paths that a user controls.
as_user() {
  [ "$(id -u)" = 0 ] || { "$@"; return; }
  setpriv --reuid="$SLURM_JOB_UID" --regid="${SLURM_JOB_GID:-$(id -g "$SLURM_JOB_UID")}" --clear-groups "$@"
}
case ${SLURM_JOB_UID:-} in
  "" | *[!0-9]*) ;;
  *) as_user rm -rf "$targets/$SLURM_JOB_ID-$node.json" "$targets/$SLURM_JOB_ID-$node.json.new" \
    "/tmp/stallscope-$SLURM_JOB_UID-$SLURM_JOB_ID" ;;
esac

# Send a request to the node's exporter. If it rejects requests, send the signal with the same effect.
request() {
  curl --silent --fail --max-time 5 --request POST "$url/-/$1" >/dev/null ||
    systemctl kill --signal="$2" stallscope-exporter.service 2>/dev/null
}
# Print the job's GPUs by UUID, which Slurm knows with AutoDetect, otherwise by PCI address. Slurm then numbers GPUs by
# their device files (/dev/nvidia0), nvidia-smi by their addresses: on some machines the same number is another job's GPU.
# The number of a MIG instance is not of a GPU.
addresses() {
  case ${CUDA_VISIBLE_DEVICES:-} in
    *MIG-*) return 1 ;;
    GPU-*) printf %s "$CUDA_VISIBLE_DEVICES"; return ;;
  esac
  for number in $(printf %s "$SLURM_JOB_GPUS" | tr , ' '); do
    case $number in *[!0-9]*) return 1 ;; esac
    found=$(grep -lE "^Device Minor:[[:space:]]*${number}[[:space:]]*$" \
      "${STALLSCOPE_DRIVER_GPUS:-/proc/driver/nvidia/gpus}"/*/information 2>/dev/null) || return 1
    found=${found%/information}
    printf '%s%s' "${separator:-}" "${found##*/}"
    separator=,
  done
}
if [ "${STALLSCOPE_RESET_GPUS:-0}" = 1 ] && [ -n "${SLURM_JOB_GPUS:-}" ]; then
  if gpus=$(addresses); then
    request "release?for=60s" SIGUSR1 && sleep "${STALLSCOPE_RELEASE_WAIT:-3}"
    nvidia-smi --gpu-reset --id="$gpus" >&2 || echo "stallscope: GPUs $gpus: not reset; run nvidia-smi --gpu-reset when no process uses them" >&2
    request resume SIGUSR2
  else
    echo "stallscope: GPUs $SLURM_JOB_GPUS: not reset, because the driver lists no such device files; check File= in gres.conf" >&2
  fi
fi
exit 0 # any other status drains the node
