"""Schedules: which parts of a batch make up which optimiser step, in which order, and what happens between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gradient_cases import GradientOf, assert_same
from learn_cases import credited, equal, gradients, tiny, trajectories, weights_of

from turnwise.data.batch import Batch
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, ValueSettings
from turnwise.methods.registry import schedules
from turnwise.methods.steps import ScheduleView, Step
from turnwise.objectives import Loss
from turnwise.util.errors import TurnwiseError

FAST = OptimiserSettings(lr=3e-3, weight_decay=0.0)
STILL = OptimiserSettings(lr=0.0)
REINFORCE = Loss("reinforce")
Make = Callable[..., str]


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Registers a schedule for one test; gives back its name."""
    monkeypatch.setattr(schedules, "_entries", dict(schedules._ready()))

    def register(function: Any, name: str = "of_this_test") -> str:
        function.__doc__ = function.__doc__ or "For a test."
        schedules.register(name)(function)
        return name

    return register


def test_a_list_of_steps_and_a_generator_of_the_same_steps_train_alike(schedule: Make) -> None:
    batch = credited(trajectories(5, groups=3, context="full"))

    def listed(view: ScheduleView) -> list[Step]:
        return [Step(trajectories=part) for part in np.array_split(np.arange(9), 3)]

    def generated(view: ScheduleView) -> Iterator[Step]:
        yield from listed(view)

    found = []
    for name, function in (("listed", listed), ("generated", generated)):
        learner = Learner(tiny(), LearnerSettings(optimiser=FAST, schedule=schedule(function, name)))
        assert learner.update(batch, 1)["steps"] == 3
        found.append(weights_of(learner))
    assert equal(*found)


# -- what a step can say ----------------------------------------------------------------------------------------------------------


