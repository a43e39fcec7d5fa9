#!/bin/bash
set -u
exec -- python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --nodes 2
