#!/bin/bash
set -u
export OMP_NUM_THREADS=8
export MKL_NUM_THREADS=8
export OPENBLAS_NUM_THREADS=8
export HF_HOME='/data/it'"'"'s mine'
: "${WANDB_API_KEY:?is a secret of this pool, and not set here}"
trap 'exit 75' TERM
trap '[ $? -eq 75 ] && exit 75; exit 1' EXIT
set -e +u
eval 'module load cuda
source ~/venv/bin/activate'
set +e
trap - TERM EXIT
exec -- python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --max-trials 4
