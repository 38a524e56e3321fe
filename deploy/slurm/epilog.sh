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
rm -f "$targets/$SLURM_JOB_ID-$node.json" "$targets/$SLURM_JOB_ID-$node.json.new"
case ${SLURM_JOB_UID:-} in
  "" | *[!0-9]*) ;;
  *) rm -rf "/tmp/stallscope-$SLURM_JOB_UID-$SLURM_JOB_ID" ;;
esac

if [ "${STALLSCOPE_RESET_GPUS:-0}" = 1 ] && [ -n "${SLURM_JOB_GPUS:-}" ]; then
  curl --silent --fail --max-time 5 --request POST "$url/-/release?for=60s" >/dev/null && sleep "${STALLSCOPE_RELEASE_WAIT:-3}"
  nvidia-smi --gpu-reset --id="$SLURM_JOB_GPUS" >&2 || echo "stallscope: the GPUs $SLURM_JOB_GPUS could not be reset" >&2
  curl --silent --max-time 5 --request POST "$url/-/resume" >/dev/null
fi
exit 0 # anything else would drain the node
