"""The placement of engines and learners on the nodes of a cluster, decided before anything is started.

`place` is a pure function of what the nodes have and what is requested. It fills nodes in order, spreads engines evenly, and raises one
clear error if something does not fit. Ray gets the chosen node of each part as a preference: if that node is lost, the part moves to any
other node that has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.cluster.start import import_ray
from turnwise.util.errors import TurnwiseError

ROUNDING = 1e-6
ENGINE_SHARE, LEARNER_SHARE = 0.6, 0.4  # of a shared GPU: two engines never fit on one


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
    """What a run requests. Engines take one core each on a CPU, and `tensor_parallel` GPUs each on GPUs. `colocated`: learner i and engine
    i share GPUs."""

    engines: int = 1
    learners: int = 1
    gpu: bool = False
    tensor_parallel: int = 1
    colocated: bool = True
    workers: int = 0  # environment processes per engine


@dataclass(frozen=True)
class Seat:
    """A part on a node. `share` is the part of each GPU that it may take."""

    part: str  # "learner 0", "engine 1"
    node: Node
    cpus: float
    gpus: float = 0.0
    share: float = 1.0


@dataclass
class _Room:
    node: Node
    cpus: float
    gpus: float
    engines: int = 0


def place(nodes: Sequence[Node], demand: Demand) -> list[Seat]:
    """A seat for every part; an error that says what is missing if there is not enough."""
    rooms = [_Room(node, float(node.cpus), float(node.gpus)) for node in sorted(nodes, key=lambda node: not node.here)]
    check_totals(nodes, demand)
    learners: list[Seat] = []
    if demand.gpu and not demand.colocated:
        learners += [_sit(rooms, f"learner {k}", 0.0 if demand.learners == 1 else 1.0, 1.0, k == 0) for k in range(demand.learners)]
    share = ENGINE_SHARE if demand.colocated else 1.0
    gpus = demand.tensor_parallel * share if demand.gpu else 0.0
    engines = [_sit(rooms, f"engine {k}", 1.0, gpus, spread=True) for k in range(demand.engines)]
    if demand.learners == 1 and not learners:
        learners.append(Seat("learner 0", rooms[0].node, 0.0, 0.0))  # this process, which Ray does not count
    elif not learners:
        learners += [_sit(rooms, f"learner {k}", 1.0, LEARNER_SHARE if demand.gpu else 0.0) for k in range(demand.learners)]
    return [*learners, *engines]


def check_totals(nodes: Sequence[Node], demand: Demand) -> None:
    """An error if the cluster as a whole is too small."""
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    where = "this machine has" if len(nodes) == 1 else f"the {len(nodes)} nodes have"
    processes = demand.engines + (demand.learners if demand.learners > 1 else 0)
    if processes > cpus:
        what = f"{demand.engines} engines" + (f" and {demand.learners} learners" if demand.learners > 1 else "")
        raise TurnwiseError(
            f"cluster: {what} take one core each at least, and {where} {cpus}. Lower cluster.engines, or add nodes (cluster.address)"
        )
    if not demand.gpu:
        return
    wanted = demand.engines * demand.tensor_parallel
    needed = max(wanted, demand.learners) if demand.colocated else wanted + demand.learners
    if needed > gpus:
        how = "shared with the learners" if demand.colocated else f"and {demand.learners} for learners"
        raise TurnwiseError(
            f"cluster: {demand.engines} engines with {demand.tensor_parallel} GPUs each need {wanted} GPUs {how}, {needed} in all, and "
            f"{where} {gpus}. Lower cluster.engines, cluster.learners or cluster.tensor_parallel, or add nodes (cluster.address)"
        )


def _sit(rooms: list[_Room], part: str, cpus: float, gpus: float, here: bool = False, spread: bool = False) -> Seat:
    fits = [room for room in rooms if room.cpus >= cpus and room.gpus >= gpus - ROUNDING and (not here or room.node.here)]
    if not fits:
        wanted = f"{cpus:g} cores" + (f" and {gpus:g} GPUs" if gpus else "")
        left = ", ".join(f"{room.node.address} has {room.cpus:g} cores and {room.gpus:g} GPUs left" for room in rooms)
        where = "this machine" if here else "one node"
        raise TurnwiseError(f"cluster: {part} needs {wanted} on {where}: {left}. A part is never split over nodes: lower what is asked for")
    room = min(fits, key=lambda room: room.engines / max(room.node.cpus, 1)) if spread else fits[0]
    seat = Seat(part, room.node, cpus, gpus)
    room.cpus, room.gpus = room.cpus - cpus, room.gpus - gpus
    room.engines += spread
    return seat


def nodes() -> list[Node]:
    """The living nodes of the cluster that this process is connected to."""
    ray = import_ray()
    here = ray.get_runtime_context().get_node_id()
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            has: dict[str, Any] = node["Resources"]
            size = int(has.get("CPU", 0)), int(has.get("GPU", 0)), float(has.get("memory", 0.0))
            found.append(Node(node["NodeID"], node["NodeManagerAddress"], *size, here=node["NodeID"] == here))
    return found
