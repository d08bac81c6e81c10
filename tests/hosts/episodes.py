"""Random attempts as verifiers' own episodes, recorded turn by turn as its interception server does it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf
from batches import Attempt
from verifiers.v1.graph import prepare_turn
from verifiers.v1.types import TurnTokens


def new_trace(attempt: Attempt, **changes: Any) -> Any:
    """A trace without turns; what a test names in `trace.info` is there."""
    task = {"type": "Walk", "data": {"idx": 0}, "key": attempt.group}
    info = {
        "states": [turn.anchor for turn in attempt.turns],
        "turn_rewards": [turn.reward for turn in attempt.turns],
        "valid": [turn.valid for turn in attempt.turns],
        "values": [turn.value for turn in attempt.turns],
        "token_values": [turn.token_values for turn in attempt.turns],
    }
    rewards = {"goal": vf.Reward(score=attempt.outcome)}
    agent = {"config": {}}
    return vf.WireTrace(**({"task": task, "agent": agent, "info": info, "rewards": rewards, "ok": True} | changes))


def say(trace: Any, messages: list[Any], prompt: list[int], new: list[int], response: list[int]) -> int:
    """One model call: the last message's tokens are `new`; returns the node of the response."""
    spans = [None] * (len(messages) - 1) + [(len(prompt), len(prompt) + len(new))]
    tokens = TurnTokens(prompt_ids=prompt + new, completion_ids=response, completion_logprobs=[-0.5] * len(response), message_spans=spans)
    reply = vf.Response(id="", created=0, model="", message=vf.AssistantMessage(content="ok"), finish_reason="stop", tokens=tokens)
    return prepare_turn(trace, messages).commit(reply)


def episode_of(attempt: Attempt, **changes: Any) -> Any:
    """An episode with one trace, whose observations are the names of the states."""
    trace = new_trace(attempt, **changes)
    messages: list[Any] = []
    prompt: list[int] = []
    for turn in attempt.turns:
        messages.append(vf.UserMessage(content=turn.anchor))
        say(trace, list(messages), prompt, turn.prompt, turn.response)
        messages.append(vf.AssistantMessage(content="ok"))
        prompt = prompt + turn.prompt + turn.response
    return vf.WireEpisode(task=trace.task, group=vf.GroupInfo(id=attempt.group), traces=[trace], ok=True)


def episodes_of(attempts: Iterable[Attempt]) -> list[Any]:
    return [episode_of(attempt) for attempt in attempts]
