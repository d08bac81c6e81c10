"""A run on a cluster: the same parts, with engines and environments in actors. The learner stays in this process.

`ClusterSystem` is a `System` whose engine, collector and source are remote; the loop does not notice. `Playing` is what an actor is made
of, also a `System`, of which only the playing half is used.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from turnwise.cluster.ahead import Ahead
from turnwise.cluster.ahead import Settings as AheadSettings
from turnwise.cluster.collecting import RemoteCollector
from turnwise.cluster.crew import Crew, Hears
from turnwise.cluster.placement import Seat, crowded, prefers
from turnwise.cluster.rollouter import Rollouter
from turnwise.cluster.settings import Cluster
from turnwise.cluster.source import Access, ClusterSource, RemoteEngine
from turnwise.cluster.start import connect, import_ray, leave
from turnwise.cluster.weights import close_handles, copy_into, sender
from turnwise.cluster.work import Hooks, Spec
from turnwise.collect.collector import Collector
from turnwise.config import objects
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.engines.base import Engine
from turnwise.learn.learner import Learner
from turnwise.learn.models import choose_device
from turnwise.recipe.names import know
from turnwise.recipe.schema import Config
from turnwise.setup.build import with_adapters
from turnwise.setup.favours import openings, said
from turnwise.setup.placing import check_recipe, seats_for
from turnwise.setup.system import MOST_AHEAD, System
from turnwise.util.beside import Pause
from turnwise.util.errors import TurnwiseError
from turnwise.util.garbage import play_only

KEEPER = 60.0  # seconds for a GPU to be reserved
CALLS = 8  # that one actor takes at a time, in addition to one per group that it plays ahead
OWN_WEIGHTS = ("vllm",)  # engines that load published weights themselves


class ClusterSystem(System):
    """A run whose engines are actors."""

    _seats: Sequence[Seat] = ()
    _started = False
    _keeper: Any = None

    @property
    def own(self) -> Cluster:
        """The section of the recipe."""
        assert self.config.cluster is not None
        return self.config.cluster

    def check(self) -> None:
        """Check the cluster before anything is loaded."""
        self.connect()
        super().check()
        if "pool" in self.__dict__:  # the first look is over: environments are played by the engines
            self.__dict__.pop("pool").close()

    def connect(self) -> None:
        """Join or start Ray, and decide what goes where."""
        if self._seats:
            return
        check_recipe(self.config)
        self._started = connect(self.own.address)
        try:
            self._seats = seats_for(self.config)
            if note := crowded(self._seats):
                self.say(note)
            self._keeper = keep_gpu(self._seats[0]) if self._seats[0].gpus and self.own.learners == 1 else None
        except BaseException:
            leave(self._started)
            raise

    @cached_property
    def crew(self) -> Crew:
        """The engines; their weights come with the first version."""
        hears = Hears(self.say, self.over, self._ended)
        seats = [seat for seat in self._seats if seat.part.startswith("engine")]
        shared = transfer(self.own, torch.device(choose_device(self.config.device))) == "ipc"  # with the learner, on its GPU
        made = partial(hire, seats, Recruit.of(self), self.own.retries, waits=shared)
        return Crew(made, self.own.engines, self.own.deadline, self.own.retries, hears)

    @cached_property
    def access(self) -> Access:
        """Access to the engines from any thread."""
        return Access(self.crew)

    def _ended(self, count: int) -> None:
        for _ in range(count):
            self.on_end(Trajectory(0, 0))

    @cached_property
    def engine(self) -> Engine:
        """All engines as one."""
        self.connect()
        kind = transfer(self.own, self.learner.device)
        sends = sender(kind, self._weights, self.learner.device, self.own.deadline)
        made = RemoteEngine(self.access, sends, waits=kind != "store", later=self.own.staleness == 0)
        made.refresh()
        return cast("Engine", made)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """What engines need of the learner's weights: those that are trained, by name."""
        if self.config.engine.name in OWN_WEIGHTS:
            yield from cast("Any", self.learner).full_weights()
            return
        for name, parameter in self.learner.weights.parameters.items():
            if not name.startswith("critic."):
                yield name, parameter.detach()

    def _remote(self, spec: Spec) -> Collector:
        self.engine  # noqa: B018  # the weights are there before anything is played
        self._current = RemoteCollector(self.access, spec, self.max_turns, self.on_start, self.faults.hear)
        return cast("Collector", self._current)

    def collector(self, temperature: float | None = None) -> Collector:
        return self._remote(Spec(temperature))

    def training_collector(self) -> Collector:
        return self._remote(Spec(training=True, drawing=getattr(self.plan, "drawing", None)))

    def annotate(self, batch: Batch) -> Batch:
        """A batch that may be older than the weights also gets the log-probs of the weights as they are: what the learner's ratio and the
        metrics about age start from."""
        return self.learner.annotate(batch) if self.measures_age else super().annotate(batch)

    @property
    def measures_age(self) -> bool:
        """Whether batches get the log-probs of the weights as they are."""
        return self.own.staleness > 0 and self.config.learner.old_logprobs in (None, "learner")

    def load_ahead(self, pause: Pause = lambda: None) -> None:
        """Let the engines load what the next tasks need, while the learner learns. Ahead of the learner they never rest."""
        if self.own.staleness == 0:
            self.crew.load_ahead(self.places.coming(min(self.config.collect.groups, MOST_AHEAD)))

    def said(self, texts: Sequence[str], seed: int, temperature: float | None = None) -> list[Turn]:
        return self._session.say(texts, seed, temperature)

    def openings(self, starts: Sequence[Start]) -> list[str]:
        return self._session.openings(starts)

    @property
    def _session(self) -> RemoteCollector:
        """The collector that is in use: what a plan asks of the policy belongs to its session. While batches overlap there is none."""
        if not hasattr(self, "_current") or self.own.staleness > 0:
            self.collector()
        return self._current

    @cached_property
    def source(self) -> ClusterSource:
        self.places.vocabulary = len(self.tokenizer)
        groups = self.config.collect.groups
        parts = self.places, groups, self.training_collector, self.engine, self._heard, self.say, self.over
        return ClusterSource(*parts, self.own.staleness, self._ahead, self.access, self.ranks_worked)

    def ranks_worked(self) -> dict[str, float]:
        """Seconds that each rank has worked since the last call; none if the learner is in this process."""
        return {}

    def _ahead(self, plan: Any, first: int, batches: int | None) -> Ahead:
        spec = Spec(training=True, drawing=getattr(plan, "drawing", None))
        own = AheadSettings(self.places, plan, self.config.collect.groups, self.own.staleness, spec, first, batches)
        own.heard, own.on_fault, own.on_start, own.say = self._heard, self.faults.hear, self.on_start, self.say
        return Ahead(self.crew, own, self.own.retries)

    def close(self) -> None:
        super().close()
        if self._keeper is not None:
            import_ray().kill(self._keeper)  # Ray itself may stay
            self._keeper = None
        if self._seats:
            leave(self._started)


