"""Methods as files of one's own, first half: credit by entropy, a reward for information, branching, a curriculum."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from safetensors.torch import load_file
from small_runs import WARMED, Killed, Kills

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.envs.cards.numberline import NumberLineEnv
from turnwise.methods import plans, signals
from turnwise.methods.planning import Places
from turnwise.recipe.reading import read_recipe
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

METHODS = ROOT / "examples" / "methods"
SMALL = WARMED | {"iterations": 2}


def start(name: str, out: Path, **changes: Any) -> Run:
    """A run by the recipe of an example, at the smallest size."""
    return Run.open(tw.train(METHODS / f"{name}.toml", out=str(out), quiet=True, **{**SMALL, **changes}).folder)


def piece(registry: Any, reference: str) -> Any:
    """A stage as a run finds it."""
    return registry.load(str(METHODS / reference)).function


@pytest.mark.parametrize("name", ["entropy_credit", "gold_gain", "entropy_branching", "curriculum"])
def test_an_example_is_short_and_its_recipe_is_read(name: str) -> None:
    assert len((METHODS / f"{name}.py").read_text().splitlines()) <= 120
    assert f"{name}.py:" in str(read_recipe(METHODS / f"{name}.toml"))


# -- credit by entropy ------------------------------------------------------------------------------------------------------------


def test_tokens_of_one_turn_get_credit_by_the_entropies_that_the_engine_reported(tmp_path: Path) -> None:
    run = start("entropy_credit", tmp_path, **{"credit.strength": 1.0, "credit.most": 1e9})
    for iteration in (1, 2):
        batch = stored_batch(run, iteration)
        entropy, advantage = batch.column("token.entropy"), batch.column("token.advantage")
        of_turns = tw.credit.compute("grpo", batch.rollouts)
        assert np.ptp(entropy) > 0.01 and np.ptp(of_turns) > 0.01
        expected = np.repeat(of_turns, batch.rollouts.tokens) * entropy / entropy.mean()
        np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-6)
        assert batch.column("token.entropy_scale").mean() == pytest.approx(1, rel=1e-4)
    rollouts = batch.rollouts.in_order()
    equal = piece(tw.credit.algorithms, "entropy_credit.py:entropy_credit")(rollouts, strength=0.0)["token.advantage"]
    np.testing.assert_allclose(equal, np.repeat(tw.credit.compute("grpo", rollouts), rollouts.tokens))


# -- a reward for information -----------------------------------------------------------------------------------------------------


def test_what_a_turn_finds_out_is_added_to_its_reward(tmp_path: Path) -> None:
    run = start("gold_gain", tmp_path, **{"signal.0.weight": 0.5})
    batch = stored_batch(run, 2)
    known, gain = batch.column("turn.gold_logprob"), batch.column("turn.gain")
    assert (known < 0).all() and np.abs(gain).max() > 0
    for k, trajectory in enumerate(batch.trajectories):
        rows = np.asarray(batch.rows(k))
        np.testing.assert_allclose(gain[rows], np.clip(np.append(np.diff(known[rows]), 0), -3, 3), atol=1e-5)
        own = np.array([turn.reward for turn in trajectory.turns])
        np.testing.assert_allclose(batch.column("turn.reward")[rows], own + 0.5 * gain[rows], atol=1e-5)


def test_the_gain_is_where_the_answer_was_found() -> None:
    """With a model that knows the answer exactly if it is in the prompt."""

    class Knowing:
        def tokenizer(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text]}

        def logprobs(self, prompts: Any, continuations: Any) -> list[np.ndarray]:
            return [np.full(len(c), -0.5 if c[0] in p else -2.5) for p, c in zip(prompts, continuations, strict=True)]

    turns = [tw.Turn("a", prompt_ids=[ord(letter) for letter in text], response_ids=[1]) for text in ("all", "a: -", "a: - b: 7")]
    batch = Batch.of([tw.Trajectory(0, 0, "b7", turns)], [tw.Task("b7", data={"answer": "7"})])
    found = piece(signals, "gold_gain.py:gold_gain")(batch, SimpleNamespace(policy=Knowing()), weight=1.0)
    assert found["turn.gain"].tolist() == [0.0, 2.0, 0.0] and found["turn.reward"].tolist() == [0.0, 2.0, 0.0]


def test_tasks_without_an_answer_are_refused_before_the_run_starts(tmp_path: Path) -> None:
    with pytest.raises(tw.TurnwiseError, match=r"needs task\.answer: the tasks of numberline have no such data"):
        start("gold_gain", tmp_path, **{"env.name": "numberline"})


# -- branching --------------------------------------------------------------------------------------------------------------------


def test_branches_start_where_entropy_is_high_and_shared_turns_are_learned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restored = []
    restore = NumberLineEnv.restore
    monkeypatch.setattr(NumberLineEnv, "restore", lambda env, state: restored.append(state) or restore(env, state))
    run = start("entropy_branching", tmp_path, iterations=1, **{"plan.branches": 2, "collect.group_size": 3})
    batch = stored_batch(run, 1)
    parent, branch_t = batch.column("trajectory.parent"), batch.column("trajectory.branch_t")
    [line] = [line for line in run.metrics() if line["iteration"] == 1]
    assert (parent >= 0).sum() == line["collect/branches"] == len(restored) > 0  # restored: no action is played again
    assert line["collect/lost_branches"] == 0

    numbers = batch.numbers.tolist()
    place = {number: k for k, number in enumerate(numbers)}
    mask, shared = batch.column("turn.mask"), 0
    chosen: dict[Any, list[float]] = {}
    for k, (number, trajectory) in enumerate(zip(numbers, batch.trajectories, strict=True)):
        own = [t >= branch_t[number] for t in range(len(trajectory.turns))]
        assert mask[list(batch.rows(k))].tolist() == own  # shared turns count in the parent only
        if parent[number] < 0:
            assert all(own)
            continue
        first, of = int(branch_t[number]), batch.trajectories[place[parent[number]]]
        assert first >= 1 and parent[numbers[place[parent[number]]]] < 0 and of.group == trajectory.group
        assert all(list(a.response_ids) == list(b.response_ids) for a, b in zip(trajectory.turns[:first], of.turns[:first], strict=True))
        shared += sum(len(turn.response_ids) for turn in trajectory.turns[:first])
        chosen.setdefault(of.group, []).append(_entropy(batch, place[parent[number]], first))
    assert line["learner/masked_tokens"] == shared > 0
    for group in {trajectory.group for trajectory in batch.trajectories}:
        roots = [k for k, trajectory in enumerate(batch.trajectories) if trajectory.parent is None and trajectory.group == group]
        every = sorted((_entropy(batch, k, t) for k in roots for t in range(1, len(batch.rows(k)))), reverse=True)
        np.testing.assert_allclose(sorted(chosen.get(group, []), reverse=True), every[:2], rtol=1e-4)


def _entropy(batch: Batch, k: int, t: int) -> float:
    """The mean entropy of a turn's tokens."""
    row = batch.rows(k)[t]
    return float(batch.column("token.entropy")[slice(*batch.rollouts.token_offsets[row : row + 2])].mean())


