"""Objectives as a stage: columns that they declare, what they prepare per mini-batch, and what they remember."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gradient_cases import GradientOf, assert_same
from learn_cases import credited, equal, tiny, trajectories, weights_of

from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, checkpoint
from turnwise.learn.minibatch import may_skip
from turnwise.objectives import Loss, TokenLoss, Tokens, algorithms
from turnwise.objectives.clip import clip
from turnwise.util.errors import TurnwiseError

FAST = OptimiserSettings(lr=3e-3, weight_decay=0.0)
STILL = OptimiserSettings(lr=0.0)
Make = Callable[..., str]


@pytest.fixture
def objective() -> Iterator[Make]:
    """Registers an objective for one test; gives back its name."""
    known: list[str] = []

    def register(piece: Any, needs: tuple[str, ...] = (), name: str = "of_this_test") -> str:
        piece.__doc__ = piece.__doc__ or "For a test."
        algorithms.register(name, needs=needs)(piece)
        known.append(name)
        return name

    algorithms.names()  # the built-in ones first
    yield register
    for name in known:
        algorithms._entries.pop(name, None)


class Clipped:
    """The clipped objective as a class."""

    def __init__(self, *, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        self.options = {"clip_low": clip_low, "clip_high": clip_high}

    def __call__(self, tokens: Tokens) -> TokenLoss:
        return clip(tokens, **self.options)


def test_a_class_gives_the_weights_of_the_same_function_bit_by_bit(objective: Make) -> None:
    batch, found = credited(trajectories(5)), []
    for name in ("clip", objective(Clipped)):
        settings = LearnerSettings(optimiser=FAST, epochs=2, minibatches=2, loss=Loss(name, {"clip_low": 0.1}), tokens_per_batch=40)
        learner = Learner(tiny(), settings)
        learner.update(batch, 3)
        found.append(weights_of(learner))
    assert equal(*found)
    with pytest.raises(TurnwiseError, match="option of objective"):
        Loss("of_this_test", {"bound": 1.0})


@pytest.mark.parametrize("context", ["window", "full"])
def test_declared_columns_of_every_level_arrive_on_their_tokens(objective: Make, context: str) -> None:
    seen: list[Tokens] = []

    def look(tokens: Tokens) -> TokenLoss:
        seen.append(tokens)
        return TokenLoss(-tokens.extra["mine"] * tokens.logprob, {})

    needs = ("token.mine", "turn.length", "trajectory.luck", "group.hardness", "token.entropy", "model.teacher")
    batch = credited(trajectories(6, groups=3, context=context))
    rollouts, rng = batch.rollouts, np.random.default_rng(0)
    tokens, turns = int(rollouts.token_offsets[-1]), len(rollouts)
    columns = {
        "token.mine": rng.normal(size=tokens),
        "turn.length": np.arange(turns),
        "trajectory.luck": rng.normal(size=len(rollouts.trajectory_labels)),
        "group.hardness": rng.normal(size=len(rollouts.group_labels)),
        "token.entropy": rng.normal(size=tokens),
    }
    settings = LearnerSettings(optimiser=STILL, loss=Loss(objective(look, needs)), tokens_per_batch=40)
    Learner(tiny(), settings).update(batch.with_columns(columns))
    assert len(seen) > 1
    count = 0
    for part in seen:
        assert set(part.extra) == {"mine", "length", "luck", "hardness", "token.entropy"}  # tokens have an entropy of their own
        rows = part.turn.numpy()
        assert np.array_equal(part.extra["length"].numpy(), rows)
        np.testing.assert_allclose(part.extra["luck"], columns["trajectory.luck"][rollouts.trajectory[rows]], rtol=1e-6)
        np.testing.assert_allclose(part.extra["hardness"], columns["group.hardness"][rollouts.group[rows]], rtol=1e-6)
        place = {float(np.float32(value)): i for i, value in enumerate(columns["token.mine"])}
        index = np.array([place[float(value)] for value in part.extra["mine"]])
        assert np.array_equal(np.searchsorted(rollouts.token_offsets, index, side="right") - 1, rows)
        np.testing.assert_allclose(part.extra["token.entropy"], columns["token.entropy"][index], rtol=1e-6)
        count += len(index)
    assert count == tokens


def test_a_missing_column_says_who_needs_what(objective: Make) -> None:
    def distil(tokens: Tokens) -> TokenLoss:
        return TokenLoss(tokens.extra["teacher_logprob"] * tokens.logprob, {})

    learner = Learner(tiny(), LearnerSettings(loss=Loss(objective(distil, ("token.teacher_logprob",)))))
    with pytest.raises(TurnwiseError, match=r"objective 'of_this_test' needs the column 'token\.teacher_logprob'.*signal"):
        learner.update(credited(trajectories(5)))
    assert not may_skip(learner.settings)  # what reads more than advantages may move without them


def test_an_objective_can_ask_for_the_old_policys_and_the_references_log_probs(objective: Make) -> None:
    seen: list[Tokens] = []

    def look(tokens: Tokens) -> TokenLoss:
        seen.append(tokens)
        return TokenLoss(-tokens.advantage * tokens.ratio, {})

    name = objective(look, ("token.old_logprob", "token.ref_logprob", "token.logprob"))
    found = trajectories(5)
    settings = LearnerSettings(optimiser=STILL, loss=Loss(name))
    metrics = Learner(tiny(), settings, reference=tiny(1)).update(credited(found))
    assert "seconds_old_logprobs" in metrics and "seconds_reference" in metrics
    assert seen[-1].ref_logprob is not None and seen[-1].engine_logprob is not None and not seen[-1].extra
    bare = trajectories(5, logprobs=False)
    with pytest.raises(TurnwiseError, match="objective 'of_this_test' needs the engine's log-probs"):
        Learner(tiny(), settings, reference=tiny(1)).update(credited(bare))


class Centred:
    """REINFORCE with the mean advantage of the mini-batch taken off: it has to see the mini-batch before it is cut."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self.scale = scale
        self.calls: list[Mapping[str, Any]] = []

    def prepare(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls.append(columns)
        counts = columns["weight"] > 0
        return {"centred": self.scale * (columns["advantage"] - columns["advantage"][counts].mean())}

    def __call__(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-tokens.extra["centred"] * tokens.logprob, {"centred": tokens.extra["centred"]})


def test_what_is_prepared_per_mini_batch_does_not_depend_on_how_it_is_cut(objective: Make) -> None:
    name = objective(Centred)
    batch = credited(trajectories(8, groups=3))
    batch = batch.with_columns({"turn.mask": np.arange(len(batch)) % 4 > 0})
    results = []
    for budget in (30, 10_000):
        settings = LearnerSettings(loss=Loss(name), minibatches=2, optimiser=STILL, tokens_per_batch=budget)
        learner = Learner(tiny(), settings)
        run = GradientOf(learner)
        run(batch, seed=1)
        results.append(run)
        calls = learner.objective.calls  # type: ignore[attr-defined]
        assert len(calls) == 2 and {"advantage", "weight", "turn", "trajectory", "old_logprob", "engine_logprob"} <= calls[0].keys()
    for one, other in zip(results[0].found, results[1].found, strict=True):
        assert_same(one, other)


def test_a_prepared_column_of_a_wrong_size_is_refused(objective: Make) -> None:
    class Wrong(Centred):
        """Prepares one number."""

        def prepare(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"centred": np.zeros(1)}

    with pytest.raises(TurnwiseError, match="centred"):
        Learner(tiny(), LearnerSettings(loss=Loss(objective(Wrong)))).update(credited(trajectories(5)))


class Adaptive:
    """REINFORCE whose factor grows with every update that it has seen."""

    def __init__(self, *, growth: float = 2.0) -> None:
        self.growth, self.factor, self.seen = growth, 1.0, 0

    def __call__(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-self.factor * tokens.advantage * tokens.logprob, {})

    def observe(self, metrics: Mapping[str, float]) -> None:
        assert metrics["steps"] == 2
        self.factor, self.seen = self.factor * self.growth, self.seen + 1

    def state(self) -> dict[str, Any]:
        return {"factor": self.factor, "seen": self.seen}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.factor, self.seen = state["factor"], state["seen"]


def test_an_objective_that_remembers_goes_on_after_a_kill(objective: Make, tmp_path: Any) -> None:
    settings = LearnerSettings(optimiser=FAST, minibatches=2, loss=Loss(objective(Adaptive)))
    batches = [credited(trajectories(seed)) for seed in range(4)]
    straight, killed = Learner(tiny(), settings), Learner(tiny(), settings)
    for number, batch in enumerate(batches):
        straight.update(batch, number)
    for number in range(3):
        killed.update(batches[number], number)
    tensors, numbers = killed.state()
    checkpoint.save(tmp_path, 3, tensors, {"learner": numbers})
    found = checkpoint.latest_good(tmp_path)
    assert found is not None
    resumed = Learner(tiny(), settings)
    resumed.load_state(found.tensors, found.state["learner"])
    assert resumed.objective.factor == 8.0  # type: ignore[attr-defined]
    resumed.update(batches[3], 3)
    assert equal(weights_of(straight), weights_of(resumed)) and equal(straight.state()[0], resumed.state()[0])
    assert resumed.state()[1]["pieces"] == {"objective": {"name": "of_this_test", "state": {"factor": 16.0, "seen": 4}}}


def test_a_checkpoint_from_before_pieces_had_states_can_be_read(objective: Make) -> None:
    learner = Learner(tiny(), LearnerSettings(loss=Loss(objective(Adaptive))))
    tensors, numbers = learner.state()
    del numbers["pieces"]
    learner.load_state(tensors, numbers)
    assert learner.objective.factor == 1.0  # type: ignore[attr-defined]


def test_a_state_that_is_no_json_says_whose_it_is(objective: Make) -> None:
    class Vague(Adaptive):
        """Gives a tensor for a state."""

        def state(self) -> Any:
            return {"factor": torch.zeros(1)}

    learner = Learner(tiny(), LearnerSettings(loss=Loss(objective(Vague))))
    with pytest.raises(TurnwiseError, match=r"objective 'of_this_test': state\(\) returned what cannot be kept as JSON"):
        learner.state()


def test_each_learner_has_an_object_of_its_own(objective: Make) -> None:
    settings = LearnerSettings(loss=Loss(objective(Adaptive)), minibatches=2)
    one, other = Learner(tiny(), settings), Learner(tiny(), settings)
    one.update(credited(trajectories(1)))
    assert one.objective.seen == 1 and other.objective.seen == 0  # type: ignore[attr-defined]
