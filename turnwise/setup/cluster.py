"""A run on a cluster: the same parts as on one process, with environments and engines in rollout workers, and another source.

With `cluster.learners = 1` the learner is in this process. With more it is a set of learner ranks: the driver has no model, and delegates
everything that needs one. `ActorSpec` makes the parts of an actor in its process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from turnwise.cluster.collecting import RemoteCollectors
from turnwise.cluster.placement import Bundle, crowded, prefers
from turnwise.cluster.prefetch import Prefetcher
from turnwise.cluster.ranked_learner import RankedLearner, RankLearner
from turnwise.cluster.ranks import LearnerRanks, Rank
from turnwise.cluster.settings import Cluster
from turnwise.cluster.source import ClusterSource, RemoteEngine
from turnwise.cluster.start import connect, import_ray, leave
from turnwise.cluster.weights import Ipc, Store, close_handles, copy_into
from turnwise.cluster.work import Spec
from turnwise.cluster.worker import RolloutWorker
from turnwise.cluster.workers import RolloutWorkers
from turnwise.collect.collector import Collector
from turnwise.collect.hooks import Hooks
from turnwise.collect.source import LocalSource
from turnwise.config.objects import objects_in, present
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Turn
from turnwise.data.tasks import Task
from turnwise.learn.local import LocalLearner
from turnwise.learn.models import choose_device
from turnwise.learn.ranks.group import join
from turnwise.methods.planning import Plan, TaskSlots
from turnwise.recipe.names import know
from turnwise.recipe.schema import Config
from turnwise.setup.build import (
    LoadedModel,
    annotates,
    build_agent,
    build_engine,
    build_learner,
    build_signals,
    load_model,
    load_tokenizer,
    with_adapters,
)
from turnwise.setup.environment import build_pool, smoke_test, step_limit
from turnwise.setup.parts import Training, build_collectors, check_training, put_together, run_over
from turnwise.setup.placement import bundles_for, check_program
from turnwise.util.errors import TurnwiseError
from turnwise.util.garbage import play_only
from turnwise.util.late import Late

RESERVES = 60.0  # seconds for a GPU to be reserved
CALLS = 8  # that one actor takes at a time, in addition to one per group that it plays ahead


def build_cluster_training(config: Config, hooks: Hooks, stack: ExitStack) -> Training:
    """A run on the recipe's cluster. `stack` closes what it opens."""
    cluster = config.cluster
    assert cluster is not None
    bundles = join_cluster(config, hooks, stack)
    checked = check_training(config, hooks)
    with build_pool(config) as pool:
        smoke_test(config.env, pool, checked.tasks, hooks)  # afterwards environments are played by the rollout workers
    loaded = load_model(config, hooks=hooks) if cluster.learners == 1 else load_tokenizer(config, hooks)
    agent = build_agent(config, loaded, hooks.say)
    spec = ActorSpec.of(config, loaded.tokenizer)
    learner: LocalLearner | RankedLearner
    if cluster.learners == 1:
        learner = build_learner(config, loaded, checked.signals)
    else:
        learner = build_ranked_learner(config, cluster, bundles, spec, hooks, stack)
    over = run_over(hooks, checked.faults)
    shared = transfer(cluster, choose_device(config.device)) == "ipc"  # the engine is with the learner, on its GPU

    def make_engine() -> RemoteEngine:
        workers = start_workers(cluster, bundles, spec, replace(hooks, cancelled=over), shared)
        return build_remote_engine(config, learner, workers, shared)

    engine = Late(make_engine)
    stack.callback(engine.close)
    told = replace(hooks, on_fault=checked.faults.on_fault)
    collectors = RemoteCollectors(engine, cluster.staleness > 0, told)

    def make_source(plan: Plan, slots: TaskSlots) -> ClusterSource:
        training_collector = partial(collectors.training, plan.drawing)
        on_demand = LocalSource(slots, config.collect.groups, training_collector, engine, checked.faults.check, hooks.say, over)

        def prefetcher(plan: Any, first: int, batches: int | None) -> Prefetcher:
            spec = Spec(training=True, drawing=plan.drawing)
            return Prefetcher(engine().workers, on_demand, plan, cluster.staleness, spec, first, batches, told, cluster.retries)

        return ClusterSource(on_demand, engine, prefetcher if cluster.staleness > 0 else None)

    return put_together(config, checked, agent, learner, collectors, engine, hooks, make_source)


# -- the cluster --------------------------------------------------------------------------------------------------------------------


