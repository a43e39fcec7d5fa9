ray job submit --submission-id sweep-toy-cee5fe0b --no-wait -- python3 -P -m runners.ray_cluster.pool_job run --label sweep-toy-cee5fe0b --workers 2 --resources '{"num_cpus": 1}' --nodes 2 --restarts 5 --grace 30 '--script=#!/bin/bash
set -u
exec -- python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --nodes 2
'