# -- a curriculum -----------------------------------------------------------------------------------------------------------------


def test_a_curriculum_goes_on_after_a_kill_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = start("curriculum", tmp_path / "whole", iterations=4)
    with pytest.raises(Killed):
        tw.train(METHODS / "curriculum.toml", out=str(tmp_path / "killed"), reporter=Kills(3), **{**SMALL, "iterations": 4})
    [folder] = (tmp_path / "killed").iterdir()
    killed = Run.open(tw.train(resume=folder, quiet=True).folder)

    lines = [[{key: value for key, value in line.items() if "time" not in key} for line in run.metrics()] for run in (whole, killed)]
    assert [line["iteration"] for line in lines[0]] == [0, 1, 2, 3, 4]
    assert [line.get("collect/difficulty") for line in lines[0]] == [line.get("collect/difficulty") for line in lines[1]]
    for n in (1, 2, 3, 4):
        one, other = (stored_batch(run, n).trajectories for run in (whole, killed))
        assert [t.task for t in one] == [t.task for t in other]
    one, other = (load_file(run.model / "model.safetensors") for run in (whole, killed))
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def test_a_curriculum_draws_by_its_state() -> None:
    made = piece(plans, "curriculum.py:Curriculum")
    places = Places(tw.tasks("numberline", highest=5), 0, 2)
    distance = {task.id: str(abs(task.data["target"] - task.data["start"])) for task in places.tasks}

    def drawn(success: dict[str, float]) -> set[str]:
        plan = made(floor=0.0)
        plan.load_state({"success": success})
        assert plan.state() == {"success": success}
        starts = next(plan.gather(places, 20))
        return {distance[start.task.id] for start in starts}

    solved = dict.fromkeys(distance.values(), 1.0)
    assert drawn(solved | {"2": 0.5}) == {"2"}
    assert drawn(solved | {"3": 0.5, "4": 0.4}) == {"3", "4"}
