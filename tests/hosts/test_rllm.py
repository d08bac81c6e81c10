"""rLLM's own episodes, grouping, advantage collection and Tinker datums, from a checkout at the commit that was tried."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import METHODS, NEED_VALUES, Attempt, expected, random_attempts

from turnwise.util.errors import TurnwiseError

CHECKOUT = os.environ.get("RLLM_CHECKOUT", "")
SEEDS = (0, 1, 2)


def test_without_rllm_its_commit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from turnwise.hosts.rllm import with_credit

    monkeypatch.setitem(sys.modules, "rllm", None)
    monkeypatch.delitem(sys.modules, "rllm.trainer.algorithms.transform", raising=False)
    with pytest.raises(TurnwiseError, match="needs rLLM as of commit 9beb6e0"):
        with_credit("gigpo")


@pytest.mark.parametrize(("name", "options", "message"), [("vineppo", {}, r"turn\.mc_value"), ("gigpo", {"gama": 1}, "gama")])
def test_a_method_that_cannot_run_is_refused_before_training(name: str, options: dict[str, Any], message: str) -> None:
    from turnwise.hosts.rllm import with_credit

    with pytest.raises(TurnwiseError, match=message):
        with_credit(name, **options)


@pytest.fixture(scope="module")
def rllm() -> Any:
    """rLLM's modules. They are loaded from the checkout, which is never a part of this repository."""
    if not (Path(CHECKOUT) / "rllm" / "trainer").is_dir():
        pytest.skip("rLLM is not on the package index: set RLLM_CHECKOUT to a checkout at 9beb6e0, make test-hosts ONLY=rllm")
    pytest.importorskip("tinker", reason="rLLM's Tinker backend needs tinker: make test-hosts ONLY=rllm")
    sys.path.insert(0, CHECKOUT)
    import rllm.trainer.algorithms.transform
    import rllm.trainer.tinker.transform

    return rllm


def episodes_of(attempts: list[Attempt], *, anchored: bool = True, outcome: bool = False, retokenised: bool = False) -> list[Any]:
    """rLLM's episodes, one attempt each. A prompt holds all before it, unless `retokenised`."""
    from rllm.types import Episode, Step, Trajectory

    episodes = []
    for attempt in attempts:
        steps, before = [], []
        for turn in attempt.turns:
            anchor = {"anchor": turn.anchor} if anchored else {}
            prompt = [*([7] if retokenised and before else []), *before, *turn.prompt]
            steps.append(
                Step(
                    prompt_ids=prompt,
                    response_ids=list(turn.response),
                    logprobs=[-1.0] * len(turn.response),
                    reward=0.0 if outcome else turn.reward,
                    observation=None if anchored else turn.anchor,
                    metadata=anchor | {"valid": turn.valid, "value": turn.value, "token_value": turn.token_values},
                )
            )
            before = [*prompt, *turn.response]
        trajectory = Trajectory(name="solver", steps=steps, reward=attempt.outcome)
        episodes.append(Episode(id=f"{attempt.group}:{attempt.number}", trajectories=[trajectory]))
    return episodes


def trained_on(episodes: list[Any], name: str, **options: Any) -> list[Any]:
    """From episodes to what rLLM sends to Tinker, through its own functions, in the order of its synchronous trainer."""
    from rllm.trainer.algorithms.advantage import collect_reward_and_advantage_from_trajectory_groups
    from rllm.trainer.algorithms.config import AlgorithmConfig, TransformConfig
    from rllm.trainer.algorithms.transform import transform_episodes_to_trajectory_groups
    from rllm.trainer.tinker.transform import transform_trajectory_groups_to_datums

    from turnwise.hosts.rllm import with_credit

    config = AlgorithmConfig(use_precomputed_advantage=True)
    groups, _ = transform_episodes_to_trajectory_groups(episodes, TransformConfig(), traj_grouping_hook=with_credit(name, **options))
    collect_reward_and_advantage_from_trajectory_groups(groups, config)  # not called with Tinker; it must not change anything either
    datums, metrics = transform_trajectory_groups_to_datums(groups, config)
    assert metrics["batch/dropped_malformed_sequences"] == 0
    return datums


