"""Where the parts of a recipe go on a cluster, and whether its nodes have what is needed. Decided before anything is loaded."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from turnwise.cluster.placement import Bundle, Demand, Node, lacking, nodes, place
from turnwise.cluster.probe import probe, problems
from turnwise.cluster.settings import Cluster
from turnwise.cluster.start import connect, leave
from turnwise.learn.models import choose_device
from turnwise.recipe.schema import Config
from turnwise.setup.environment import is_program
from turnwise.util.errors import TurnwiseError

SOON = 2.0  # seconds for Ray to notice what is free
LEAVES = 30.0  # seconds for Ray to notice that a node is gone
LOOKS = 0.2  # seconds between two looks


@dataclass(frozen=True)
class Checked:
    """What a cluster has, and where each part of a recipe goes; `problems` say why it cannot be placed."""

    nodes: list[Node]
    versions: dict[str, dict[str, str]]
    bundles: list[Bundle]
    problems: list[str]


def check_cluster(config: Config) -> Checked:
    """Ask every node what it has, and place the recipe. Nothing is loaded. What no cluster can play is an error before Ray is started."""
    check_program(config)
    cluster = config.cluster or Cluster()
    started = connect(cluster.address)
    try:
        alive = nodes()
        versions = probe(alive)
        try:
            bundles, wrong = place(alive, demand_of(config)), list[str]()
        except TurnwiseError as error:
            bundles, wrong = [], [str(error)]
        if busy := lacking(bundles, SOON):
            wrong.append(busy)
        used = {bundle.node.id: bundle.node for bundle in bundles}.values()
        return Checked(alive, versions, bundles, [*wrong, *problems(used or alive, versions, needed_packages(config))])
    finally:
        leave(started)


def check_program(config: Config) -> None:
    """An error if the environment is a program."""
    if is_program(config.env):
        raise TurnwiseError(
            f"cluster: environment {config.env.name!r} is played in one process, because it is a program and each of its attempts becomes "
            "several trajectories. Train without the [cluster] section (cluster=none)"
        )


def bundles_for(config: Config) -> list[Bundle]:
    """A bundle for every part of a run; an error if there is none, or if a node lacks a package. Ray lists a node that has just died for
    some seconds more: then all parts are placed again, without it."""
    while True:
        bundles = place(nodes(), demand_of(config))
        wrong, silent = _check_bundles(bundles, needed_packages(config))
        if not wrong:
            return bundles
        if not _left({bundle.node.id for bundle in bundles}, LEAVES if silent else 0.0):
            raise TurnwiseError(wrong)


def _check_bundles(bundles: Sequence[Bundle], needed: Sequence[str]) -> tuple[str, bool]:
    """What is wrong with the nodes of these bundles, and whether one of them does not answer."""
    if busy := lacking(bundles):
        return f"{busy}. Wait until they have ended, or lower cluster.engines", False
    away = {bundle.node.id: bundle.node for bundle in bundles if not bundle.node.here}
    versions = probe(away.values())
    return "; ".join(problems(away.values(), versions, needed)), any("error" in answer for answer in versions.values())


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
    engine = config.engine.declared.packages
    return ["turnwise", "torch", "transformers", *engine, *(name for name, needed in adapters.items() if needed)]


def demand_of(config: Config) -> Demand:
    """What a recipe needs of a cluster."""
    cluster = config.cluster or Cluster()
    gpu = choose_device(config.device) == "cuda"
    return Demand(cluster.engines, cluster.learners, gpu, cluster.tensor_parallel, cluster.placement == "colocated")
