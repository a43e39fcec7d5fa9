#!/bin/bash
set -u
exec -- python3 -m sweeps worker --storage gs://bucket/sweeps/toy --max-trials 4
