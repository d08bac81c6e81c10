"""Credit in prime-rl, through its own orchestrator code, from a finished episode to what the trainer receives. prime-rl is on no package
index: TURNWISE_PRIME_RL names a checkout of commit 559b447 (version 0.8.0)."""

from __future__ import annotations

import asyncio
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

CHECKOUT = Path(os.environ.get("TURNWISE_PRIME_RL", "missing"))
if not (CHECKOUT / "src" / "prime_rl").is_dir():
    pytest.skip(
        "TURNWISE_PRIME_RL must name a checkout of prime-rl at 559b447, then: make test-hosts ONLY=prime_rl", allow_module_level=True
    )
sys.path[:0] = [str(CHECKOUT / "src"), str(CHECKOUT / "packages" / "prime-rl-configs" / "src")]
algo = pytest.importorskip("prime_rl.orchestrator.algo", reason="needs what prime-rl imports: make test-hosts ONLY=prime_rl")

import verifiers.v1 as vf  # noqa: E402
from batches import METHODS, NEED_VALUES, Attempt, expected, random_attempts  # noqa: E402
from episodes import episode_of, new_trace, say  # noqa: E402
from pages import example_of  # noqa: E402
from prime_rl.configs.algorithm import EchoAlgoConfig, GRPOAlgoConfig  # noqa: E402
from prime_rl.configs.orchestrator import TrainSourceConfig  # noqa: E402
from prime_rl.orchestrator.envs import TrainEnvs  # noqa: E402
from prime_rl.orchestrator.train_sink import TrainSink  # noqa: E402
from prime_rl.orchestrator.types import Progress  # noqa: E402

from turnwise.hosts import prime_rl  # noqa: E402
from turnwise.util.errors import TurnwiseError  # noqa: E402

VALUES = {"turn.value": "values", "token.value": "token_values"}


@pytest.fixture(autouse=True)
def installed_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A checkout that is only on the path has no metadata of an installation. Each test begins with prime-rl's own algorithms."""
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    folder = tmp_path / "site" / f"prime_rl-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: prime-rl\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    classes = dict(algo.ALGORITHM_CLASSES)
    yield
    algo.ALGORITHM_CLASSES.clear()
    algo.ALGORITHM_CLASSES.update(classes)


def train(episodes: list[Any], config: Any = None) -> list[Any]:
    """The samples that prime-rl's sink compiles of finished episodes, each group as soon as it is complete."""
    env = SimpleNamespace(algorithm=algo.build_algorithm(config or GRPOAlgoConfig(), None), sampling_args={"temperature": 1.0})
    groups = [episode.group.id for episode in episodes]
    names = {group: SimpleNamespace(**vars(env), config=SimpleNamespace(group_size=groups.count(group))) for group in groups}
    settings = SimpleNamespace(max_off_policy_steps=100, train=SimpleNamespace(filter_zero_advantages=False))
    sink = TrainSink(
        settings, tokenizer=None, train_envs=SimpleNamespace(get=names.__getitem__), mm_token_type_ids_mapping=None, progress=Progress(),
        batch_size=10**9, token_batch_size=None,
    )  # fmt: skip
    for episode in episodes:
        episode.env.name = episode.group.id  # an environment per group: their sizes differ
        assert asyncio.run(sink.add(episode)) is None
    return [sink.pending_batch.get(episode.traces[0].id, []) for episode in episodes]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", METHODS)
def test_the_trainer_receives_the_advantage_of_each_turn(name: str, seed: int) -> None:
    attempts = random_attempts(seed)
    prime_rl.install(name, reward="turn_rewards", columns=VALUES if name in NEED_VALUES else None, **METHODS[name])
    samples = train([episode_of(attempt) for attempt in attempts])
    wanted = {}
    for group in {attempt.group for attempt in attempts}:  # prime-rl scores one group at a time
        wanted |= expected(name, [attempt for attempt in attempts if attempt.group == group])
    for attempt, (sample,) in zip(attempts, samples, strict=True):
        advantages = np.array(sample.advantages)
        assert sample.token_ids == [token for turn in attempt.turns for token in [*turn.prompt, *turn.response]]
        assert (advantages[~np.array(sample.mask)] == 0).all()
        turns = [wanted[attempt.number, t] for t in range(len(attempt.turns))]
        np.testing.assert_allclose(advantages[np.array(sample.mask)], np.concatenate(turns), rtol=0, atol=1e-6)


