ray job submit --submission-id sweep-toy-cee5fe0b --no-wait -- python3 -P -m runners.ray_cluster.pool_job run --label sweep-toy-cee5fe0b --workers 3 --resources '{"num_cpus": 8, "num_gpus": 2, "accelerator_type": "A100"}' --restarts 2 --grace 45 '--script=#!/bin/bash
set -u
export OMP_NUM_THREADS=8
export MKL_NUM_THREADS=8
export OPENBLAS_NUM_THREADS=8
export HF_HOME='"'"'/data/it'"'"'"'"'"'"'"'"'s mine'"'"'
: "${WANDB_API_KEY:?is a secret of this pool, and not set here}"
trap '"'"'exit 75'"'"' TERM
trap '"'"'[ $? -eq 75 ] && exit 75; exit 1'"'"' EXIT
set -e +u
eval '"'"'module load cuda
source ~/venv/bin/activate'"'"'
set +e
trap - TERM EXIT
exec -- python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --max-trials 4
'
