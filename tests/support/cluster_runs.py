"""What the tests of clusters share: the smallest run that learns, its weights, and a workers that plays in this process without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from small_runs import TINY

import turnwise as tw
from turnwise.cluster.source import RemoteEngine
from turnwise.cluster.work import Outcome, Work
from turnwise.cluster.worker import Session
from turnwise.collect.hooks import Hooks
from turnwise.setup import cluster as setup

SMALL: dict[str, Any] = TINY | {  # a model that babbles: what it says wins or loses
    "env.name": f"{ROOT / 'tests' / 'support' / 'bandit_env.py'}:Bandit",
    "agent.max_prompt_tokens": 80,
    "model.tiny.max_length": 100,
    "engine.max_tokens": 6,
    "collect.groups": 3,
    "iterations": 2,
    "sft": None,
    "eval.n": 3,
    "learner.lr": 1e-2,
    "threads": 1,
}


SEATS: dict[str, Any] = {
    "env.name": f"{ROOT / 'tests' / 'support' / 'seats_env.py'}:Guesses",
    "env.options": {"goal": 4},
}  # both sides are trained


def trained(out: Path, name: str, **changes: Any) -> dict[str, torch.Tensor]:
    """The weights of a small run."""
    result = tw.train(ROOT / "recipes" / "own-env.toml", quiet=True, **(SMALL | {"out": str(out), "name": name} | changes))
    return load_file(result.folder / "model" / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether all weights are equal, bit by bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


class LocalWorkers:
    """Engines that take turns in this process; what they get and give is copied. `loses` is asked before each work whether its engine is
    lost first."""

    def __init__(self, size: int, parts: Any, loses: Any = lambda number: False):
        self.size, self.hooks, self._parts, self._loses = size, Hooks(), parts, loses
        self._sessions: dict[int, Session] = {}
        self.works = 0

    def run(self, works: Sequence[Work], homes: Sequence[int]) -> list[Outcome]:
        return [deepcopy(self._do(deepcopy(work), home)) for work, home in zip(works, homes, strict=True)]

    def _do(self, work: Work, home: int) -> Outcome:
        self.works += 1
        if self._loses(self.works) or (self.size > 1 and len(work.calls) > 1):  # one engine for all: its cache is another session's
            self._sessions.pop(home, None)
        session = self._sessions.get(home)
        if session is None or session.name != work.session:
            session = self._sessions[home] = Session(work, self._parts)
        return session.go_on(work)

    def load_ahead(self, tasks: Sequence[Any]) -> None: ...

    def publish(self, version: int, send: Any) -> None:
        self._sessions.clear()
        send(SimpleNamespace(publish=SimpleNamespace(remote=lambda version, weights: self._parts.publish(version, weights))))

    def worked(self) -> dict[str, float]:
        return {}

    def settle(self) -> None: ...

    def close(self) -> None: ...


class Direct:
    """A sender that copies at once."""

    def __init__(self, named: Any):
        self._named, self._version = named, -1

    def publish(self, version: int) -> None:
        self._version = version

    def send(self, handle: Any) -> Any:
        from turnwise.cluster.weights import Stored

        return handle.publish.remote(self._version, Stored.of(self._named()))

    def close(self) -> None: ...


def engines_here(patch: pytest.MonkeyPatch, loses: Any = lambda number: False) -> None:
    """From now on, runs on a cluster have their engines in this process, each with the sessions that it would have as an actor."""

    def start(cluster: Any, bundles: Any, spec: Any, hooks: Any, shared: bool) -> Any:
        return LocalWorkers(cluster.engines, setup.WorkerParts(spec, Hooks()), loses)

    def remote(config: Any, learner: Any, workers: Any, shared: bool) -> Any:
        engine = RemoteEngine(workers, Direct(lambda: learner.weights(False)))  # type: ignore[arg-type]
        engine.refresh()
        return engine

    patch.setattr(setup, "start_workers", start)
    patch.setattr(setup, "build_remote_engine", remote)


def in_one_process(patch: pytest.MonkeyPatch, loses: Any = lambda number: False) -> None:
    """The learner is in this process, too: there is no cluster at all."""
    engines_here(patch, loses)
    patch.setattr(setup, "join_cluster", lambda config, hooks, stack: [])