def transfer(own: Cluster, device: torch.device) -> str:
    """How weights travel: as the recipe says, otherwise chosen by where learner and engines are."""
    if own.transfer != "auto":
        return own.transfer
    if device.type != "cuda":
        return "store"
    alone = own.placement == "colocated" and own.engines * own.tensor_parallel == 1 and own.learners == 1
    return "ipc" if alone else "broadcast"


def keep_gpu(seat: Seat) -> Any:
    """Reserve a GPU of this machine for this process, and compute on it. Ray gives the other GPUs to the engines."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Keeper:
        def gpu(self) -> int:
            import ray

            return int(ray.get_gpu_ids()[0])

    where = NodeAffinitySchedulingStrategy(seat.node.id, soft=False)
    keeper = ray.remote(Keeper).options(num_cpus=0, num_gpus=1, scheduling_strategy=where).remote()
    try:
        torch.cuda.set_device(ray.get(keeper.gpu.remote(), timeout=KEEPER))
    except ray.exceptions.GetTimeoutError:
        raise TurnwiseError(
            f"cluster: no GPU of this machine was free for the learner within {KEEPER:g} seconds: is another run on it?"
        ) from None
    return keeper


def hire(seats: Sequence[Seat], recruit: Recruit, retries: int, number: int, waits: bool = False) -> Any:
    """Start the actor of a number. It prefers the node of its seat, and takes any other that has room, unless it `waits` for that node."""
    seat = seats[number]
    limits: dict[str, Any] = {
        "num_cpus": seat.cpus,
        "num_gpus": seat.gpus,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": CALLS + (recruit.config.collect.groups if recruit.ahead else 0),
    }
    where = prefers(seat.node, waits)
    return import_ray().remote(Rollouter).options(scheduling_strategy=where, **limits).remote(recruit, number, retries)


@dataclass(frozen=True)
class Recruit:
    """Makes the parts of an actor in its process. Holds what the actor cannot know: the recipe, this process's folder and module paths,
    objects that were passed from Python, and the vocabulary of a tiny model."""

    config: Config
    folder: str
    paths: tuple[str, ...]
    given: Mapping[str, Any]
    words: Mapping[str, bytes]
    ahead: bool = False  # whether groups of several batches are played at once

    @classmethod
    def of(cls, system: System) -> Recruit:
        config = system.config.model_copy(
            update={"threads": torch.get_num_threads(), "device": choose_device(system.config.device), "cluster": None}
        )
        if (size := system.config.cluster.tensor_parallel if system.config.cluster is not None else 1) > 1:
            options = {**config.engine.options, "tensor_parallel": size}
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"options": options})})
        config._folder = None  # its code was trusted here
        names = objects.names_in(config.model_dump(mode="json"))
        given = {name: objects.find(name) for name in names}
        _by_value()
        words = _files(system.tokenizer) if config.model.path is None else {}
        ahead = system.config.cluster is not None and system.config.cluster.staleness > 0
        return cls(config, str(Path.cwd()), tuple(sys.path), given, words, ahead)

    def __call__(self, hooks: Hooks) -> PlayingParts:
        self.prepare()
        parts = PlayingParts(self, hooks)
        play_only()
        return parts

    def prepare(self) -> None:
        """Let this process find the same modules and files as the driver."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path += [path for path in self.paths if path not in sys.path]
        objects.present(self.given)
        know(self.config)

    @contextmanager
    def vocabulary(self) -> Iterator[Path | None]:
        """The tiny model's tokenizer as a folder, for as long as it takes to load it: a killed process removes nothing."""
        if not self.words:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="turnwise-words-") as folder:
            for name, content in self.words.items():
                (Path(folder) / name).write_bytes(content)
            yield Path(folder)


