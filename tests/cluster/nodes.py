"""A Ray cluster of simulated nodes, in a process of its own: reads `add` from its input, and ends all nodes at the end of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

STORE = {"object_store_memory": 80 * 2**20}
TRIES = 10
PATIENT = {  # a busy machine is slow, and that is not a loss
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
T = TypeVar("T")


def tried(work: Callable[[], T]) -> T:
    """Ray gives the agents of a node 15 seconds to start, which a busy machine may exceed."""
    for again in range(TRIES):
        try:
            return work()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if again == TRIES - 1:
                raise
    raise AssertionError


def main(count: int) -> None:
    """A head with room for everything, or one without room and this many nodes."""
    from ray.cluster_utils import Cluster

    cpus = 2
    head: dict[str, Any] = {"num_cpus": 0 if count else 6, "include_dashboard": False, **STORE}
    cluster = tried(lambda: Cluster(initialize_head=True, head_node_args=head))
    for _ in range(count):
        tried(lambda: cluster.add_node(num_cpus=cpus, wait=False, **STORE))
    cluster.wait_for_nodes(timeout=120)
    print(f"address {cluster.address}", flush=True)
    for line in sys.stdin:
        if line.strip() == "add":
            tried(lambda: cluster.add_node(num_cpus=cpus, wait=False, **STORE))
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
