#!/bin/bash

# Parameters
#SBATCH --array=0-2%3
#SBATCH --job-name=sweep-toy-cee5fe0b
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/home/me/sweep-logs/toy/pool/%A_%a_0_log.out
#SBATCH --requeue
#SBATCH --signal=TERM@30

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /home/me/sweep-logs/toy/pool/%A_%a_%t_log.out python3 -P -u -m submitit.core._submit /home/me/sweep-logs/toy/pool


# teardown
status=$?
[ -e /home/me/sweep-logs/toy/pool/leave-"$SLURM_JOB_ID" ] && exit 0
[ $status -eq 75 ] && scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
exit $status