def sampled(datums: list[Any]) -> np.ndarray:
    pairs = [(datum.loss_fn_inputs["advantages"].tolist(), datum.loss_fn_inputs["mask"].tolist()) for datum in datums]
    return np.concatenate([np.asarray(advantages)[np.asarray(mask) > 0] for advantages, mask in pairs])


def wanted(attempts: list[Attempt], name: str, **options: Any) -> np.ndarray:
    """Expected values in the order of rLLM's groups: by the first attempt of each."""
    by_turn = expected(name, attempts, **options)
    groups = list(dict.fromkeys(attempt.group for attempt in attempts))
    ordered = sorted(attempts, key=lambda attempt: groups.index(attempt.group))
    return np.concatenate([by_turn[attempt.number, t] for attempt in ordered for t in range(len(attempt.turns))])


@pytest.mark.usefixtures("rllm")
@pytest.mark.parametrize("retokenised", [False, True], ids=["one sequence", "a sequence per step"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_sampled_token_of_a_datum_has_the_advantage_of_its_turn(seed: int, name: str, retokenised: bool) -> None:
    attempts = random_attempts(seed, least=1)
    datums = trained_on(episodes_of(attempts, retokenised=retokenised), name, **METHODS[name])
    assert len(datums) == (sum(len(attempt.turns) for attempt in attempts) if retokenised else len(attempts))
    np.testing.assert_allclose(sampled(datums), wanted(attempts, name), atol=1e-6)


@pytest.mark.usefixtures("rllm")
def test_invalid_turns_and_observations_are_read_too() -> None:
    attempts = random_attempts(3, least=1)
    datums = trained_on(episodes_of(attempts, anchored=False), "gigpo", gamma=0.9, invalid_penalty=0.5)
    np.testing.assert_allclose(sampled(datums), wanted(attempts, "gigpo", invalid_penalty=0.5), atol=1e-6)


@pytest.mark.usefixtures("rllm")
def test_a_trajectorys_reward_is_on_its_last_step_where_no_step_has_one() -> None:
    attempts = random_attempts(4, least=1, outcome_only=True)
    datums = trained_on(episodes_of(attempts, outcome=True), "gigpo", gamma=0.9)
    np.testing.assert_allclose(sampled(datums), wanted(attempts, "gigpo"), atol=1e-6)


@pytest.mark.usefixtures("rllm")
def test_without_observations_a_state_is_the_tokens_since_the_last_response() -> None:
    attempts = random_attempts(5, least=1)
    episodes = episodes_of(attempts, anchored=False)
    for attempt, episode in zip(attempts, episodes, strict=True):
        for turn, step in zip(attempt.turns, episode.trajectories[0].steps, strict=True):
            step.observation = None
            turn.anchor = str(turn.prompt)
    np.testing.assert_allclose(sampled(trained_on(episodes, "gigpo", gamma=0.9)), wanted(attempts, "gigpo"), atol=1e-6)


@pytest.mark.usefixtures("rllm")
def test_roles_are_batches_of_their_own() -> None:
    """Two roles in one workflow, and a method that whitens over the batch."""
    first, second = random_attempts(6, least=1), random_attempts(7, least=1)
    for attempt in second:
        attempt.number += 1000
    episodes = episodes_of(first) + episodes_of(second)
    for episode in episodes[len(first) :]:
        episode.trajectories[0].name = "judge"
    found = sampled(trained_on(episodes, "gae", **METHODS["gae"]))
    np.testing.assert_allclose(found, np.concatenate([wanted(first, "gae"), wanted(second, "gae")]), atol=1e-6)


@pytest.mark.usefixtures("rllm")
def test_missing_values_are_a_clear_message() -> None:
    episodes = episodes_of(random_attempts(0, least=1))
    episodes[0].trajectories[0].steps[0].metadata.pop("value")
    with pytest.raises(TurnwiseError, match="value"):
        trained_on(episodes, "gae", **METHODS["gae"])
    assert "gae" in NEED_VALUES
