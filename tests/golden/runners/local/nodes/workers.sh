env NODE_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=31317 python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --nodes 2 >> /home/me/sweep-logs/toy/pool/worker-1-host-0.log 2>&1
env NODE_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=31317 python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --nodes 2 >> /home/me/sweep-logs/toy/pool/worker-1-host-1.log 2>&1
env NODE_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=23235 python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --nodes 2 >> /home/me/sweep-logs/toy/pool/worker-2-host-0.log 2>&1
env NODE_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=23235 python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --nodes 2 >> /home/me/sweep-logs/toy/pool/worker-2-host-1.log 2>&1
