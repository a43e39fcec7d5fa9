env python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --max-trials 4 >> /home/me/sweep-logs/toy/pool/worker-1.log 2>&1
env python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --max-trials 4 >> /home/me/sweep-logs/toy/pool/worker-2.log 2>&1
env python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --max-trials 4 >> /home/me/sweep-logs/toy/pool/worker-3.log 2>&1