def test_grpo_without_deviation_is_prime_rls_own() -> None:
    attempts = random_attempts(4)
    own = train([episode_of(attempt) for attempt in attempts])
    prime_rl.install("grpo", norm="none")
    ours = train([episode_of(attempt) for attempt in attempts])
    for before, after in zip(own, ours, strict=True):
        np.testing.assert_allclose(after[0].advantages, before[0].advantages, rtol=0, atol=1e-6)
    assert any(any(sample[0].advantages) for sample in own)


def test_a_failed_attempt_is_not_compared_and_a_shared_turn_is_trained_once() -> None:
    attempts = random_attempts(5, groups=2)
    group = attempts[0].group
    peers = [attempt for attempt in attempts if attempt.group == group]
    failed = episode_of(peers[0], ok=False)
    forked = new_trace(Attempt(group, 99, []), rewards={"goal": vf.Reward(score=7.0)})
    first = [vf.UserMessage(content="hall")]
    say(forked, first, [], [1], [2])
    for place, token in (("cellar", 3), ("garden", 4)):
        say(forked, [*first, vf.AssistantMessage(content="ok"), vf.UserMessage(content=place)], [1, 2], [5], [token])
    branched = vf.WireEpisode(task=forked.task, group=vf.GroupInfo(id=group), traces=[forked], ok=True)
    prime_rl.install("grpo", norm="none")
    *samples, none, branches = train([*map(episode_of, peers), failed, branched])
    mean = np.mean([attempt.outcome for attempt in peers] + [7.0])
    assert none == [] and {node.advantages is None for node in failed.traces[0].nodes} == {True}
    for attempt, (sample,) in zip(peers, samples, strict=True):
        np.testing.assert_allclose(np.array(sample.advantages)[sample.mask], attempt.outcome - mean, atol=1e-6)
    assert [sample.mask for sample in branches] == [[False, True, False, True], [False, False, False, True]]
    np.testing.assert_allclose(np.array(branches[0].advantages)[branches[0].mask], 7.0 - mean, atol=1e-6)


def test_echo_keeps_what_it_does_with_observations() -> None:
    attempts = random_attempts(6, groups=2)
    prime_rl.install("gigpo", algorithm="echo", reward="turn_rewards", gamma=0.9)
    config = EchoAlgoConfig(roles={"user": {"alpha": 0.25}})
    samples = [sample for (sample,) in train([episode_of(attempt) for attempt in attempts], config)]
    assert any(0.25 in (sample.ce_weights or []) for sample in samples) and any(len(set(sample.advantages)) > 2 for sample in samples)


def test_a_tasksets_package_installs_the_credit_before_algorithms_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "walk.py").write_text(
        "import verifiers.v1 as vf\n__all__ = ['Walk']\nclass Walk(vf.Taskset):\n    def load(self):\n        return []\n"
    )
    (tmp_path / "credited_walk.py").write_text(f"from walk import *\nfrom walk import __all__\n{example_of('prime-rl')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = {"env": {"taskset": {"id": "credited-walk"}}, "algo": {"type": "grpo"}}
    config = TrainSourceConfig.model_validate(source)
    (env,) = TrainEnvs([config], {("train", config.resolved_name): "tcp://127.0.0.1:1"}, policy_pool=None)
    assert isinstance(env.algorithm, algo.GRPOAlgorithm) and type(env.algorithm) is algo.ALGORITHM_CLASSES["grpo"]
    assert type(env.algorithm).__module__ == "turnwise.hosts.prime_rl"


def test_what_cannot_work_is_refused() -> None:
    for name in ("opd", "sft", "gigpo"):
        with pytest.raises(TurnwiseError, match=f"{name!r} does not learn from advantages; take one of grpo"):
            prime_rl.install("gigpo", algorithm=name)
    prime_rl.install("gigpo")
    with pytest.raises(TurnwiseError, match="length_penalty"):
        algo.build_algorithm(GRPOAlgoConfig(length_penalty={"type": "linear"}), None)
