"""Methods as files of one's own (`examples/methods/`): each is short, its recipe is read, and a small run shows what it does."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from method_cases import BANDIT, OTHER_GAME, RECIPE, SMALL, attempt, batch_of, gathers, ids, last_checkpoint, line_of
from safetensors.torch import load_file as load_tensors
from small_runs import UNTAUGHT, Killed, Kills
from train_cases import ended_alike
from transformers import AutoModelForCausalLM

import turnwise as tw
from turnwise import Task, TurnwiseError
from turnwise.config.loading import load_file
from turnwise.data.batch import Batch
from turnwise.data.tasks import TaskSet
from turnwise.envs.cards.numberline import NumberLineEnv
from turnwise.learn import Learner, LearnerSettings, checkpoint, pack
from turnwise.methods.planning import TaskSlots
from turnwise.recipe.schema import Config
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

METHODS = ROOT / "examples" / "methods"


def start(name: str, out: Path, **changes: Any) -> Run:
    """A run by the recipe of an example after a short warm start."""
    return Run.open(tw.train(METHODS / f"{name}.toml", out=str(out), quiet=True, **{**SMALL, **changes}).folder)


def train(name: str, out: Path, **changes: Any) -> Any:
    """The same with a model that babbles."""
    return tw.train(METHODS / f"{name}.toml", **{**UNTAUGHT, "out": str(out), "quiet": True, **changes})


@pytest.mark.parametrize("path", sorted(METHODS.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_fits_on_two_screens_and_its_recipe_is_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 120
    assert Config.load(path.with_suffix(".toml")).name == path.stem.replace("_", "-")


# -- credit by entropy ------------------------------------------------------------------------------------------------------------


def test_tokens_of_one_turn_get_credit_by_the_entropies_that_the_engine_reported(tmp_path: Path) -> None:
    batch = stored_batch(start("entropy_credit", tmp_path, **{"credit.strength": 1.0, "credit.most": 1e9}), 1)
    entropy, advantage = batch.column("token.entropy"), batch.column("token.advantage")
    of_turns = tw.credit.compute("grpo", batch.rollouts)
    assert np.ptp(entropy) > 0.01 and np.ptp(of_turns) > 0.01
    expected = np.repeat(of_turns, batch.rollouts.tokens) * entropy / entropy.mean()
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-6)
    assert batch.column("token.entropy_scale").mean() == pytest.approx(1, rel=1e-4)
    rollouts = batch.rollouts.in_order()
    equal = load_file(METHODS / "entropy_credit.py").entropy_credit(rollouts, strength=0.0)["token.advantage"]
    np.testing.assert_allclose(equal, np.repeat(tw.credit.compute("grpo", rollouts), rollouts.tokens))


# -- a reward for information -----------------------------------------------------------------------------------------------------


def test_what_a_turn_finds_out_is_added_to_its_reward(tmp_path: Path) -> None:
    batch = stored_batch(start("gold_gain", tmp_path, **{"signal.0.weight": 0.5}), 1)
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
            return {"input_ids": ids(text)}

        def logprobs(self, prompts: Any, continuations: Any) -> list[np.ndarray]:
            return [np.full(len(c), -0.5 if c[0] in p else -2.5) for p, c in zip(prompts, continuations, strict=True)]

    turns = [tw.Turn("a", prompt_ids=ids(text), response_ids=[1]) for text in ("all", "a: -", "a: - b: 7")]
    batch = Batch.of([tw.Trajectory(0, 0, "b7", turns)], [tw.Task("b7", data={"answer": "7"})])
    found = load_file(METHODS / "gold_gain.py").gold_gain(batch, SimpleNamespace(policy=Knowing()), weight=1.0)
    assert found["turn.gain"].tolist() == [0.0, 2.0, 0.0] and found["turn.reward"].tolist() == [0.0, 2.0, 0.0]


# -- branching --------------------------------------------------------------------------------------------------------------------


def test_branches_start_where_entropy_is_high_and_shared_turns_are_learned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restored = []
    restore = NumberLineEnv.restore
    monkeypatch.setattr(NumberLineEnv, "restore", lambda env, state: restored.append(state) or restore(env, state))
    run = start("entropy_branching", tmp_path, iterations=1, **{"plan.branches": 2, "collect.group_size": 3})
    batch = stored_batch(run, 1)
    parent, branch_t = batch.column("trajectory.parent"), batch.column("trajectory.branch_t")
    line = line_of(run)
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
    whole = train("curriculum", tmp_path / "whole", iterations=3)
    with pytest.raises(Killed):
        train("curriculum", tmp_path / "killed", iterations=3, reporter=Kills(2))
    [folder] = (tmp_path / "killed").iterdir()
    killed = tw.train(resume=folder, quiet=True)
    assert ended_alike(killed, whole) and whole.metrics[-1]["collect/difficulty"] >= 0


def test_a_curriculum_draws_by_its_state() -> None:
    made = load_file(METHODS / "curriculum.py").Curriculum
    slots = TaskSlots(tw.tasks("numberline", highest=5), 0, 2)
    distance = {task.id: str(abs(task.data["target"] - task.data["start"])) for task in slots.tasks}

    def drawn(success: dict[str, float]) -> set[str]:
        plan = made(floor=0.0)
        plan.load_state({"success": success})
        assert plan.state() == {"success": success}
        starts = next(plan.gather(slots, 20))
        return {distance[start.task.id] for start in starts}

    solved = dict.fromkeys(distance.values(), 1.0)
    assert drawn(solved | {"2": 0.5}) == {"2"}
    assert drawn(solved | {"3": 0.5, "4": 0.4}) == {"3", "4"}


# -- distillation -----------------------------------------------------------------------------------------------------------------


def test_a_policy_moves_towards_its_teacher_and_the_teacher_stays(tmp_path: Path) -> None:
    result = train("distillation", tmp_path, iterations=1, **{"objective.strength": 10.0, "learner.lr": 1e-3})
    batch = stored_batch(Run.open(result.folder), 1, tokens=True)
    gap = batch.column("token.teacher_logprob") - batch.column("token.logprob")
    assert np.abs(gap).max() > 0.01 and "learner/teacher_gap" in result.metrics[-1]

    student = Learner(AutoModelForCausalLM.from_pretrained(result.folder / "model"), LearnerSettings())
    packed = pack(batch.trajectories, batch.rollouts)
    now = np.zeros(len(gap))
    now[packed.index] = student.logprobs(packed)
    assert ((gap - gap.mean()) * (now - batch.column("token.logprob"))).sum() > 0  # what the teacher prefers has become more likely

    found = last_checkpoint(result.folder)
    assert not found.state["models"]["teacher"]["moved"] and not any(name.startswith(checkpoint.AUXILIARY) for name in found.tensors)
    policy = sum(tensor.numel() for tensor in load_tensors(result.folder / "model" / "model.safetensors").values())
    assert policy < 3 * 192 * 192 * 4  # fewer weights than the attention of its teacher alone


# -- backwards --------------------------------------------------------------------------------------------------------------------


def test_earlier_turns_are_weighed_by_how_likely_the_later_ones_have_become() -> None:
    Backwards = load_file(METHODS / "backwards.py").Backwards
    batch = batch_of((1, 2), (2, 1)).with_columns({"turn.advantage": [1.0, 2.0, -1.0, -2.0]})
    tokens = np.zeros(6, np.float32)
    steps = Backwards(bound=4.0)(SimpleNamespace(batch=batch, score=lambda: tokens.copy()))
    last = next(steps)
    assert last.rows.tolist() == [1, 3] and last.refresh == ("old_logprob",)
    assert last.columns["turn.advantage"].tolist() == [1.0, 2.0, -1.0, -2.0]
    tokens[:] = [9.0, 0.3, 0.2, 9.0, 9.0, -7.0]  # the step's effect: the first trajectory's last turn is likelier by e^0.5, the other's not
    first = steps.send({})
    assert first.rows.tolist() == [0, 2]
    assert first.columns["turn.advantage"][[0, 2]] == pytest.approx([math.exp(0.5), -1 / 4])
    with pytest.raises(StopIteration):
        steps.send({})


def test_a_run_updates_one_turn_after_another_from_the_last_to_the_first(tmp_path: Path) -> None:
    result = train("backwards", tmp_path, **{"learner.lr": 1e-2})
    assert [line["learner/steps"] for line in result.metrics[1:]] == [3, 3]
    assert result.metrics[-1]["learner/ratio"] == pytest.approx(1, abs=1e-4)  # old log-probs are those of just before each step
    assert (
        last_checkpoint(result.folder).state["learner"]["pieces"]["schedule"]["state"]["largest"] > 1.001
    )  # a step saw what the last one did


# -- process reward ---------------------------------------------------------------------------------------------------------------


def test_the_rewards_of_turns_add_up_to_the_log_ratio_of_the_trajectory() -> None:
    pieces = load_file(METHODS / "process_reward.py")
    batch = batch_of((1, 2), (3,))
    scores = {"prm": np.arange(6.0), "reference": np.full(6, 0.5)}

    class Stub(dict):  # type: ignore[type-arg]
        reference = SimpleNamespace(score=lambda batch: scores["reference"])

    models = Stub(prm=SimpleNamespace(score=lambda batch: scores["prm"]))
    found = pieces.process_reward(batch, models, beta=2.0)
    assert found["turn.process_reward"].tolist() == [-1.0, 4.0, 21.0] and (found["token.start_logprob"] == 0.5).all()

    rollouts = batch.with_columns(found).rollouts
    with_process, without = (pieces.outcome_and_process(rollouts, process_weight=weight) for weight in (1.0, 0.0))
    to_come = np.array([3.0, 4.0, 21.0])
    assert with_process - without == pytest.approx(to_come - to_come.mean())


def test_the_loss_of_the_process_reward_model_is_the_cross_entropy_of_the_log_ratio() -> None:
    kind = load_file(METHODS / "process_reward.py").ImplicitReward(beta=0.5)
    columns = {"token.start_logprob": torch.tensor([-1.0, -1.0, -1.0]), "trajectory.success": torch.tensor([1.0, 0.0])}

    class Said(dict):  # type: ignore[type-arg]
        logprob = torch.tensor([0.0, 1.0, 3.0])

        def sum(self, values: torch.Tensor, low: str, high: str) -> torch.Tensor:
            assert (low, high) == ("token", "trajectory")
            return torch.stack([values[:2].sum(), values[2]])

    loss, metrics = kind.loss(Said(columns))
    won, lost = 1 / (1 + math.exp(-1.5)), 1 / (1 + math.exp(-2.0))  # log-ratios 3 and 4, times β
    assert loss.item() == pytest.approx(-(math.log(won) + math.log(1 - lost)) / 2, rel=1e-5) and metrics["accuracy"] == 0.5


def test_a_process_reward_model_learns_beside_the_policy_and_its_rewards_become_credit(tmp_path: Path) -> None:
    result = train("process_reward", tmp_path, **OTHER_GAME, **{"env.name": BANDIT, "env.tasks": 4, "models.prm.epochs": 4})
    first, second = (stored_batch(Run.open(result.folder), n) for n in (1, 2))
    assert np.abs(first.column("turn.process_reward")).max() < 1e-4  # still a copy of the reference
    assert result.metrics[1]["model/prm/loss"] < math.log(2) - 1e-3  # chance in the first step, better in the other three
    assert np.abs(second.column("turn.process_reward")).max() > 1e-3
    outcome = tw.credit.compute("grpo", second.rollouts)
    assert np.abs(second.column("turn.advantage") - outcome).max() > 1e-4

    found = last_checkpoint(result.folder)
    assert {name.partition("/")[0] for name in found.tensors if name.startswith(checkpoint.AUXILIARY)} == {"model_prm", "model_reference"}
    assert found.state["models"]["prm"]["updates"] == 2


def test_a_run_is_refused_where_the_loss_of_a_model_lacks_a_column(tmp_path: Path) -> None:
    own = {"models.prm": {"copy_of": "policy", "trained": True, "kind": f"{METHODS}/process_reward.py:ImplicitReward"}}
    with pytest.raises(TurnwiseError, match=r"models\.prm\.kind=.* needs token\.start_logprob: .*\[\[signal\]\] \(process_reward\)"):
        tw.train(RECIPE, **{**UNTAUGHT, **own, "out": str(tmp_path), "quiet": True})


# -- past successes ---------------------------------------------------------------------------------------------------------------


def test_only_a_group_that_failed_as_a_whole_gets_a_past_success_and_a_restored_plan_goes_on_alike() -> None:
    PastSuccesses = load_file(METHODS / "past_successes.py").PastSuccesses

    def batch(plan: Any, slots: TaskSlots, *outcomes: tuple[bool, ...]) -> Any:
        won = iter(float(one) for group in outcomes for one in group)
        return gathers(plan, slots, len(outcomes), lambda start: attempt(start, next(won)))[0]

    plan, slots = PastSuccesses(per_task=1), TaskSlots(TaskSet([Task("only")]), 0, 2)
    nothing = batch(plan, slots, (False, False), (True, False), (False, True))
    assert nothing.counts == {"replaced": 0.0, "buffer": 1.0}  # successes of the same batch do not serve it
    restored = PastSuccesses(per_task=1)
    restored.load_state(plan.state())
    for own, used in ((plan, slots), (restored, TaskSlots(slots.tasks, 0, 2, used=slots.used))):
        found = batch(own, used, (False, False), (False, True), (False, False))
        assert [t.id for t in found.trajectories] == [6, -1, 8, 9, 10, -2]
        assert [t.group for t in found.trajectories] == [3, 3, 4, 4, 5, 5] and found.counts["replaced"] == 2
        past = found.trajectories[1]
        assert past.success and list(past.turns[0].response_ids) == [5] and past.reward == 1
