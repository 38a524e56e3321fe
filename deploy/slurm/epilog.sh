#!/bin/sh
# Epilog= of slurm.conf. Takes away what a job's own exporter leaves when it was killed: a target that no longer answers
# would be told as a node that is down. With STALLSCOPE_RESET_GPUS=1 it also resets the job's GPUs, for which the node's
# exporter lets go of them; that takes whole GPUs, given to one job.
targets=${STALLSCOPE_TARGETS:-/shared/stallscope/targets}
node=${SLURMD_NODENAME:-$(hostname)}
url=${STALLSCOPE_NODE_URL:-http://127.0.0.1:19400}
case ${SLURM_JOB_ID:-} in
  "" | *[!0-9]*) exit 0 ;;
esac

# As the job's user, to whom all of it belongs: root may have no rights on a shared file system, and should lend none.
as_user() {
  [ "$(id -u)" = 0 ] || { "$@"; return; }
  setpriv --reuid="$SLURM_JOB_UID" --regid="${SLURM_JOB_GID:-$(id -g "$SLURM_JOB_UID")}" --clear-groups "$@"
}
case ${SLURM_JOB_UID:-} in
  "" | *[!0-9]*) ;;
  *) as_user rm -rf "$targets/$SLURM_JOB_ID-$node.json" "$targets/$SLURM_JOB_ID-$node.json.new" \
    "/tmp/stallscope-$SLURM_JOB_UID-$SLURM_JOB_ID" ;;
esac

# Asks the node's exporter, or sends the signal of the same meaning where it takes no such requests.
ask() {
  curl --silent --fail --max-time 5 --request POST "$url/-/$1" >/dev/null ||
    systemctl kill --signal="$2" stallscope-exporter.service 2>/dev/null
}
if [ "${STALLSCOPE_RESET_GPUS:-0}" = 1 ] && [ -n "${SLURM_JOB_GPUS:-}" ]; then
  ask "release?for=60s" SIGUSR1 && sleep "${STALLSCOPE_RELEASE_WAIT:-3}"
  nvidia-smi --gpu-reset --id="$SLURM_JOB_GPUS" >&2 || echo "stallscope: the GPUs $SLURM_JOB_GPUS could not be reset" >&2
  ask resume SIGUSR2
fi
exit 0 # anything else would drain the node
