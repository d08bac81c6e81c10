"""Methods whose policy writes a text before it acts: StraTA and HiMAC."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collect_cases import numbered
from formulas import himac, strata
from method_cases import BANDIT, OTHER_GAME, attempt, gathers, make, paths, resumes_alike, rollouts, train

import turnwise as tw
from turnwise import Trajectory, Turn, TurnwiseError
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.methods.planning import TaskSlots
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch
from turnwise_experiments.himac import SHOW_ONE, OneByOne, parts_of
from turnwise_experiments.strata import farthest, grams

WORDS = ("go left and stay there", "go left and stay here", "turn around at once", "wait")
LONG = {"agent.max_prompt_tokens": 200, "model.tiny.max_length": 256, "engine.max_tokens": 4}


def talking(asked: list[str], words: Sequence[str] = WORDS) -> dict[str, Any]:
    """What a run gives its plan, where the policy says these words one after another."""

    def say(texts: Sequence[str], seed: int) -> list[Turn]:
        asked.extend(texts)
        return [Turn(text, action=words[k % len(words)], response_ids=[k + 1], logprobs=[-1.0]) for k, text in enumerate(texts)]

    return {"say": say, "look": lambda starts: [f"task {start.task.id}" for start in starts]}


# -- StraTA: agreement ------------------------------------------------------------------------------------------------------------


def with_strategies(seed: int, size: int, constant: bool) -> tw.Rollouts:
    """Groups whose trajectories belong to up to three strategies, each with a turn that wrote it."""
    rng = np.random.default_rng(seed)
    base = rollouts(seed, size=size)
    made: list[Trajectory] = []
    for rows in paths(base):
        group, k = int(base.group[rows[0]]), len(made)
        turns = [Turn("s", 0.0 if constant else float(base.reward[row]), response_ids=[1]) for row in rows]
        z = int(rng.integers(0, 3))
        for turn in turns:
            turn.notes = {"strategy": z, "writes": 0.0, "flagged": float(rng.random() < 0.3)}
        made.append(Trajectory(group, f"a{k}", turns=turns))
    for group, z in sorted({(int(t.group), int(t.turns[0].notes["strategy"])) for t in made}):
        turn = Turn("z", 9.0, response_ids=[1], notes={"strategy": z, "writes": 1.0, "flagged": 0.0})
        made.insert(int(rng.integers(0, len(made) + 1)), Trajectory(group, f"z{group}-{z}", turns=[turn]))
    return Batch.of(made).rollouts


def expected(r: tw.Rollouts, delta: float, kappa: float, pool: str) -> np.ndarray:
    """The credit of every turn by the reference; rows of rollouts in any order."""
    found = np.full(len(r), np.nan)
    rows_of = [np.flatnonzero(r.trajectory == k) for k in range(len(r.trajectory_labels))]
    number, writes, flagged = (r.column(f"turn.{name}") for name in ("strategy", "writes", "flagged"))
    acts = [rows for rows in rows_of if writes[rows[0]] == 0]
    keys = [f"{r.group[rows[0]]}-{number[rows[0]]}" for rows in acts]
    returns = [float(r.reward[rows].sum()) for rows in acts]
    flags = [[bool(flag) for flag in flagged[rows]] for rows in acts]
    for rows, row in zip(acts, strata.action_advantages(returns, flags, keys, kappa, pool), strict=True):
        found[rows] = row
    for group in range(len(r.group_labels)):
        rows = [int(rows[0]) for rows in rows_of if writes[rows[0]] == 1 and r.group[rows[0]] == group]
        own = [[x for x, key in zip(returns, keys, strict=True) if key == f"{group}-{number[row]}"] for row in rows]
        found[rows] = strata.strategy_advantages(own, delta)
    return found


@pytest.mark.parametrize("kind", ["random", "constant", "alone"])
@pytest.mark.parametrize("pool", ["turns", "trajectories"])
@pytest.mark.parametrize("delta", [0.5, 0.0, 1.0])
def test_credit_of_strategies_and_of_actions_is_that_of_the_formula(kind: str, pool: str, delta: float) -> None:
    for seed in range(4):
        r = with_strategies(seed, 1 if kind == "alone" else 8, kind == "constant")
        found = tw.credit.compute("strata", r, delta=delta, kappa=0.3, pool=pool)
        np.testing.assert_allclose(found, expected(r, delta, 0.3, pool), atol=1e-6, rtol=1e-6)


def test_the_texts_that_differ_most_are_chosen() -> None:
    for seed in range(6):
        points = np.random.default_rng(seed).normal(size=(9, 4))
        unit = points / np.linalg.norm(points, axis=1, keepdims=True)
        assert farthest(unit, 5) == strata.farthest(unit.tolist(), 5)
    assert farthest(grams(WORDS), 3) == [0, 3, 2] and farthest(grams(["a", "a", ""]), 5) == [0, 2, 1]


# -- StraTA: the plan -------------------------------------------------------------------------------------------------------------


def test_attempts_are_shared_out_among_different_strategies_and_both_are_learned_from() -> None:
    asked: list[str] = []
    slots = TaskSlots(numbered(5), 0, 4, **talking(asked))

    def play(start: Start) -> Trajectory:
        return attempt(start, float("left" in str(start.hint)), actions=("a", "b"))

    found, [starts] = gathers(make("strata", strategies=2, factor=2, judge="none"), slots, 2, play)
    assert len(asked) == 8 and all("strategy" in text and "task" in text for text in asked) and asked[0] != asked[4]
    hints = [str(start.hint).removeprefix("Your strategy for this task: ") for start in starts]
    assert hints == ["go left and stay there", "wait"] * 4  # of four candidates, the first and the one least like it
    texts = [t for t in found.trajectories if t.turns[0].notes["writes"]]
    assert len(texts) == 4 and len({t.id for t in found.trajectories}) == 12
    assert [(t.group, t.turns[0].action, t.reward) for t in texts] == [
        (g, w, r) for g in (0, 1) for w, r in zip(hints[:2], (1, 0), strict=True)
    ]
    r = Batch.of(found.trajectories).rollouts
    credit = tw.credit.compute("strata", r)
    writes = r.column("turn.writes") == 1
    assert (credit[~writes] == 0).all() and (np.sign(credit[writes]) == [1, -1, 1, -1]).all()
    assert found.counts["strategies"] == 4 and found.counts["trajectories"] == 8 and found.counts["success"] == 0.5


def test_turns_are_flagged_by_the_answer_of_the_policy_or_by_a_function_of_the_user(tmp_path: Path) -> None:
    def flags(**options: Any) -> list[float]:
        services = talking([])

        def say(texts: Sequence[str], seed: int) -> list[Turn]:
            if not any("Steps of the attempt" in text for text in texts):
                return services["say"](texts, seed)  # type: ignore[no-any-return]
            assert all("1. a" in text and "2. b" in text and "Strategy: " in text for text in texts)
            return [Turn("", response=text) for text in ["steps 2 and 7", "none"] * (len(texts) // 2)]

        slots = TaskSlots(numbered(5), 0, 2, **services | {"say": say})
        play: Callable[[Start], Trajectory] = lambda start: attempt(start, 0.0, actions=("a", "b"))  # noqa: E731
        found, _ = gathers(make("strata", strategies=1, factor=1, **options), slots, 1, play)
        return [turn.notes["flagged"] for t in found.trajectories for turn in t.turns]

    assert flags() == [0, 1, 0, 0, 0]
    (tmp_path / "judge.py").write_text("def first(strategy, turns) -> list[int]:\n    return [0] if strategy else []\n")
    assert flags(judge=f"{tmp_path / 'judge.py'}:first") == [1, 0, 1, 0, 0]
    assert flags(judge="none") == [0] * 5


def test_a_strategy_without_tokens_is_not_learned_from_and_an_embedding_is_checked(tmp_path: Path) -> None:
    def silent(texts: Sequence[str], seed: int) -> list[Turn]:
        return [Turn(text) for text in texts]

    slots = TaskSlots(numbered(5), 0, 2, **(talking([]) | {"say": silent}))
    found, [starts] = gathers(make("strata", strategies=2, factor=1, judge="none"), slots, 1, attempt)
    assert len(found.trajectories) == 2 and all(start.hint == "" for start in starts)
    (tmp_path / "mine.py").write_text("def flat(texts):\n    return [len(text) for text in texts]\n")
    with pytest.raises(TurnwiseError, match="one vector of numbers per text"):
        gathers(make("strata", embed=f"{tmp_path / 'mine.py'}:flat"), slots, 1, attempt)


def test_strata_learns_from_strategies_and_from_actions(tmp_path: Path) -> None:
    own = {**OTHER_GAME, **LONG, "method.name": "strata", "env.name": BANDIT, "method.strategies": 2, "method.factor": 2, "iterations": 1}
    whole = train(tmp_path / "whole", **own)
    batch = stored_batch(Run.open(whole.folder), 1)
    writes = batch.column("turn.writes") == 1
    assert writes.sum() == 4 == whole.metrics[1]["collect/strategies"] and whole.metrics[1]["collect/trajectories"] == 8
    credit = batch.column("turn.advantage")
    np.testing.assert_allclose(credit, expected(batch.rollouts, 0.5, 0.1, "turns"), atol=1e-6, rtol=1e-6)
    assert credit[~writes].any() and batch.rollouts.tokens is not None and (batch.rollouts.tokens[writes] > 0).all()
    assert whole.metrics[1]["learner/ratio"] == pytest.approx(1, abs=1e-3)  # the tokens of strategies are those that were sampled


# -- HiMAC ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
def test_blueprints_and_then_attempts_with_the_best_of_them_are_compared(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked: list[str] = []
    slots, plan = TaskSlots(numbered(7), 0, 4, **talking(asked)), make("himac")
    returns = {number: float(rng.integers(0, 3)) for number in range(64)}
    if seed == 3:
        returns = dict.fromkeys(returns, 1.0)
    play: Callable[[Start], Trajectory] = lambda start: attempt(start, returns[start.number], actions=("a", "b"))  # noqa: E731

    first, [macro] = gathers(plan, slots, 2, play)
    assert len(asked) == 8 and {start.temperature for start in macro} == {0.0} and slots.used == 2
    assert all(len(t.turns) == 1 and t.turns[0].action in WORDS for t in first.trajectories)  # nothing else is learned from
    by_task = [[returns[start.number] for start in macro[k : k + 4]] for k in (0, 4)]
    credit = tw.credit.compute("grpo", Batch.of(first.trajectories).rollouts)
    np.testing.assert_allclose(credit, [a for own in by_task for a in himac.macro(own)], atol=1e-6, rtol=1e-6)

    restored = make("himac")
    restored.load_state(json.loads(json.dumps(plan.state())))
    second, [micro] = gathers(restored, slots, 2, play)
    assert len(asked) == 8 and all(start.temperature is None for start in micro)
    for k, own in zip((0, 4), by_task, strict=True):
        chosen = macro[k + himac.best(own)]
        same = {(start.hint, start.task.id, start.env_seed) for start in micro[k : k + 4]}
        assert same == {(chosen.hint, chosen.task.id, chosen.env_seed)}
    by_task = [[returns[start.number] for start in micro[k : k + 4]] for k in (0, 4)]
    found = tw.credit.compute("grpo", Batch.of(second.trajectories).rollouts)
    np.testing.assert_allclose(found, np.repeat([a for own in by_task for a in himac.micro(own)], 2), atol=1e-6, rtol=1e-6)

    _, [again] = gathers(restored, slots, 2, play)
    assert len(asked) == 16 and [s.task for s in again[::4]] == [s.task for s in slots.starts(2, 2)[::4]]  # the run's next tasks


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1. find it\n2. take it\n\n3) go home", ("find it", "take it", "go home")),
        ("- find it;  take it", ("find it", "take it")),
        ("1. find cup 2 2. take cup 2.", ("find cup 2", "take cup 2.")),
        ("only this", ("only this",)),
        (" \n; ", ()),
    ],
)
def test_subgoals_are_the_lines_or_the_numbers_of_a_blueprint(text: str, parts: tuple[str, ...]) -> None:
    assert parts_of(text) == parts


def test_a_subgoal_is_shown_until_it_is_called_done_or_its_budget_is_spent() -> None:
    hint = OneByOne(SHOW_ONE, ("find it", "take it", "go home"), budget=2)
    assert hint("seen") == "Your subgoal now (1 of 3): find it. Say <sub_done> with the action that reaches it."
    seen = []
    for response in ("a", "b", "<sub_done><action>c</action>", "d", "e <sub_done>"):
        hint.on_response(response)
        seen.append(hint("seen").split(": ")[1].split(".")[0])
    assert seen == ["find it", "take it", "go home", "go home", "go home"]  # two actions, then done, then nothing is left


def test_himac_shows_the_active_subgoal_alone_if_it_has_a_budget() -> None:
    asked: list[str] = []
    slots, plan = TaskSlots(numbered(7), 0, 4, **talking(asked)), make("himac", budget=3)
    _, [macro] = gathers(plan, slots, 1, lambda start: attempt(start, float(start.number)))
    assert all(isinstance(start.hint, OneByOne) and start.hint.budget == 3 for start in macro)
    again = make("himac", budget=3)
    again.load_state(json.loads(json.dumps(plan.state())))
    _, [micro] = gathers(again, slots, 1, attempt)
    assert all(start.hint == macro[-1].hint for start in micro)  # the best one, from its first subgoal


def test_himac_learns_blueprints_and_actions_in_turn_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    own = {**OTHER_GAME, **LONG, "method.name": "himac", "env.name": BANDIT}
    whole = train(tmp_path / "whole", **own)
    one, two = (stored_batch(Run.open(whole.folder), n) for n in (1, 2))
    assert {len(t.turns) for t in one.trajectories} == {1} and len(one.trajectories) == 8
    assert all("Write a plan" in t.turns[0].observation for t in one.trajectories)
    assert {len(t.turns) for t in two.trajectories} == {2} and [t.task for t in one.trajectories] == [t.task for t in two.trajectories]
    assert [line["collect/blueprints"] for line in whole.metrics[1:]] == [8, 0] and whole.metrics[1]["collect/length"] == 2
    resumes_alike(tmp_path / "stopped", whole, 2, **own)