def by_hand(batch: Batch, kept: Any, advantage: Any, near: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """The gradient of REINFORCE with every turn that has a kept token counting the same, by the model's own forward in float64: one turn at
    a time, its whole prompt before it, no packing."""
    model = tiny().to(near)
    offsets = batch.rollouts.token_offsets
    rows = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
    masks = [np.asarray(kept)[offsets[row] : offsets[row + 1]] for row in range(len(rows))]
    turns = sum(mask.any() for mask in masks)
    total = torch.zeros((), dtype=near)
    for row, (turn, mask) in enumerate(zip(rows, masks, strict=True)):
        if mask.any():
            prompt, response = list(turn.prompt_ids), list(turn.response_ids)
            logprobs = model(input_ids=torch.tensor([prompt + response])).logits[0].log_softmax(-1)
            for place in np.flatnonzero(mask):
                total = total - float(advantage[row]) * logprobs[len(prompt) - 1 + place, response[place]] / (turns * mask.sum())
    total.backward()
    return {name: gradient.float() for name, gradient in gradients(model).items()}


@pytest.mark.parametrize("context", ["window", "full"])
def test_a_masked_step_has_the_gradient_computed_by_hand_in_float64(schedule: Make, context: str) -> None:
    batch = credited(trajectories(6, groups=2, context=context))
    tokens = int(batch.rollouts.token_offsets[-1])
    mask = np.random.default_rng(1).random(tokens) < 0.6
    rows = np.flatnonzero(batch.rollouts.t != 1)

    def some(view: ScheduleView) -> list[Step]:
        return [Step(rows=rows, mask=mask)]

    settings = LearnerSettings(loss=REINFORCE, optimiser=STILL, tokens_per_batch=40, schedule=schedule(some))
    run = GradientOf(Learner(tiny(), settings))
    kept = mask & np.isin(np.repeat(np.arange(len(batch)), np.diff(batch.rollouts.token_offsets)), rows)
    assert 0 < kept.sum() < mask.sum()
    assert_same(run(batch), by_hand(batch, kept, batch.column("turn.advantage")))
    assert run.metrics["steps"] == 1


@pytest.mark.parametrize("context", ["window", "full"])
def test_masks_of_the_batch_leave_tokens_out_of_the_loss_and_its_averages(context: str) -> None:
    batch = credited(trajectories(7, groups=2, context=context))
    rng = np.random.default_rng(2)
    turn, token = rng.random(len(batch)) < 0.7, rng.random(int(batch.rollouts.token_offsets[-1])) < 0.7
    masked = batch.with_columns({"turn.mask": turn, "token.mask": token})
    kept = token & np.repeat(turn, np.diff(batch.rollouts.token_offsets))
    run = GradientOf(Learner(tiny(), LearnerSettings(loss=REINFORCE, optimiser=STILL)))
    assert_same(run(masked), by_hand(batch, kept, batch.column("turn.advantage")))
    assert run.metrics["tokens"] == kept.sum() and run.metrics["masked_tokens"] == (~kept).sum()


@pytest.mark.parametrize(("target", "loss"), [(0.5, 0.125), (1.0, 0.5), (3.0, 0.5), (30.0, 0.5)])
def test_a_critic_learns_only_from_values_that_no_mask_leaves_out_and_pulls_no_harder_for_large_returns(target: float, loss: float) -> None:
    learner = Learner(tiny(), LearnerSettings(optimiser=STILL, value=ValueSettings()))
    batch = learner.annotate(Batch.of(trajectories(8)))
    targets = np.where(np.arange(len(batch)) % 2 == 0, target, 100.0)
    given = credited(batch, np.zeros(len(batch)), targets).with_columns({"turn.mask": np.arange(len(batch)) % 2 == 0})
    metrics = learner.update(given)
    assert metrics["value_target"] == pytest.approx(target) and metrics["value_loss"] == pytest.approx(loss, rel=1e-5)


def test_steps_are_taken_in_their_order_and_each_sees_the_effect_of_the_one_before(schedule: Make) -> None:
    batch = credited(trajectories(5, groups=3, context="full"))
    t = batch.rollouts.t
    seen: list[tuple[int, float, float]] = []

    def backwards(view: ScheduleView) -> Iterator[Step]:
        for turn in range(int(t.max()), -1, -1):
            before = view.score()
            metrics = yield Step(rows=np.flatnonzero(t == turn), refresh=("old_logprob",))
            seen.append((turn, metrics["ratio"], float(np.abs(view.score() - before).max())))

    learner = Learner(tiny(), LearnerSettings(optimiser=FAST, schedule=schedule(backwards)))
    metrics = learner.update(batch)
    assert [turn for turn, _, _ in seen] == [2, 1, 0] and metrics["steps"] == 3
    assert all(ratio == pytest.approx(1, abs=1e-5) for _, ratio, _ in seen)  # each step starts from the current policy
    assert all(moved > 1e-4 for _, _, moved in seen)


def test_refreshed_log_probs_stay_with_their_tokens(schedule: Make) -> None:
    batch = credited(trajectories(5, groups=2))
    half, rest = np.array_split(np.arange(len(batch)), 2)
    ratios: list[float] = []

    def twice(view: ScheduleView) -> Iterator[Step]:
        for rows, refresh in ((half, True), (rest, False), (half, False), (half, True), (rest, False)):
            ratios.append((yield Step(rows=rows, refresh=("old_logprob",) if refresh else ()))["ratio"])

    Learner(tiny(), LearnerSettings(optimiser=FAST, schedule=schedule(twice))).update(batch)
    fresh = [abs(ratio - 1) < 1e-5 for ratio in ratios]
    assert fresh == [True, True, False, True, False]  # `rest` is anchored where it is first used, since the first step refreshes


def test_a_step_can_bring_columns_of_its_own(schedule: Make) -> None:
    batch = credited(trajectories(6))
    own = np.random.default_rng(3).normal(size=len(batch))

    def other(view: ScheduleView) -> list[Step]:
        return [Step(), Step(columns={"turn.advantage": own}), Step()]

    run = GradientOf(Learner(tiny(), LearnerSettings(loss=REINFORCE, optimiser=STILL, schedule=schedule(other))))
    run(batch)
    plain = GradientOf(Learner(tiny(), LearnerSettings(loss=REINFORCE, optimiser=STILL)))
    assert_same(run.found[0], plain(batch))
    assert_same(run.found[1], plain(credited(batch, own)))
    assert_same(run.found[2], run.found[0])


def test_an_update_that_ends_early_closes_the_schedule(schedule: Make) -> None:
    closed: list[bool] = []

    def endless(view: ScheduleView) -> Iterator[Step]:
        try:
            while True:
                yield Step()
        finally:
            closed.append(True)

    settings = LearnerSettings(optimiser=OptimiserSettings(lr=3e-2), kl_stop=0.01, schedule=schedule(endless))
    metrics = Learner(tiny(), settings).update(credited(trajectories(4)))
    assert metrics["stopped_early"] == 1 and closed == [True]


def test_a_step_with_nothing_to_learn_from_is_passed_over(schedule: Make) -> None:
    batch = credited(trajectories(5))
    heard: list[dict[str, float]] = []

    def partly(view: ScheduleView) -> Iterator[Step]:
        heard.append((yield Step(rows=[])))
        heard.append((yield Step(mask=np.zeros(int(batch.rollouts.token_offsets[-1]), np.bool_))))
        heard.append((yield Step(rows=[0])))

    metrics = Learner(tiny(), LearnerSettings(schedule=schedule(partly))).update(batch)
    assert metrics["steps"] == 1 and metrics["empty_steps"] == 2 and heard[:2] == [{}, {}] and heard[2]["taken"] == 1


def test_skipping_what_has_no_credit_leaves_the_gradients_of_any_schedule(schedule: Make) -> None:
    batch = credited(trajectories(8, groups=3, context="full"))
    values = np.where(batch.rollouts.group == 0, 0.0, batch.column("turn.advantage"))
    batch = credited(batch, values)
    own = np.zeros(len(batch))
    own[0] = 1.0

    def steps(view: ScheduleView) -> Iterator[Step]:
        for turn in range(3):
            yield Step(rows=np.flatnonzero(batch.rollouts.t == turn))
        yield Step(trajectories=[0, 1, 2], columns={"turn.advantage": own})
        yield Step(trajectories=[0, 1, 2])

    name = schedule(steps)
    runs = [
        GradientOf(Learner(tiny(), LearnerSettings(optimiser=STILL, schedule=name, skip_zero_credit=skip, loss=Loss("clip"))))
        for skip in (False, True)
    ]
    for run in runs:
        run(batch)
    assert len(runs[0].found) == len(runs[1].found) == 5
    for plain, skipping in zip(runs[0].found[:-1], runs[1].found[:-1], strict=True):
        assert_same(skipping, plain)
    assert all(gradient.abs().max() < 1e-6 for gradient in runs[1].found[-1].values())


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Step(refresh=("reference",)), "cannot refresh 'reference'"),
        (Step(rows=[0, 99]), "row numbers are integers from 0 to"),
        (Step(trajectories=[-1]), "trajectory numbers are integers from 0 to"),
        (Step(mask=[True]), "one true or false per token"),
        (Step(columns={"turn.advantage": [1.0]}), "one number per turn"),
        (Step(columns={"turn.mood": [1.0]}), "which nothing in this update reads"),
        ("a word", "gave str as a step"),
        (None, "schedule 'of_this_test' returned NoneType: a list or a generator"),
    ],
)
def test_steps_that_cannot_be_taken_say_why(schedule: Make, step: Any, words: str) -> None:
    learner = Learner(tiny(), LearnerSettings(schedule=schedule(lambda view: step and [step])))
    with pytest.raises(TurnwiseError, match=words):
        learner.update(credited(trajectories(5, groups=1)))


def test_settings_of_the_learner_reach_schedules_that_have_such_options(schedule: Make) -> None:
    seen: list[int] = []

    def own(view: ScheduleView, *, epochs: int = 1, other: float = 0.5) -> list[Step]:
        seen.append(epochs)
        return [Step()] * epochs

    name = schedule(own)
    assert Learner(tiny(), LearnerSettings(schedule=name, epochs=2)).update(credited(trajectories(5, groups=1)))["steps"] == 2
    assert LearnerSettings(schedule=name, epochs=2, schedule_options={"epochs": 3}).made_schedule().keywords["epochs"] == 3  # type: ignore[attr-defined]
    with pytest.raises(TurnwiseError, match="minibatches is set, and schedule 'of_this_test' has no such option"):
        LearnerSettings(schedule=name, minibatches=2)
