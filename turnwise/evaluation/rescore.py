"""Old attempts under a new reward: the stored actions are played again in the environment as it is now.

The same task and the same seed give the same random numbers, so unless the environment has changed every observation is the stored one.
If one differs, the attempt records from which turn on: its new score then belongs to another game and is left out of the comparison. The
result is a new evaluation file next to the old one, which is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.collect.rewards import BadReward, Rewards, find_term
from turnwise.data.images import without_marks
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.envs.scripts import Play, Reset, play_all
from turnwise.envs.settings import Env
from turnwise.recipe.schema import Config
from turnwise.runs.folder import CONFIG, Run, write_texts
from turnwise.runs.reading import stored_trajectories
from turnwise.setup.environment import build_rewards, limits_of, panel_of
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically


def rescore(run_folder: str | Path, iteration: int | None = None, reward: str | None = None, *, trust: bool = False) -> dict[str, Any]:
    """Play the attempts of an evaluation (None: the last one) again. `reward` names a function `path/to/file.py:function` of (turn,
    transition, trajectory) that replaces the recipe's reward. Returns what was written."""
    run = Run.open(run_folder)
    with run.locked("rescore"):
        return _rescore(run, iteration, reward, trust)


def _rescore(run: Run, iteration: int | None, reward: str | None, trust: bool) -> dict[str, Any]:
    number = run.last_iteration("evals") if iteration is None else iteration
    before, attempts = run.evaluation(number), stored_trajectories(run, number, "evals")
    if not isinstance(before.get("split"), str):
        raise TurnwiseError(f"{run.folder}: the evaluation of iteration {number} does not say its split; its file was damaged or edited")
    config = Config.load(run.folder / CONFIG).trusted(trust, run.folder)
    tasks = find_tasks(config.trusted().env, before["split"], [attempt.task for attempt in attempts])
    rewards = build_rewards(config) if reward is None else only(reward)
    with limits_of(config.env).pool(config.env.name, len(attempts), config.env.options) as pool:
        played = list(play_all(pool, [play_again(tasks[attempt.task], attempt, rewards) for attempt in attempts]))
    again = [trajectory for trajectory, _ in played]
    record = _record(number, attempts, played) | {"reward_from": reward or "the environment", "split": before["split"]}
    name = free_name(run.folder / "evals", number)
    write_texts(run.folder / "evals" / f"{name}.jsonl.gz", again)
    path = write_text_atomically(run.folder / "evals" / f"{name}.json", json.dumps(record, allow_nan=False, default=float) + "\n")
    return record | {"path": str(path)}


def only(reference: str) -> Rewards:
    """A reward that is a single user function."""
    return Rewards(0.0, [find_term("reward", reference)])


def find_tasks(env: Env, split: str, wanted: Sequence[str]) -> dict[str, Task]:
    """The tasks of these ids in a split, as the environment has them now."""
    missing, tasks = set(wanted), {}
    for task in panel_of(env, split, None, 0):
        if task.id in missing:
            tasks[task.id] = task
            missing.discard(task.id)
            if not missing:
                return tasks
    raise TurnwiseError(
        f"{len(missing)} of {len(set(wanted))} stored tasks are not in split {split!r} of {env.name} any more "
        f"(the first: {sorted(missing)[0]!r}): the environment's tasks have changed, and these attempts cannot be played again"
    )