def _by_value() -> None:
    """Code from files that a recipe names is sent as code: other processes cannot import it by name."""
    import_ray()
    from ray import cloudpickle

    for name, module in list(sys.modules.items()):
        if name.startswith("turnwise_file_"):
            cloudpickle.register_pickle_by_value(module)


def _files(tokenizer: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


class Playing(System):
    """The playing half of a run, in an actor: a model without optimiser, an engine, environments."""

    @cached_property
    def learner(self) -> Learner:
        """The model as the learner has it: the same precision, the same adapters."""
        model = with_adapters(self.config, self._loaded[0])
        device, dtype = torch.device(choose_device(self.config.device)), getattr(torch, self.config.model.dtype)
        exact = hasattr(model, "disable_adapter")
        model = model.to(device).eval()
        for parameter in model.parameters():
            if parameter.is_floating_point():  # otherwise codes of a base in 4 bits
                parameter.data = parameter.data.to(torch.float32 if exact and parameter.requires_grad else dtype)
        return cast("Learner", SimpleNamespace(model=model, device=device))


class PlayingParts:
    """What an actor plays with."""

    def __init__(self, recruit: Recruit, hooks: Hooks):
        self._hooks = hooks
        with recruit.vocabulary() as words:
            self._system = Playing(recruit.config, words=words, cancelled=hooks.between, on_end=hooks.on_end)
            self._engine = self._system.engine
        self._parameters = dict(self._system.learner.model.named_parameters())

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def pids(self) -> list[int]:
        pool = self._system.__dict__.get("pool")
        return [] if pool is None else pool.pids

    @property
    def environments(self) -> float:
        pool = self._system.__dict__.get("pool")
        return 0.0 if pool is None else float(pool.busy)

    def collector(self, spec: Spec) -> Collector:
        system = self._system
        if spec.training:
            system.__dict__["plan"] = SimpleNamespace(drawing=spec.drawing)
        made = system.training_collector() if spec.training else system.collector(spec.temperature)
        assert isinstance(made, Collector)  # programs are refused before
        made.on_turn, made.on_fault = self._hooks.on_turn, self._hooks.on_fault
        return made

    def say(self, texts: Sequence[str], seed: int, temperature: float | None) -> list[Turn]:
        return said(self._system, texts, seed, temperature)

    def openings(self, starts: Sequence[Start]) -> list[str]:
        return openings(self._system, starts)

    def load_ahead(self, task: Task) -> None:
        if (pool := self._system.__dict__.get("pool")) is not None:
            pool.load_ahead(task)

    def publish(self, version: int, weights: Any) -> None:
        device = self._system.learner.device
        tensors = weights.tensors(device)
        if self._system.config.engine.name in OWN_WEIGHTS:
            self._engine.publish(version, tensors)
        else:
            copy_into(self._parameters, tensors)
            self._engine.publish(version)
        if device.type == "cuda":  # from now on the learner may change its weights
            torch.cuda.synchronize(device)

    def close(self) -> None:
        close_handles()
        self._system.close()
