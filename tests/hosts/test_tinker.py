"""Credit in the datums of tinker-cookbook, through its own `prepare_minibatch`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

tinker = pytest.importorskip("tinker", reason="needs Tinker in an environment of its own: make test-hosts ONLY=tinker")
pytest.importorskip("tinker_cookbook", reason="needs tinker-cookbook in an environment of its own: make test-hosts ONLY=tinker")

from batches import METHODS, NEED_VALUES, STATES, Attempt, expected, random_attempts  # noqa: E402
from pages import example_of  # noqa: E402
from tinker_cookbook.completers import TokensWithLogprobs  # noqa: E402
from tinker_cookbook.rl import data_processing, train  # noqa: E402
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Trajectory, TrajectoryGroup, Transition  # noqa: E402

from turnwise.hosts.tinker import assemble_with  # noqa: E402
from turnwise.util.errors import TurnwiseError  # noqa: E402

VALUES = {"turn.value": "value", "token.value": "token_values"}
FINAL = 0.25  # of each attempt's reward comes from the group and not from its last transition
PICTURE = tinker.types.ImageChunk(data=b"picture", format="png", expected_tokens=3)


def continues(attempt: Attempt) -> bool:
    """Whether the prompts of an attempt hold what was said before; otherwise every prompt is written anew."""
    return attempt.number % 2 == 0


def trajectory_of(attempt: Attempt, first: tuple[Any, ...]) -> Trajectory:
    """The attempt as the cookbook's rollouts leave it; `first` are chunks before its first observation."""
    transitions, before = [], list(first)
    for t, turn in enumerate(attempt.turns):
        new = tinker.types.EncodedTextChunk(tokens=turn.prompt if continues(attempt) else [t + 200, *turn.prompt])
        observation = tinker.ModelInput(chunks=[*before, new])
        action = TokensWithLogprobs(turn.response, [-0.01 * (token + t) for token in turn.response])
        last = t == len(attempt.turns) - 1
        logs = {"state": turn.anchor, "token_values": turn.token_values}
        metrics = {"value": turn.value, "valid": float(turn.valid)}
        transitions.append(Transition(observation, action, turn.reward - FINAL * last, last, metrics, logs))
        if continues(attempt):
            before = [*before, new, tinker.types.EncodedTextChunk(tokens=turn.response)]
    return Trajectory(transitions, tinker.ModelInput.empty())


def groups_of(attempts: list[Attempt], first: tuple[Any, ...] = ()) -> tuple[list[TrajectoryGroup], list[Attempt]]:
    """The attempts as the cookbook's groups, and in the order of these groups."""
    by_group: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_group.setdefault(attempt.group, []).append(attempt)
    groups = [
        TrajectoryGroup([trajectory_of(attempt, first) for attempt in members], [FINAL] * len(members), [{} for _ in members])
        for members in by_group.values()
    ]
    return groups, list(chain.from_iterable(by_group.values()))


