#!/bin/sh
# TaskProlog= of slurm.conf. Its output sets variables of the task: a run gets a name that people know, and what is tried
# out on partitions for that is held to an experiment's thresholds. What the user has set stays.
if [ -n "${SLURM_JOB_NAME:-}" ]; then
  name=$(printf %s "$SLURM_JOB_NAME" | tr -c 'A-Za-z0-9._-' '_' | cut -c -64)
  # An array's tasks are runs of their own, and so are steps of one task (a sweep); the parts of a heterogeneous job are
  # one run. A step's environment has the name that its batch script was given here.
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
