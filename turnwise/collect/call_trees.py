"""From the recorded calls of an attempt to trajectories: one per line of conversation, every call in exactly one of them.

A call is a turn. Sub-agents, summaries and parallel calls start lines of their own. All lines of an attempt share its group, its task and
its outcome; `turn.info["call"]` says where each call stands in the attempt's tree. A reward that the program gives during the attempt
belongs to the turn that it was given for. The reward at the end belongs to the last turn of every line, because every line has contributed
to it (or, by choice, only to the last call): a line is then compared with those of other attempts that ended better or worse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from turnwise.agent.parse import split_thought
from turnwise.collect.rewards import Rewards
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.engines.serve.calls import Call, Recorder
from turnwise.envs.base import Observation, Transition

SIDE = 1 << 40  # ids of lines beside the first one: no attempt has such a number
Anchor = str | Callable[[dict[str, Any]], Any]


def plain(call: Call) -> dict[str, Any]:
    """A call as a reward function or an anchor function sees it."""
    return {
        "number": call.number,
        "parent": call.parent,
        "messages": call.messages,
        "tools": call.tools,
        "message": call.message,
        "text": call.text,
        "reward": call.reward,
        "notes": list(call.notes),
        "anchor": call.anchor,
        "stop_reason": call.stop_reason,
        "problem": call.problem,
    }


def text_of(content: Any) -> str:
    """The content of a message as text; of parts that are not text, what they are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = [part if isinstance(part, Mapping) else {"text": str(part)} for part in content]
    return "\n".join(str(part["text"]) if "text" in part else f"[{part.get('type', '?')}]" for part in parts)


def said(message: Mapping[str, Any]) -> str:
    """A message of the assistant as one text: what it says, and its calls of tools without their ids."""
    calls = [one.get("function") or {} for one in message.get("tool_calls") or () if isinstance(one, Mapping)]
    lines = [text_of(message.get("content")), *(f"{one.get('name', '')}({one.get('arguments', '')})" for one in calls)]
    return "\n".join(line for line in lines if line)


def news(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages since the last turn of the assistant; all of them if it has not said anything."""
    places = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    return list(messages[places[-1] + 1 :] if places else messages)


def observation_of(call: Call) -> str:
    """What the model sees that is new."""
    return "\n\n".join(text_of(message.get("content")) for message in news(call.messages)).strip()


def anchor_of(call: Call, rule: Anchor) -> Any:
    """The state that a call starts from. The program's own word counts wherever it has given one. Ids of tool calls never count: they
    differ between attempts."""
    if call.anchor is not None:
        return call.anchor
    if callable(rule):
        return rule(plain(call))
    if rule == "conversation":
        whole = [[message.get("role"), said(message)] for message in call.messages]
        return blake2b(json.dumps(whole).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return f"{call.id or call.number}" if rule == "own" else observation_of(call)


def turn_of(call: Call, rule: Anchor) -> Turn:
    """A call as a turn. The tokens are those that were sampled."""
    place: dict[str, Any] = {"number": call.number, "parent": call.parent, "tools": len(call.tools)}
    info: dict[str, Any] = {"call": place}
    if call.notes:
        info["notes"] = list(call.notes)
    if call.problem:
        info["problem"] = call.problem
    return Turn(
        anchor_of(call, rule),
        reward=call.reward,
        valid=not call.problem,
        observation=observation_of(call),
        thought=split_thought(call.text)[0],
        action=said(call.message),
        response=call.text,
        prompt_ids=call.prompt_ids,
        response_ids=call.response_ids,
        logprobs=call.logprobs,
        info=info,
        version=call.version,
        reports=call.reports,
    )


def trajectories_of(
    recorder: Recorder,
    start: Start,
    anchor: Anchor,
    rewards: Rewards,
    *,
    reward: float = 0.0,
    per_call: Mapping[int, float] | None = None,
    success: bool = False,
    measures: Mapping[str, float] | None = None,
    stop: Stop = Stop.DONE,
    detail: str = "",
    whole: bool = False,
    outcome: str = "each",
    goal: str = "",
) -> list[Trajectory]:
    """The trajectories of an attempt, the first conversation first. At least one: an attempt without a call has one without turns.
    Further lines are numbered from `SIDE` on. `whole`: all calls as one line in the order of arrival, for what counts attempts, and for
    programs that write every prompt anew."""
    lines = [recorder.finished()] if whole else recorder.chains()
    last = max((call.number for line in lines for call in line), default=-1)
    found: list[Trajectory] = []
    for place, line in enumerate(lines or [[]]):
        own = start.number if place == 0 else SIDE + place - 1
        trajectory = Trajectory(start.group, own, start.task.id, [], stop, detail, success, start.env_seed, goal=goal)
        for number, call in enumerate(line):
            ends = number == len(line) - 1
            given = call.reward + (per_call or {}).get(call.number, 0.0) + (recorder.early_reward if place == number == 0 else 0.0)
            given += reward if ends and (outcome == "each" or call.number == last) else 0.0
            after = "" if ends else observation_of(line[number + 1])
            info = {"measures": dict(measures)} if ends and measures else {}
            turn = turn_of(call, anchor)
            turn.info = {**turn.info, "branch": [place, len(lines)], "attempt": start.number}
            _add(trajectory, turn, Transition(Observation(after), given, ends, success and ends, info), rewards)
        trajectory.final_anchor = None
        found.append(trajectory)
    return found


def _add(trajectory: Trajectory, turn: Turn, transition: Transition, rewards: Rewards) -> None:
    turn.reward, parts = rewards(turn, transition, trajectory)
    more = {"rewards": parts, "env": dict(transition.info)}
    turn.info = {**turn.info, **{name: value for name, value in more.items() if value}}
    trajectory.turns.append(turn)
