"""Thousands of workers over one sweep in one bucket, simulated: `python -m benchmarks.scale --help`.

engine.py   lets blocking code run in simulated time: greenlets over SimPy's events
bucket.py   a bucket with its published limits, latencies and prices, as a `Store`
fleet.py    machines that run `sweeps.worker.loop.work`, and what happens to them
"""
