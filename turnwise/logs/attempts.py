"""From the messages of an attempt to its turns, and from what a log says about its outcome to won or lost.

A turn is one response of the agent: all that it said and called before it saw something new. Its observation is what it saw since the
response before; its result is the observation of the next turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.logs.messages import LONGEST_ERROR, Call, Message, number_of
from turnwise.util.errors import TurnwiseError

LONGEST_OBSERVATION = 20_000  # characters that a turn keeps of what the agent saw
LONGEST_RESULT = 2_000
LONGEST_TASK = 200
# What logs call the outcome of an attempt; the first that is there counts.
OUTCOMES = ("success", "solved", "resolved", "passed", "correct", "is_correct", "won", "completed", "outcome", "reward", "score", "return")
WORDS = {
    **dict.fromkeys(("true", "yes", "success", "succeeded", "pass", "passed", "correct", "solved", "resolved", "won", "win"), 1.0),
    **dict.fromkeys(("false", "no", "failure", "failed", "fail", "incorrect", "wrong", "unsolved", "unresolved", "lost", "error"), 0.0),
}


@dataclass(slots=True)
class Attempt:
    """One attempt as a log has it. `task` is the log's own name of the task, None if it has none; `outcomes` is what it says about how the
    attempt ended, by name; `fields` is where `--task` and `--outcome` look for other names."""

    id: str
    messages: list[Message]
    task: str | None = None
    outcomes: dict[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    stop: str = ""
    first_messages: list[int] = field(default_factory=list)  # of each turn: the index of its first message, once it has turns


def look_up(fields: Any, key: str) -> Any:
    """The value of a name, or of a path of names with dots between them."""
    if isinstance(fields, dict):
        if key in fields:
            return fields[key]
        for end in (place for place, letter in enumerate(key) if letter == "."):
            if key[:end] in fields:
                return look_up(fields[key[:end]], key[end + 1 :])
    return None


def score_of(value: Any) -> float | None:
    """An outcome as a number: true is 1, a word that means success is 1; None if it is missing or says nothing."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("score", "value", "avg", "reward") if value.get(key) is not None), None)
    if isinstance(value, str):
        word = value.strip().lower()
        if word in WORDS:
            return WORDS[word]
        try:
            value = float(word)
        except ValueError:
            return None
    return number_of(value)


def outcome_of(attempt: Attempt, key: str | None) -> float | None:
    """How an attempt ended: by the name that the user gave, else by the usual names, else by the only one there is."""
    if key is not None:
        told = attempt.outcomes.get(key)
        return score_of(look_up(attempt.fields, key) if told is None else told)
    scores = {name: score for name, value in attempt.outcomes.items() if (score := score_of(value)) is not None}
    lower = {name.lower(): score for name, score in scores.items()}
    named = [lower[name] for name in OUTCOMES if name in lower]
    if not named and len(scores) > 1:
        raise TurnwiseError(f"attempt {attempt.id!r} has several scores: {', '.join(sorted(scores)[:20])}. Say which one: --outcome NAME")
    return next(iter((*named, *scores.values())), None)


def trajectory_of(attempt: Attempt, score: float, won_at: float) -> Trajectory:
    """The turns of an attempt. Its score is the reward of the last turn, unless the log has rewards of single turns. Tasks and states have
    no names yet."""
    trajectory = Trajectory("", attempt.id, success=score >= won_at, stop_detail=attempt.stop)
    turn: Turn | None = None
    seen: list[Message] = []
    for number, message in enumerate(attempt.messages):
        if message.role in ("user", "tool"):
            seen.append(message)
        elif message.role == "assistant" and not message.given:
            if turn is None or seen:
                _see(turn, seen)
                observation = "\n".join(each.text for each in seen)[:LONGEST_OBSERVATION] if len(seen) != 1 else seen[0].text
                turn = Turn(message.anchor, observation=observation[:LONGEST_OBSERVATION])
                trajectory.turns.append(turn)
                attempt.first_messages.append(number)
                seen = []
            _respond(turn, message)
        elif message.role == "assistant":
            seen = []  # an example in the prompt: what came before is not what the agent acted on
    _see(turn, seen)
    if turn is not None and not any(each.reward for each in trajectory.turns):
        turn.reward = score
    first = next((message.text for message in attempt.messages if message.role == "user" and message.text), "")
    trajectory.task = attempt.task or ""
    trajectory.goal = first[:LONGEST_OBSERVATION]
    return trajectory


def _respond(turn: Turn, message: Message) -> None:
    """Add a message to the response of a turn: what was said, and what was called."""
    calls = [*calls_of(turn), *message.calls] if turn.response else message.calls
    if calls:
        called = "\n".join([str(call) for call in calls])
        turn.action = called
        name = calls[0].name if len(calls) == 1 else " + ".join(dict.fromkeys(call.name for call in calls))
        arguments = calls[0].arguments if len(calls) == 1 else {"calls": [[call.name, call.arguments] for call in calls]}
        said = called if len(calls) == len(message.calls) else "\n".join([str(call) for call in message.calls])
        response = f"{message.text}\n{said}" if message.text and said else message.text or said
    else:
        turn.action, name, arguments, response = message.text.strip(), None, {}, message.text
    turn.response = f"{turn.response}\n{response}" if turn.response else response
    turn.action = turn.action if message.action is None else message.action
    turn.reward += message.reward
    turn.valid = turn.valid and message.error is None
    turn.info = {"tool": name, "arguments": arguments, "error": message.error, "result": "", "time": message.time}


def calls_of(turn: Turn) -> list[Call]:
    """The calls of a turn."""
    name, arguments = turn.info.get("tool"), turn.info.get("arguments") or {}
    if name is None:
        return []
    several = arguments.get("calls") if len(arguments) == 1 else None
    if isinstance(several, list) and all(isinstance(call, list) and len(call) == 2 for call in several):
        return [Call(call[0], call[1]) for call in several]
    return [Call(name, arguments)]


def _see(turn: Turn | None, seen: Sequence[Message]) -> None:
    """Note what came back from a turn's action."""
    if turn is not None and seen:
        text = "\n".join(message.text for message in seen) if len(seen) > 1 else seen[0].text
        errors = [message.error for message in seen if message.error]
        result = text if len(text) <= LONGEST_RESULT else text[:LONGEST_RESULT]
        turn.info |= {"result": result, "error": turn.info["error"] or ("; ".join(errors)[:LONGEST_ERROR] or None)}  # type: ignore
