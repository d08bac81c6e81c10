"""Where the parts of a recipe go on a cluster, and whether its nodes have what is needed. Decided before anything is loaded."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from turnwise.cluster.placement import Demand, Node, Seat, lacking, nodes, place
from turnwise.cluster.probe import check_engine, probe, problems
from turnwise.cluster.start import connect, free_port, leave
from turnwise.config.cluster import Cluster
from turnwise.config.schema import Config
from turnwise.engines.registry import declared
from turnwise.learn.models import choose_device
from turnwise.setup.programs import is_program
from turnwise.util.errors import TurnwiseError

SOON = 2.0  # seconds for Ray to notice what is free
LEAVES = 30.0  # seconds for Ray to notice that a node is gone
LOOKS = 0.2  # seconds between two looks


@dataclass(frozen=True)
class Checked:
    """What a cluster has, and where each part of a recipe goes; `problems` say why it cannot be placed."""

    nodes: list[Node]
    versions: dict[str, dict[str, str]]
    seats: list[Seat]
    problems: list[str]


def check_cluster(config: Config) -> Checked:
    """Ask every node what it has, and place the recipe. Nothing is loaded. What no cluster can play is an error before Ray is started."""
    check_program(config)
    own = config.cluster or Cluster()
    started = connect(own.address)
    try:
        found = nodes()
        versions = probe(found)
        try:
            check_recipe(config)
            seats, wrong = place(found, demand_of(config)), list[str]()
        except TurnwiseError as error:
            seats, wrong = [], [str(error)]
        if busy := lacking(seats, SOON):
            wrong.append(busy)
        used = {seat.node.id: seat.node for seat in seats}.values()
        return Checked(found, versions, seats, [*wrong, *problems(used or found, versions, needed_packages(config))])
    finally:
        leave(started)


def check_recipe(config: Config) -> None:
    """An error for what no cluster can play, for an engine that is too old on this machine, and for a port that is in use here."""
    check_program(config)
    check_engine(config.engine.name)
    if config.cluster is not None and config.cluster.port is not None:
        free_port(config.cluster.port)


def check_program(config: Config) -> None:
    """An error if the environment is a program."""
    if is_program(config):
        raise TurnwiseError(
            f"cluster: environment {config.env.name!r} is played in one process, because it is a program and each of its attempts becomes "
            "several trajectories. Train without the [cluster] section (cluster=none)"
        )


def seats_for(config: Config) -> list[Seat]:
    """A seat for every part of a run; an error if there is none, or if a node lacks a package. Ray lists a node that has just died for some
    seconds more: then all parts are placed again, without it."""
    while True:
        seats = place(nodes(), demand_of(config))
        wrong, silent = _check_seats(seats, needed_packages(config))
        if not wrong:
            return seats
        if not _left({seat.node.id for seat in seats}, LEAVES if silent else 0.0):
            raise TurnwiseError(wrong)


def _check_seats(seats: Sequence[Seat], needed: Sequence[str]) -> tuple[str, bool]:
    """What is wrong with the nodes of these seats, and whether one of them does not answer."""
    if busy := lacking(seats):
        return f"{busy}. Wait until they have ended, or lower cluster.engines", False
    away = {seat.node.id: seat.node for seat in seats if not seat.node.here}
    versions = probe(away.values())
    return "; ".join(problems(away.values(), versions, needed)), any("error" in found for found in versions.values())


def _left(ids: Collection[str], patience: float) -> bool:
    """Whether one of these nodes leaves the cluster in time."""
    until = time.monotonic() + patience
    while set(ids) <= {node.id for node in nodes()}:
        if time.monotonic() >= until:
            return False
        time.sleep(LOOKS)
    return True


def needed_packages(config: Config) -> list[str]:
    """What a node must have installed to play a recipe."""
    lora = config.model.lora
    adapters = {"peft": lora is not None, "bitsandbytes": lora is not None and lora.base == "4bit"}
    engine = declared(config.engine.name).packages
    return ["turnwise", "torch", "transformers", *engine, *(name for name, needed in adapters.items() if needed)]


def demand_of(config: Config) -> Demand:
    """What a recipe needs of a cluster."""
    own = config.cluster or Cluster()
    gpu = choose_device(config.device) == "cuda"
    return Demand(own.engines, own.learners, gpu, own.tensor_parallel, own.placement == "colocated")
