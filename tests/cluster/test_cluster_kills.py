"""Kills by SIGKILL, at many moments for each kind of process: engines, processes of environments, nodes. Every run ends, nothing is
counted twice, and what is learned is bitwise what an undisturbed run learns.

The engines here have no model and start in a second, so that ten deaths fit into a test; `test_cluster_ranks.py` kills learner ranks, and
`make test-cluster` kills all of them and the driver, ten times each, in whole runs with a model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_doom import Doom, DoomedLearner, DoomedWorker, Sits
from cluster_light import GROUPS, SIZE, alone, run, task_slots
from cluster_light import Sender as Sends
from conftest import ROOT, TEST_PATHS

from turnwise.cluster.collecting import RemoteCollector
from turnwise.cluster.placement import nodes, prefers
from turnwise.cluster.source import ClusterSource, RemoteEngine
from turnwise.cluster.workers import RolloutWorkers
from turnwise.collect.source import LocalSource

ray = pytest.importorskip("ray")
NOTICES = {"RAY_health_check_period_ms": "300", "RAY_health_check_failure_threshold": "2"}  # how soon Ray knows that a node is dead
PLAYING = ("has learned", "has work", "first turn", "turn", "attempt ends", "work is done", "takes weights", "has weights", "learns")
MOMENTS = {
    "engine": ("starts", *PLAYING),
    "worker": ("reset", "was reset", "step", "stepped", "last step", "turn", "attempt ends", "work is done", "learns", "takes weights"),
    "node": ("started", "turn", "takes weights", "learns"),
}


@pytest.fixture(scope="module")
def add() -> Iterator[Callable[[], None]]:
    """A head without room and three nodes on this machine, in a process of their own. Call the result to add another node, without waiting
    for it."""
    paths = os.pathsep.join([*TEST_PATHS, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(ROOT / "tests" / "cluster" / "nodes.py"), "3"]
    made = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **NOTICES, "PYTHONPATH": paths}
    )
    assert made.stdin is not None and made.stdout is not None
    order = made.stdin
    try:
        line = made.stdout.readline()
        assert line.startswith("address "), "the nodes did not start"
        ray.init(address=line.split()[1], log_to_driver=False, logging_level="ERROR")
        yield lambda: print("add", file=order, flush=True)
    finally:
        ray.shutdown()
        order.close()
        try:
            made.wait(60)
        except subprocess.TimeoutExpired:
            made.kill()


def trained(learner: DoomedLearner) -> tuple[DoomedLearner, RolloutWorkers]:
    """A run in step over two engines."""

    def start(number: int) -> Any:
        return ray.remote(DoomedWorker).options(num_cpus=1, max_restarts=0, max_concurrency=16).remote(learner.doom, number)

    workers = RolloutWorkers(start, 2, deadline=180.0, retries=3)  # a slow start on a busy machine is not a loss
    learner.settle = workers.settle
    engine = RemoteEngine(workers, Sends(learner))
    engine.refresh()
    source = ClusterSource(LocalSource(task_slots(), GROUPS, lambda: RemoteCollector(engine), lambda: engine), lambda: engine)
    try:
        run(source, engine, learner, len(learner.doom.strikes) + 1)  # one batch to notice the last strike
        return learner, workers
    finally:
        engine.close()


def test_a_process_whose_node_has_no_room_starts_on_another_node(add: Callable[[], None]) -> None:
    """Ray itself would wait for room, as long as the node lives."""
    full = next(node for node in nodes() if node.cpus)
    taken = [ray.remote(Sits).options(num_cpus=1, scheduling_strategy=prefers(full)).remote() for _ in range(full.cpus + 1)]
    *preferred, elsewhere = [ray.get(one.here.remote(), timeout=120) for one in taken]
    assert preferred == [full.id] * full.cpus and elsewhere != full.id
    for one in taken:
        ray.kill(one)


@pytest.mark.parametrize("kind", MOMENTS)
def test_kills_at_many_moments_change_nothing(add: Callable[[], None], tmp_path: Path, kind: str) -> None:
    doom = Doom(kind, MOMENTS[kind], tmp_path)
    learner, replaced = DoomedLearner(doom), set[int]()

    def replace_nodes() -> None:
        for batch in set(doom.struck) - replaced if kind == "node" else ():
            add()
            replaced.add(batch)

    learner.mend = replace_nodes
    found, workers = trained(learner)
    kills, undisturbed = len(MOMENTS[kind]), alone(len(MOMENTS[kind]) + 1)
    assert doom.struck == list(range(kills)), "every strike was carried out, in its batch"
    assert len(found.learned) == len(set(found.learned)) == (kills + 1) * GROUPS * SIZE, "nothing is lost and nothing counts twice"
    assert found.batches == undisturbed.batches and found.weight == undisturbed.weight
    assert (workers.counts["lost_engines"] == 0) if kind == "worker" else (workers.counts["lost_engines"] >= kills)