def play_again(task: Task, old: Trajectory, rewards: Rewards) -> Play[tuple[Trajectory, int | None]]:
    """The stored actions played again, and the turn (from 1) at which the environment showed something else or failed; None if it never
    did."""
    new = Trajectory(old.group, old.id, old.task, seed=old.seed, stop=old.stop, stop_detail=old.stop_detail, goal=old.goal)
    result = yield Reset(task, old.seed)
    if result.transition is None:
        return failed(new, result.message), 1
    observation, changed, done = result.observation, None, False
    for t, stored in enumerate(old.turns):
        if changed is None and (done or without_marks(observation.text) != without_marks(stored.observation)):
            changed = t + 1
        if done:
            break
        result = yield stored.action
        if (transition := result.transition) is None:
            return failed(new, result.message), changed or t + 1
        turn = Turn(observation.key, valid=stored.valid, observation=observation.text, thought=stored.thought, action=stored.action)
        turn.response, turn.info = stored.response, {"env": dict(transition.info)} if transition.info else {}
        try:
            turn.reward, parts = rewards(turn, transition, new)
        except BadReward as error:
            return failed(new, str(error)), changed or t + 1
        turn.info = {**turn.info, **({"rewards": parts} if parts else {})}
        new.turns.append(turn)
        observation, done = transition.observation, transition.done
        new.final_anchor, new.success = observation.key, bool(done and transition.success)
    if done:
        new.stop, new.stop_detail = Stop.DONE, ""
    elif old.stop is Stop.DONE:  # it used to end here: how it would have continued is unknown
        changed = changed or len(old.turns) + 1
        new.stop, new.stop_detail = Stop.CANCELLED, "played again, the game did not end here"
    return new, changed


def failed(new: Trajectory, why: str) -> Trajectory:
    """An attempt that cannot be played again to its end. It is reported and does not affect the others."""
    new.stop, new.stop_detail, new.success = Stop.ENVIRONMENT_FAULT, why, False
    return new


def _record(iteration: int, old: Sequence[Trajectory], played: Sequence[tuple[Trajectory, int | None]]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {
            "task": before.task,
            "matches": changed is None,
            "changed_at": changed,
            "success_before": before.success,
            "success": after.success,
            "reward_before": before.reward,
            "reward": after.reward,
            "turns": len(after.turns),
            "fault": after.stop_detail if after.stop is Stop.ENVIRONMENT_FAULT and changed is not None else "",
        }
        for before, (after, changed) in zip(old, played, strict=True)
    ]
    same = [row for row in rows if row["matches"]]

    def mean(name: str) -> float | None:
        return sum(float(row[name]) for row in same) / len(same) if same else None

    return {
        "iteration": iteration,
        "rescored": True,
        "attempts": len(rows),
        "matching": len(same),
        **{name: mean(name) for name in ("success_before", "success", "reward_before", "reward")},
        "outcomes": rows,
    }


def free_name(folder: Path, iteration: int) -> str:
    """A name that no rescoring of this evaluation has yet."""
    number = 1
    while (folder / f"{iteration:06d}.rescored-{number}.json").exists():
        number += 1
    return f"{iteration:06d}.rescored-{number}"


def rescored_lines(result: dict[str, Any]) -> list[str]:
    """The result of a rescoring as text."""
    lines = [f"Evaluation of iteration {result['iteration']}: {result['attempts']} attempts, rewarded by {result['reward_from']}."]
    if result["matching"]:
        lines += [
            f"success: {result['success_before']:.1%} before, {result['success']:.1%} now; "
            f"mean reward: {result['reward_before']:.3f} before, {result['reward']:.3f} now"
            + ("" if result["matching"] == result["attempts"] else f" (over the {result['matching']} attempts that match)")
        ]
    for row in result["outcomes"]:
        if row["fault"]:
            lines.append(f"  {row['task']}: it failed in turn {row['changed_at']}: {row['fault']}; the score does not count")
        elif not row["matches"]:
            lines.append(
                f"  {row['task']}: the environment shows something else from turn {row['changed_at']} on; the score does not count"
            )
        elif (row["success_before"], row["reward_before"]) != (row["success"], row["reward"]):
            solved = "" if row["success"] == row["success_before"] else f", {'solved' if row['success'] else 'not solved'} now"
            lines.append(f"  {row['task']}: reward {row['reward_before']:g} → {row['reward']:g}{solved}")
    return [*lines, f"written: {result['path']}"]