def prepared(groups: list[TrajectoryGroup], assemble: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The datums of the cookbook's training step, with another function in the place of its own."""
    monkeypatch.setattr(train, "assemble_training_data", assemble)
    builders = [SimpleNamespace(logging_tags=lambda: ["walk"]) for _ in groups]
    words = SimpleNamespace(decode=lambda tokens: str(tokens), encode=lambda text, **_: [0])
    datums, _ = asyncio.run(train.prepare_minibatch(builders, groups, words, None, 0.0, 0.0))
    return datums


def wanted_datums(attempts: list[Attempt], by_turn: dict[tuple[int, int], Any], ahead: int = 0) -> list[Any]:
    """The advantages of each datum: one for an attempt whose prompts continue each other, else one per turn. A datum has no target for its
    first token."""
    result = []
    for attempt in attempts:
        turns = [
            np.concatenate([np.zeros(len(turn.prompt) + (not continues(attempt))), by_turn[attempt.number, t]])
            for t, turn in enumerate(attempt.turns)
        ]
        if continues(attempt):
            turns = [np.concatenate([np.zeros(ahead), *turns])]
        result += [advantages[1:] for advantages in turns]
    return result


def check(datums: list[Any], wanted: list[Any]) -> None:
    for datum, advantages in zip(datums, wanted, strict=True):
        inputs = datum.loss_fn_inputs["advantages"]
        assert inputs.dtype == "float32" and len(advantages) == datum.model_input.length
        np.testing.assert_allclose(inputs.to_numpy(), advantages, rtol=0, atol=1e-6)


def check_rest(datums: list[Any], own: list[Any]) -> None:
    for datum, other in zip(datums, own, strict=True):
        assert datum.model_input == other.model_input and datum.loss_fn_inputs.keys() == other.loss_fn_inputs.keys()
        for key in ("target_tokens", "logprobs", "mask"):
            ours, theirs = datum.loss_fn_inputs[key], other.loss_fn_inputs[key]
            assert (ours.dtype, ours.shape, ours.tolist()) == (theirs.dtype, theirs.shape, theirs.tolist())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", METHODS)
def test_every_sampled_token_gets_the_advantage_of_its_turn(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = random_attempts(seed)
    groups, ordered = groups_of(attempts)
    own = prepared(groups, data_processing.assemble_training_data, monkeypatch)
    columns = VALUES if name in NEED_VALUES else None
    datums = prepared(groups, assemble_with(name, anchor="state", columns=columns, **METHODS[name]), monkeypatch)
    check(datums, wanted_datums(ordered, expected(name, attempts)))
    check_rest(datums, own)


def test_whole_trajectory_credit_is_the_cookbooks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, _ = groups_of(random_attempts(3))
    own, own_origins = data_processing.assemble_training_data(groups, data_processing.compute_advantages(groups))
    datums, origins = assemble_with("grpo", norm="none")(groups, data_processing.compute_advantages(groups))
    check(datums, [datum.loss_fn_inputs["advantages"].to_numpy() for datum in own])
    check_rest(datums, own)
    assert origins == own_origins and any(datum.loss_fn_inputs["advantages"].to_numpy().any() for datum in own)


@pytest.mark.parametrize("seed", range(3))
def test_without_a_name_the_state_is_what_is_new_in_the_observation(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = random_attempts(seed)
    for attempt in attempts:
        attempt.number *= 2  # all of them continue
        for turn in attempt.turns:
            turn.prompt = [500, STATES.index(turn.anchor)]
    groups, ordered = groups_of(attempts)
    monkeypatch.setattr(train, "assemble_training_data", None)  # and restored after the page's example has replaced it
    exec(example_of("tinker"), {})
    datums = prepared(groups, train.assemble_training_data, monkeypatch)
    check(datums, wanted_datums(ordered, expected("gigpo", attempts, gamma=0.95)))


def test_a_prompt_that_is_written_anew_is_a_state_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = random_attempts(4)
    groups, _ = groups_of(attempts)
    seen: list[Any] = []

    def look(rollouts: Any) -> Any:
        seen.append(len(set(rollouts.anchor)))
        return rollouts.reward

    prepared(groups, assemble_with(look), monkeypatch)
    steps = [(continues(attempt), t, tuple(turn.prompt)) for attempt in attempts for t, turn in enumerate(attempt.turns)]
    assert seen[-1] == len({(kept or t, prompt) for kept, t, prompt in steps})


def test_pictures_do_not_shift_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = [replace(attempt, number=2 * attempt.number) for attempt in random_attempts(5)]
    groups, ordered = groups_of(attempts, (PICTURE,))
    own, _ = data_processing.assemble_training_data(groups, data_processing.compute_advantages(groups))
    datums, _ = assemble_with("gigpo", anchor="state", gamma=0.9)(groups, data_processing.compute_advantages(groups))
    check(datums, wanted_datums(ordered, expected("gigpo", attempts), ahead=PICTURE.length))
    check_rest(datums, own)


def test_observations_with_different_pictures_are_different_states() -> None:
    text, action = tinker.types.EncodedTextChunk(tokens=[1, 2]), TokensWithLogprobs([3], [-1.0])
    pictures = [PICTURE, PICTURE, tinker.types.ImageChunk(data=b"another", format="png", expected_tokens=3)]
    steps = [Transition(tinker.ModelInput(chunks=[text, picture]), action, 1.0, True) for picture in pictures]
    group = TrajectoryGroup([Trajectory([step], step.ob) for step in steps], [0.0] * 3, [{}] * 3)
    seen: list[list[int]] = []

    def look(rollouts: Any) -> Any:
        seen.append(rollouts.anchor.tolist())
        return rollouts.reward

    assemble_with(look)([group], data_processing.compute_advantages([group]))
    assert seen[0][0] == seen[0][1] != seen[0][2]


def test_a_masked_turn_is_invalid_and_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = random_attempts(6)
    groups, ordered = groups_of(attempts)
    options = {"gamma": 0.9, "invalid_penalty": 0.5}
    by_turn = expected("gigpo", attempts, **options)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories_G]
    for trajectory, attempt in zip(trajectories, ordered, strict=True):
        for t, (step, turn) in enumerate(zip(trajectory.transitions, attempt.turns, strict=True)):
            if not turn.valid:
                step.metrics[PARSE_ERROR_MASKED_METRIC_KEY] = 1.0
                by_turn[attempt.number, t] = np.zeros(len(turn.response))
    assert not all(turn.valid for attempt in attempts for turn in attempt.turns)
    own = prepared(groups, data_processing.assemble_training_data, monkeypatch)
    datums = prepared(groups, assemble_with("gigpo", anchor="state", **options), monkeypatch)
    check(datums, wanted_datums(ordered, by_turn))
    check_rest(datums, own)


def test_validity_can_be_a_metric_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = random_attempts(7)
    groups, ordered = groups_of(attempts)
    options = {"gamma": 0.9, "invalid_penalty": 0.5}
    datums = prepared(groups, assemble_with("gigpo", anchor="state", columns={"turn.valid": "valid"}, **options), monkeypatch)
    check(datums, wanted_datums(ordered, expected("gigpo", attempts, **options)))


def test_trajectories_without_turns_or_responses_take_no_harm() -> None:
    attempts = random_attempts(8, groups=2)
    groups, ordered = groups_of(attempts)
    silent = Transition(tinker.ModelInput.from_ints([1, 2, 3]), TokensWithLogprobs([], []), 0.0, True, {}, {"state": "attic"})
    groups.append(TrajectoryGroup([Trajectory([silent], silent.ob), Trajectory([], silent.ob)], [0.0, 0.0], [{}, {}]))
    *datums, last = assemble_with("gigpo", anchor="state", gamma=0.9)(groups, data_processing.compute_advantages(groups))[0]
    check(datums, wanted_datums(ordered, expected("gigpo", attempts)))
    check([last], [[0.0, 0.0]])
    nothing = [TrajectoryGroup([Trajectory([], silent.ob)], [1.0], [{}])]
    assert assemble_with("gigpo")(nothing, data_processing.compute_advantages(nothing)) == ([], [])


def test_what_is_missing_is_named() -> None:
    groups, _ = groups_of(random_attempts(9))
    advantages = data_processing.compute_advantages(groups)
    with pytest.raises(TurnwiseError, match=r"no 'room' in its logs or metrics\. They have: state, token_values, value, valid"):
        assemble_with("gigpo", anchor="room")(groups, advantages)
    with pytest.raises(TurnwiseError, match=r"logs\['value'\]: a list with one number for each of \d+ tokens"):
        assemble_with("bi_level_gae", anchor="state", columns={"token.value": "value"})(groups, advantages)
    groups[0].trajectories_G[0].transitions[0].ac.logprobs.append(0.0)
    with pytest.raises(TurnwiseError, match=r"a transition has \d+ tokens and \d+ log-probs"):
        assemble_with("gigpo")(groups, advantages)
