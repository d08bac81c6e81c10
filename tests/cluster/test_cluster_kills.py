"""Kills by SIGKILL, at many moments for each kind of process: driver, engines, processes of environments, nodes. Every run ends, nothing is
counted twice, and what is learned is bitwise what an undisturbed run learns.

The engines here have no model and start in a second, so that ten deaths fit into a test; `test_cluster_ranks.py` kills learner ranks, and
`make test-cluster` kills all of them, ten times each, in whole runs with a model.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cluster_driver
import pytest
from cluster_doom import Doom, DoomedLearner, DoomedWorker, Sits
from cluster_light import GROUPS, SIZE, alone, run, task_slots
from cluster_light import Sender as Sends
from conftest import ROOT, TEST_PATHS

from turnwise.cluster.collecting import RemoteCollector
from turnwise.cluster.placement import nodes, prefers
from turnwise.cluster.source import Access, ClusterSource, RemoteEngine
from turnwise.cluster.workers import RolloutWorkers
from turnwise.collect.source import LocalSource
from turnwise.runs.folder import Run

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


def test_ten_kills_of_the_driver_at_ten_moments_change_nothing(add: Callable[[], None], tmp_path: Path) -> None:
    address, paths = ray.get_runtime_context().gcs_address, os.pathsep.join(TEST_PATHS)
    command = [sys.executable, str(ROOT / "tests" / "support" / "cluster_driver.py"), address, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, timeout=400)
    codes = json.loads(done.stdout)
    assert codes == [-signal.SIGKILL] * 10 + [0], done.stderr[-2000:]
    run, batches = Run.open(tmp_path / "run"), cluster_driver.BATCHES
    lines, undisturbed = run.metrics(), alone(batches)
    assert [line["iteration"] for line in lines] == list(range(batches + 1)), "every iteration is logged once"
    assert [line["learner/weight"] for line in lines[1:]] == undisturbed.weights
    assert all(0 <= line[f"cluster/idle/{part}"] <= 1 for line in lines[1:] for part in ("learner", "engine_0", "environments_0"))
    learned = [one["id"] for line in lines[1:] for one in run.trajectories(line["iteration"])]
    assert learned == undisturbed.learned, "nothing is lost and nothing counts twice"


def trained(learner: DoomedLearner) -> tuple[DoomedLearner, RolloutWorkers]:
    """A run in step over two engines."""

    def start(number: int) -> Any:
        return ray.remote(DoomedWorker).options(num_cpus=1, max_restarts=0, max_concurrency=16).remote(learner.doom, number)

    workers = RolloutWorkers(start, 2, deadline=180.0, retries=3)  # a slow start on a busy machine is not a loss
    access, learner.settle = Access(workers), workers.settle
    engine = RemoteEngine(access, Sends(learner))
    engine.refresh()
    source = ClusterSource(LocalSource(task_slots(), GROUPS, lambda: RemoteCollector(access), lambda: engine), lambda: engine)
    try:
        run(source, engine, learner, len(learner.doom.strikes) + 1)  # one batch to notice the last strike
        return learner, workers
    finally:
        access.close()


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