def join_cluster(config: Config, hooks: Hooks, stack: ExitStack) -> Sequence[Bundle]:
    """Join or start Ray, and decide what goes where. `stack` leaves it again."""
    cluster = config.cluster
    assert cluster is not None
    if cluster.learners > 1 and cluster.transfer == "ipc":
        raise TurnwiseError(
            "cluster.transfer=ipc is for one learner: several send their weights through Ray's store (cluster.transfer=auto)"
        )
    check_program(config)
    stack.callback(leave, connect(cluster.address))
    bundles = bundles_for(config)
    if note := crowded(bundles):
        hooks.say(note)
    if bundles[0].gpus and cluster.learners == 1:
        reservation = reserve_gpu(bundles[0])
        stack.callback(import_ray().kill, reservation)  # Ray itself may stay
    return bundles


def reserve_gpu(bundle: Bundle) -> Any:
    """Reserve a GPU of this machine for this process, and compute on it. Ray gives the other GPUs to the rollout workers."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Reservation:
        def gpu(self) -> int:
            import ray

            return int(ray.get_gpu_ids()[0])

    where = NodeAffinitySchedulingStrategy(bundle.node.id, soft=False)
    reservation = ray.remote(Reservation).options(num_cpus=0, num_gpus=1, scheduling_strategy=where).remote()
    try:
        torch.cuda.set_device(ray.get(reservation.gpu.remote(), timeout=RESERVES))
    except ray.exceptions.GetTimeoutError:
        raise TurnwiseError(
            f"cluster: no GPU of this machine was free for the learner within {RESERVES:g} seconds: is another run on it?"
        ) from None
    return reservation


def transfer(cluster: Cluster, device: str) -> str:
    """How weights travel: as the recipe says, otherwise chosen by where learner and engines are."""
    if cluster.transfer != "auto":
        return cluster.transfer
    alone = cluster.placement == "colocated" and cluster.engines * cluster.tensor_parallel == 1 and cluster.learners == 1
    return "ipc" if alone and device == "cuda" else "store"


# -- the driver's side of the actors ------------------------------------------------------------------------------------------------


def start_workers(cluster: Cluster, bundles: Sequence[Bundle], spec: ActorSpec, hooks: Hooks, shared: bool) -> RolloutWorkers:
    """Start the rollout workers; their weights come with the first version."""
    for_workers = [bundle for bundle in bundles if bundle.part.startswith("engine")]
    start = partial(start_actor, for_workers, spec, cluster.retries, waits=shared)
    return RolloutWorkers(start, cluster.engines, cluster.deadline, cluster.retries, hooks)


def start_actor(bundles: Sequence[Bundle], spec: ActorSpec, retries: int, number: int, waits: bool = False) -> Any:
    """Start the worker of a number. It prefers the node of its bundle, and takes any other that has room, unless it `waits` for it."""
    bundle = bundles[number]
    limits: dict[str, Any] = {
        "num_cpus": bundle.cpus,
        "num_gpus": bundle.gpus,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": CALLS + (spec.config.collect.groups if spec.overlapping else 0),
    }
    where = prefers(bundle.node, waits)
    return import_ray().remote(RolloutWorker).options(scheduling_strategy=where, **limits).remote(spec, number, retries)


def build_remote_engine(config: Config, learner: LocalLearner | RankedLearner, workers: RolloutWorkers, shared: bool) -> RemoteEngine:
    """All rollout workers as one receiver of weights; they have the learner's."""
    weights = partial(learner.weights, not config.engine.declared.shares_weights)
    engine = RemoteEngine(workers, Ipc(weights) if shared else Store(weights), waits=shared)
    engine.refresh()
    return engine


def build_ranked_learner(
    config: Config, cluster: Cluster, bundles: Sequence[Bundle], spec: ActorSpec, hooks: Hooks, stack: ExitStack
) -> RankedLearner:
    """A learner that is several processes. They are started now: whatever a recipe gets wrong about its model is known before anything
    is played."""
    for_ranks = [bundle for bundle in bundles if bundle.part.startswith("learner")]
    rank_spec = RankSpec(spec, cluster.deadline, annotates(config))

    def start(rank: int) -> Any:
        bundle = for_ranks[rank]
        limits = {"num_cpus": bundle.cpus, "num_gpus": bundle.gpus, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 2}
        return import_ray().remote(Rank).options(scheduling_strategy=prefers(bundle.node), **limits).remote(rank_spec, rank, len(for_ranks))

    ranks = LearnerRanks(start, cluster.learners, cluster.deadline, cluster.retries, hooks.say)
    stack.callback(ranks.close)
    ranks.call("ready", pure=True)
    return RankedLearner(ranks, rank_spec.annotates or bool(config.signal), bool(config.signal), hooks.say)


