"""A Ray cluster of simulated nodes, in a process of its own: reads `add` from its input, and ends all nodes at the end of it."""

from __future__ import annotations

import sys
from typing import Any

STORE = {"object_store_memory": 80 * 2**20}


def main(count: int, cpus: int) -> None:
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False, **STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(count):
        cluster.add_node(num_cpus=cpus, **STORE)
    print(f"address {cluster.address}", flush=True)
    for line in sys.stdin:
        if line.strip() == "add":
            cluster.add_node(num_cpus=cpus, wait=False, **STORE)
            print("added", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
