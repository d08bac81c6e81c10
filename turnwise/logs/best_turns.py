"""From logs to data that a model can learn from: pairs of a better and a worse response in the same state, and the turns of won attempts.

A pair needs evidence: of the attempts at a task that came to a state, those that did one thing won more often than those that did another,
and the 95 % interval of the difference (Newcombe's, from Wilson's) lies above 0; two that won against two that lost are enough. Each
attempt counts once per state, by its first visit. Attempts choose for themselves, so a difference need not be the effect of the choice.
The written context of a pair is that of the worse response: what the agent must learn is what to do there.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.credit.diagnose import explain
from turnwise.credit.segments import last_turns
from turnwise.data.rollouts import Floats, Rollouts, Trajectory
from turnwise.logs.attempts import Attempt
from turnwise.logs.columns import Turns, turns_of
from turnwise.logs.messages import Message
from turnwise.util.files import write_text_atomically
from turnwise.util.statistics import wilson

MOST_PAIRS = 4  # of one worse choice: more contexts of the same mistake teach little


@dataclass
class _Choice:
    """What some attempts did in a state: their turns, as attempt and number, and how many of them won."""

    turns: list[tuple[int, int]] = field(default_factory=list)
    won: list[tuple[int, int]] = field(default_factory=list)


def write_best_turns(folder: str | Path, trajectories: Sequence[Trajectory], attempts: Sequence[Attempt]) -> tuple[int, int]:
    """Write `pairs.jsonl` (prompt, chosen, rejected: TRL's DPO trainer) and `examples.jsonl` (prompt, completion: its SFT trainer) into a
    folder. Returns how many each file has."""
    columns = turns_of(trajectories)
    row_of = {id(trajectory): row for row, trajectory in enumerate(trajectories)}
    won = {row_of[id(trajectory)]: bool(win) for trajectory, win in zip(columns.trajectories, columns.won, strict=True)}
    pairs = [_pair(attempts, better, worse) for better, worse in _pairs(trajectories, won)]
    step = step_credit(columns)
    turns = [(row_of[id(columns.trajectories[i])], int(t)) for i, t in zip(columns.attempt, columns.t, strict=True)]
    best = [place for place, credit in zip(turns, step, strict=True) if won[place[0]] and credit >= 0]
    examples = [{"prompt": _context(attempts[i], t), "completion": _response(attempts[i], t)} for i, t in best]
    counts = []
    for name, rows in (("pairs.jsonl", pairs), ("examples.jsonl", examples)):
        write_text_atomically(Path(folder) / name, "".join(json.dumps(row) + "\n" for row in rows))
        counts.append(len(rows))
    return counts[0], counts[1]


def step_credit(turns: Turns) -> Floats:
    """The step part of GiGPO's credit of each turn. Where rewards are all alike, winning is the reward of the last turn."""
    reward = np.array([turn.reward for trajectory in turns.trajectories for turn in trajectory.turns], np.float64)
    columns: dict[str, Any] = {"group": turns.task[turns.attempt], "trajectory": turns.attempt, "t": turns.t, "anchor": turns.state}
    rollouts = Rollouts.from_columns(**columns, reward=reward)
    if np.ptp(np.bincount(turns.attempt, reward)) <= 1e-12:
        rollouts = Rollouts.from_columns(**columns, reward=np.where(last_turns(rollouts), turns.won[turns.attempt], 0.0))
    return explain(rollouts)["step"]


def _pairs(trajectories: Sequence[Trajectory], won: dict[int, bool]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Turns to prefer, with turns in the same state that they are preferred to."""
    states: dict[Any, dict[str, _Choice]] = defaultdict(lambda: defaultdict(_Choice))
    for i in won:
        visited = set()
        for t, turn in enumerate(trajectories[i].turns):
            if turn.anchor not in visited:
                visited.add(turn.anchor)
                choice = states[trajectories[i].group, turn.anchor][turn.action]
                choice.turns.append((i, t))
                if won[i]:
                    choice.won.append((i, t))
    for choices in states.values():
        if len(choices) < 2:
            continue
        better = max(choices.values(), key=lambda choice: wilson(len(choice.won), len(choice.turns))[0])
        for worse in choices.values():
            if worse is not better and surely_better(len(better.won), len(better.turns), len(worse.won), len(worse.turns)):
                lost = [place for place in worse.turns if not won[place[0]]][:MOST_PAIRS]
                yield from ((better.won[n % len(better.won)], place) for n, place in enumerate(lost))


def surely_better(won: int, n: int, other_won: int, other_n: int) -> bool:
    """Whether the 95 % interval of the difference of two shares lies above 0."""
    share, other = won / n, other_won / other_n
    return share - other > math.hypot(share - wilson(won, n)[0], wilson(other_won, other_n)[1] - other)


def _pair(attempts: Sequence[Attempt], better: tuple[int, int], worse: tuple[int, int]) -> dict[str, Any]:
    return {
        "prompt": _context(attempts[worse[0]], worse[1]),
        "chosen": _response(attempts[better[0]], better[1]),
        "rejected": _response(attempts[worse[0]], worse[1]),
    }


def _context(attempt: Attempt, t: int) -> list[dict[str, Any]]:
    return [_chat(message) for message in attempt.messages[: attempt.first_messages[t]]]


def _response(attempt: Attempt, t: int) -> list[dict[str, Any]]:
    """The response of a turn: its messages up to the next that is not the agent's, as one."""
    said = []
    for message in attempt.messages[attempt.first_messages[t] :]:
        if message.role != "assistant":
            break
        said.append(message)
    text = "\n".join(message.text for message in said if message.text)
    return [_chat(Message("assistant", text, tuple(call for message in said for call in message.calls)))]


def _chat(message: Message) -> dict[str, Any]:
    """A message as chat templates take it: the arguments of a call are an object."""
    chat: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.calls:
        chat["tool_calls"] = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in message.calls]
    return chat
