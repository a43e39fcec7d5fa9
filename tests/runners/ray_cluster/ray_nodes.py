"""A Ray cluster on this machine: a head and two nodes. `python ray_nodes.py FOLDER`, with Ray's interpreter.

It prints READY and the port of the head's dashboard; a line `kill` on its input kills one node outright, `add`
adds one, and the end of its input ends it all.
"""

from __future__ import annotations

import socket
import sys

from ray.cluster_utils import Cluster


def main() -> None:
    """Bring the cluster up, and do as the input says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    memory = {"object_store_memory": 80 * 2**20}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": True, "dashboard_port": port, **memory},
    )
    node = {"num_cpus": 4, "resources": {"slot": 2}, **memory}
    nodes = [cluster.add_node(**node) for _ in range(2)]
    cluster.wait_for_nodes()
    print(f"READY {port}", flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        elif line.strip() == "add":
            nodes.append(cluster.add_node(**node))
        print("DONE", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
