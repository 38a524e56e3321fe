#!/bin/sh
# TaskProlog= of slurm.conf. Its output sets environment variables of the task: the run is named after the job, and jobs
# in test partitions are experiments. Variables that the user has set are kept.
if [ -n "${SLURM_JOB_NAME:-}" ]; then
  name=$(printf %s "$SLURM_JOB_NAME" | tr -c 'A-Za-z0-9._-' '_' | cut -c -64)
  # Each task of an array is a run, and each step with one task (a sweep). The parts of a heterogeneous job are one run.
  # A step inherits the name that this script gave the batch script.
  run=$name-${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}
  case ${SLURM_STEP_NUM_TASKS:-}:${SLURM_STEP_ID:-} in
    1:[0-9] | 1:[0-9][0-9] | 1:[0-9][0-9][0-9] | 1:[0-9][0-9][0-9][0-9]) step=.$SLURM_STEP_ID ;;
    *) step= ;;
  esac
  [ -n "${STALLSCOPE_RUN:-}" ] && [ "$STALLSCOPE_RUN" != "$run" ] || echo "export STALLSCOPE_RUN=$run$step"
fi
if [ -z "${STALLSCOPE_JOB_CLASS:-}" ]; then
  case ${SLURM_JOB_PARTITION:-} in
    debug* | dev* | interactive* | test*) echo "export STALLSCOPE_JOB_CLASS=experiment" ;;
  esac
fi
exit 0
