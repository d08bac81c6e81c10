"""The placement of engines and learners on the nodes of a cluster, decided before anything is started.

`place` is a pure function of what the nodes have and what is requested. It fills nodes in order, spreads engines evenly, and raises one
clear error if something does not fit. Every process has a core; where there are fewer cores than processes, up to four share one, which
is slow and still works. Ray gets the chosen node of each part as a preference: if that node is lost, the part moves to any
other node that has room.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.cluster.start import import_ray
from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import counted

ROUNDING = 1e-6
ENGINE_SHARE, LEARNER_SHARE = 0.6, 0.4  # of a shared GPU: two engines never fit on one
CORE_SHARES = (1.0, 0.5, 0.33, 0.25)  # of a core, for each process
PATIENCE = 30.0  # seconds for others to give back what they use: engines of a run that has just ended, for example
LOOKS = 0.2  # seconds between two looks


@dataclass(frozen=True)
class Node:
    """A machine of the cluster. `here`: the one where this process runs."""

    id: str
    address: str
    cpus: int
    gpus: int = 0
    memory: float = 0.0  # bytes
    here: bool = False


@dataclass(frozen=True)
class Demand:
    """What a run requests. On GPUs, engines take `tensor_parallel` of them each. `colocated`: learner i and engine i share GPUs."""

    engines: int = 1
    learners: int = 1
    gpu: bool = False
    tensor_parallel: int = 1
    colocated: bool = True

    @property
    def processes(self) -> int:
        """The actors. A single learner is the driver's process."""
        return self.engines + (self.learners if self.learners > 1 else 0)


@dataclass(frozen=True)
class Bundle:
    """A part on a node, with what it takes there."""

    part: str  # "learner 0", "engine 1"
    node: Node
    cpus: float
    gpus: float = 0.0


@dataclass
class _Room:
    node: Node
    cpus: float
    gpus: float
    engines: int = 0


def place(nodes: Sequence[Node], demand: Demand) -> list[Bundle]:
    """A bundle for every part; an error that says what is missing if there is not enough."""
    rooms = [_Room(node, float(node.cpus), float(node.gpus)) for node in sorted(nodes, key=lambda node: not node.here)]
    check_totals(nodes, demand)
    core = core_share(nodes, demand.processes)
    learners: list[Bundle] = []
    if demand.gpu and not demand.colocated:
        learners += [_sit(rooms, f"learner {k}", 0.0 if demand.learners == 1 else core, 1.0, k == 0) for k in range(demand.learners)]
    share = ENGINE_SHARE if demand.colocated else 1.0
    gpus = demand.tensor_parallel * share if demand.gpu else 0.0
    engines = [_sit(rooms, f"engine {k}", core, gpus, spread=True) for k in range(demand.engines)]
    if demand.learners == 1 and not learners:
        learners.append(Bundle("learner 0", rooms[0].node, 0.0, 0.0))  # this process, which Ray does not count
    elif not learners:
        learners += [_sit(rooms, f"learner {k}", core, LEARNER_SHARE if demand.gpu else 0.0) for k in range(demand.learners)]
    return [*learners, *engines]


def check_totals(nodes: Sequence[Node], demand: Demand) -> None:
    """An error if the cluster as a whole is too small."""
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    where = "this machine has" if len(nodes) == 1 else f"the {len(nodes)} nodes have"
    if not core_share(nodes, demand.processes):
        what = counted(demand.engines, "engine") + (f" and {demand.learners} learners" if demand.learners > 1 else "")
        lower = "cluster.engines" + (" or cluster.learners" if demand.learners > 1 else "")
        raise TurnwiseError(
            f"cluster: {what} take a quarter of a core each at least, and {where} {counted(cpus, 'core')}. Lower {lower}, or add nodes "
            "(cluster.address)"
        )
    if not demand.gpu:
        return
    wanted = demand.engines * demand.tensor_parallel
    needed = max(wanted, demand.learners) if demand.colocated else wanted + demand.learners
    if needed > gpus:
        how = "shared with the learners" if demand.colocated else f"and {demand.learners} for learners"
        engines, each = counted(demand.engines, "engine"), counted(demand.tensor_parallel, "GPU")
        raise TurnwiseError(
            f"cluster: {engines} with {each} each need {counted(wanted, 'GPU')} {how}, {needed} in all, and {where} {gpus}. Lower "
            "cluster.engines, cluster.learners or cluster.tensor_parallel, or add nodes (cluster.address)"
        )


