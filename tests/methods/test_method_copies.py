"""DPEPO: one policy for several copies of a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from method_cases import trained

import turnwise as tw
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.runs.reading import stored_batch


def acting(acts: list[dict[int, str]], group: int = 0, number: int = 0, success: bool = False) -> Trajectory:
    """An attempt with these actions by copy, turn by turn."""
    turns = [Turn("s", info={"env": {"acts": {str(copy): act for copy, act in turn.items()}}} if turn else {}) for turn in acts]
    return Trajectory(group, number, turns=turns, success=success)


def test_copies_of_a_task_are_played_at_once_and_one_success_is_enough() -> None:
    env = tw.make("numberline", highest=5, parallel=3)
    task = tw.Task("t", data={"start": 1, "target": 3})
    seen = env.reset(task)
    assert seen.text.count("Current: 1") == 3 and "Copy 3:" in seen.text and "1: ACTION; 2: ACTION" in seen.text
    turn = env.step("1: +; copy 3: -")  # the second copy waits
    assert [f"Current: {place}" in turn.observation.text for place in (2, 1, 0)] == [True] * 3
    assert (turn.reward, turn.done, turn.info["acts"]) == (0.0, False, {"1": "+", "3": "-"})
    assert env.step("nothing that names a copy").info["acts"] == {}
    turn = env.step("<env_1> + </env_1> <env_2> + </env_2> <env_9> + </env_9>")
    assert turn.done and turn.success and turn.reward == 1.0 and set(turn.info["acts"]) == {"1", "2"}
    with pytest.raises(tw.TurnwiseError, match="reset"):
        env.step("1: +")


def test_copies_can_be_saved_and_restored_and_have_the_experts_of_one() -> None:
    env, other = (tw.make("numberline", highest=9, parallel=2) for _ in range(2))
    env.reset(tw.Task("t", data={"start": 1, "target": 8}))
    env.step("1: +")
    seen = env.step("2: -").observation
    restored = other.restore(env.snapshot())  # type: ignore[attr-defined]
    assert restored == seen and other.expert_action() == "1: +; 2: +"  # type: ignore[attr-defined]
    assert other.step("1: +; 2: +") == env.step("1: +; 2: +")


@pytest.mark.parametrize(
    ("option", "plain", "wrong", "words"),
    [
        ("parallel", 1, (0, True), "parallel is the number of copies"),
        ("subgoals", 0, (-1, True, "3"), "subgoals is the number of the expert's actions"),
        ("subtasks", 0, (-1, True), "subtasks is the largest number of actions"),
    ],
)
def test_what_methods_put_around_an_environment_is_left_out_on_request(option: str, plain: int, wrong: Any, words: str) -> None:
    assert type(tw.make("numberline", **{option: plain})) is type(tw.make("numberline"))
    for number in wrong:
        with pytest.raises(tw.TurnwiseError, match=words):
            tw.make("numberline", **{option: number})


@pytest.mark.parametrize(("option", "what"), [("parallel", "copies of a task"), ("subtasks", "subtasks")])
def test_pictures_are_refused_where_several_texts_are_shown(option: str, what: str) -> None:
    with pytest.raises(tw.TurnwiseError, match=f"{what} are shown as text"):
        tw.make("numberline", **{option: 2}, observe="image").reset(tw.Task("t", data={"start": 1, "target": 3}))


def test_a_run_with_dpepo_plays_copies_and_weighs_turns_by_what_they_repeat(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"method": {"name": "dpepo", "copies": 2}, "agent.max_prompt_tokens": 200, "model.tiny.max_length": 256}
    run = trained(tmp_path, "dpepo", **changes, **{"engine.max_tokens": 12, "sft.steps": 60, "collect.group_size": 4, "learner.lr": 1e-3})
    batch = stored_batch(run, 1)
    weight = batch.column("turn.diversity")
    texts = [turn.observation for trajectory in batch.trajectories for turn in trajectory.turns]
    assert all("Copy 2:" in text for text in texts) and ((weight > 0) & (weight <= 1)).all()
    acts = [turn.info.get("env", {}).get("acts", {}) for trajectory in batch.trajectories for turn in trajectory.turns]
    assert any(len(act) == 2 for act in acts) and all(weight[k] == 0.5 for k, act in enumerate(acts) if not act)
    assert len(set(weight.round(6).tolist())) > 2