# -- inside an actor ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ActorSpec:
    """Makes the parts of a rollout worker in its process. Holds what the process cannot know: the recipe, the driver's folder and module
    paths, objects that were passed from Python, and the vocabulary of a tiny model. `overlapping`: groups of several batches are played
    at once."""

    config: Config
    folder: str
    paths: tuple[str, ...]
    objects: Mapping[str, Any]
    vocabulary: Mapping[str, bytes]
    overlapping: bool = False

    @classmethod
    def of(cls, recipe: Config, tokenizer: Any) -> ActorSpec:
        cluster = recipe.cluster
        config = recipe.model_copy(update={"threads": torch.get_num_threads(), "device": choose_device(recipe.device), "cluster": None})
        if cluster is not None and cluster.tensor_parallel > 1:
            options = {**config.engine.options, "tensor_parallel": cluster.tensor_parallel}
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"options": options})})
        config._folder = None  # its code was trusted here
        passed = objects_in(config.model_dump(mode="json"))
        # code from files that a recipe names is sent as code: other processes cannot import it by name
        import_ray()
        from ray import cloudpickle

        for name, module in list(sys.modules.items()):
            if name.startswith("turnwise_file_"):
                cloudpickle.register_pickle_by_value(module)
        vocabulary = _files(tokenizer) if config.model.path is None else {}
        overlapping = cluster is not None and cluster.staleness > 0
        return cls(config, str(Path.cwd()), tuple(sys.path), passed, vocabulary, overlapping)

    def __call__(self, hooks: Hooks) -> WorkerParts:
        self.prepare()
        parts = WorkerParts(self, hooks)
        play_only()
        return parts

    def prepare(self) -> None:
        """Let this process find the same modules and files as the driver."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path += [path for path in self.paths if path not in sys.path]
        present(self.objects)
        know(self.config)

    def load(self) -> LoadedModel:
        """The recipe's model. The tiny one's tokenizer is in a folder only while it is loaded: a killed process removes nothing."""
        if not self.vocabulary:
            return load_model(self.config)
        with tempfile.TemporaryDirectory(prefix="turnwise-words-") as folder:
            for name, content in self.vocabulary.items():
                (Path(folder) / name).write_bytes(content)
            return load_model(self.config, words=Path(folder))


def _files(tokenizer: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


class WorkerParts:
    """What a rollout worker plays with: a model without optimiser, an engine, environments."""

    def __init__(self, spec: ActorSpec, hooks: Hooks):
        config, loaded = spec.config, spec.load()
        self._model = with_adapters(config, loaded.model).to(torch.device(choose_device(config.device))).eval()
        dtype, adapters = getattr(torch, config.model.dtype), config.model.lora is not None
        for parameter in self._model.parameters():  # the precision of the learner
            if parameter.is_floating_point():  # otherwise codes of a base in 4 bits
                parameter.data = parameter.data.to(torch.float32 if adapters and parameter.requires_grad else dtype)
        agent = build_agent(config, loaded)
        self._engine = build_engine(config, self._model, loaded.tokenizer, agent.stop_ids, hooks.say, loaded.vision)
        self._pool = build_pool(config)
        self._collectors = build_collectors(config, self._pool, agent, lambda: self._engine, step_limit(config.env), hooks)
        self._device = torch.device(choose_device(config.device))

    @property
    def environments(self) -> float:
        return float(self._pool.busy)

    def collector(self, spec: Spec) -> Collector:
        collectors = self._collectors
        collector = collectors.training(spec.drawing) if spec.training else collectors.evaluation(spec.temperature)
        assert isinstance(collector, Collector)  # programs are refused before
        return collector

    def generate(self, texts: Sequence[str], seed: int, temperature: float | None) -> list[Turn]:
        return self._collectors.generate(texts, seed, temperature)

    def openings(self, starts: Sequence[Start]) -> list[str]:
        return self._collectors.openings(starts)

    def load_ahead(self, task: Task) -> None:
        self._pool.load_ahead(task)

    def publish(self, version: int, weights: Any) -> None:
        tensors = weights.tensors(self._device)
        if self._engine.shares_weights:
            copy_into(dict(self._model.named_parameters()), tensors)
            self._engine.publish(version)
        else:
            self._engine.publish(version, tensors)
        if self._device.type == "cuda":  # from now on the learner may change its weights
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        close_handles()
        self._pool.close()
        self._engine.close()


@dataclass(frozen=True)
class RankSpec:
    """Makes what a learner rank works with, in its process."""

    actor: ActorSpec
    seconds: float
    annotates: bool

    def __call__(self, rank: int, size: int, address: str) -> RankLearner:
        self.actor.prepare()
        config = self.actor.config
        ranks = join(rank, size, address, device=choose_device(config.device), timeout=self.seconds)
        learner = build_learner(config, self.actor.load(), build_signals(config), ranks)
        return RankLearner(replace(learner, annotates=self.annotates))