def core_share(nodes: Sequence[Node], processes: int) -> float:
    """The largest share of a core that every process can have; 0 if there is none."""
    return next((share for share in CORE_SHARES if sum(int(node.cpus / share) for node in nodes) >= processes), 0.0)


def _sit(rooms: list[_Room], part: str, cpus: float, gpus: float, here: bool = False, spread: bool = False) -> Bundle:
    fits = [room for room in rooms if room.cpus >= cpus and room.gpus >= gpus - ROUNDING and (not here or room.node.here)]
    if not fits:
        wanted = f"{cpus:g} cores" + (f" and {gpus:g} GPUs" if gpus else "")
        left = ", ".join(f"{room.node.address} has {room.cpus:g} cores and {room.gpus:g} GPUs left" for room in rooms)
        where = "this machine" if here else "one node"
        raise TurnwiseError(f"cluster: {part} needs {wanted} on {where}: {left}. A part is never split over nodes: lower what is asked for")
    room = min(fits, key=lambda room: room.engines / max(room.node.cpus, 1)) if spread else fits[0]
    bundle = Bundle(part, room.node, cpus, gpus)
    room.cpus, room.gpus = room.cpus - cpus, room.gpus - gpus
    room.engines += spread
    return bundle


def crowded(bundles: Sequence[Bundle]) -> str:
    """A note if processes share cores; otherwise ""."""
    shares = [bundle.cpus for bundle in bundles if bundle.cpus]
    return (
        f"cluster: {len(shares)} processes share cores, up to {round(1 / min(shares))} on one: slower than with a core each"
        if min(shares, default=1) < 1
        else ""
    )


def lacking(bundles: Sequence[Bundle], patience: float = PATIENCE) -> str:
    """What others use of the cluster that these bundles need; "" if it is free, or becomes free in time."""
    ray, end = import_ray(), time.monotonic() + patience
    needed = {"CPU": ("cores", sum(bundle.cpus for bundle in bundles)), "GPU": ("GPUs", sum(bundle.gpus for bundle in bundles))}
    while True:
        free, wrong = ray.available_resources(), ""
        for name, (what, wanted) in needed.items():
            if wanted > (left := float(free.get(name, 0.0))) + ROUNDING:
                wrong = f"cluster: {wanted:g} {what} are needed and {left:g} are free: other programs use the rest of this cluster"
        if not wrong or time.monotonic() > end:
            return wrong
        time.sleep(LOOKS)


def prefers(node: Node, waits: bool = False) -> Any:
    """Tells Ray to start a process on this node, or on any other if this one is gone or has no room. `waits`: for room, as long as the node
    lives. That is what Ray does by itself: without this, an engine whose place was taken would wait while other nodes have room."""
    import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=True, _spill_on_unavailable=not waits)


def nodes() -> list[Node]:
    """The living nodes of the cluster that this process is connected to."""
    ray = import_ray()
    here = ray.get_runtime_context().get_node_id()
    alive = []
    for node in ray.nodes():
        if node["Alive"]:
            has: dict[str, Any] = node["Resources"]
            size = int(has.get("CPU", 0)), int(has.get("GPU", 0)), float(has.get("memory", 0.0))
            alive.append(Node(node["NodeID"], node["NodeManagerAddress"], *size, here=node["NodeID"] == here))
    return alive
