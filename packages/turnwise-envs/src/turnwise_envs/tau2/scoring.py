"""Scores as τ² computes them: every part that a task's reward basis names has to be right.

DB             the databases end as they do when the gold actions are played
COMMUNICATE    each piece of information is in a message of the agent
ENV_ASSERTION  assertions about line and phone hold
ACTION         the gold actions are among the calls
NL_ASSERTION   a model judges the conversation: left out. No task of the three domains has it in its basis.

An attempt that the user did not end is worth nothing. `idle` is the score of an agent that hands over to a human at once and does nothing
else: what a score has to be compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from turnwise.util.errors import TurnwiseError
from turnwise_envs.tau2.worlds import TRANSFER, Domain, Done, World, domain_of

DEFAULT_BASIS = ("DB", "COMMUNICATE")
KNOWN = ("DB", "COMMUNICATE", "ENV_ASSERTION", "ACTION")


class Gold(NamedTuple):
    """What a task wants. `states`: the databases after 0, 1, 2 … gold actions; only if they are part of the score."""

    actions: tuple[Mapping[str, Any], ...]
    basis: tuple[str, ...]
    states: tuple[dict[str, Any], ...]
    tell: tuple[str, ...]
    assertions: tuple[Mapping[str, Any], ...]
    idle: bool


@lru_cache(maxsize=4096)
def gold_of(domain: str, key: str) -> Gold:
    """What a task wants, worked out once per process."""
    own = domain_of(domain)
    criteria = own.record(key)["evaluation_criteria"]
    basis = tuple(criteria.get("reward_basis") or DEFAULT_BASIS)
    if unknown := [part for part in basis if part not in KNOWN]:
        raise TurnwiseError(f"tau2: task {key!r} of {domain} is scored by {unknown[0]}, which needs a judge. Leave it out")
    actions = tuple(criteria.get("actions") or ())
    tell = tuple(str(info) for info in criteria.get("communicate_info") or ())
    found = Gold(actions, basis, _states(own, key, actions, basis), tell, tuple(criteria.get("env_assertions") or ()), False)
    world = World(own, own.record(key))
    world.call("assistant", TRANSFER, {"summary": "The user needs help."})
    return found._replace(idle=all(score(found, world, ()).values()))


def score(gold: Gold, world: World, told: Iterable[str]) -> dict[str, bool]:
    """Whether each part of the basis is right. `told`: the information that the agent has given."""
    heard = set(told)
    parts = {
        "DB": lambda: world.state() == gold.states[-1],
        "COMMUNICATE": lambda: heard >= set(gold.tell),
        "ENV_ASSERTION": lambda: resolved(gold, world),
        "ACTION": lambda: all(any(matches(action, done) for done in world.calls) for action in gold.actions),
    }
    return {part: bool(parts[part]()) for part in gold.basis}


def resolved(gold: Gold, world: World) -> bool:
    """Whether all assertions about line and phone hold."""
    return all(world.ask(one["env_type"], one["func_name"], one["arguments"]) is one.get("assert_value", True) for one in gold.assertions)


def told_in(message: str, gold: Gold) -> list[str]:
    """The wanted information that a message to the user has; as in τ², commas and case do not count."""
    text = message.lower().replace(",", "")
    return [info for info in gold.tell if info.lower() in text]


def side_of(action: Mapping[str, Any]) -> str:
    """Who has to perform a gold action."""
    return str(action.get("requestor") or "assistant")


def matches(action: Mapping[str, Any], done: Done) -> bool:
    """Whether a call is this gold action: the order of lists does not count, nor does the text of a transfer."""
    if done.name != action["name"] or done.side != side_of(action):
        return False
    if action["name"] == TRANSFER:
        return True
    if action.get("compare_args") is not None:
        names = action["compare_args"]
        return all(same(action["arguments"].get(name), done.arguments.get(name)) for name in names)
    return same(action["arguments"], done.arguments)


def same(left: Any, right: Any) -> bool:
    """Equal, except for the order of lists."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        rest = list(right)
        for one in left:
            found = next((place for place, other in enumerate(rest) if same(one, other)), None)
            if found is None:
                return False
            del rest[found]
        return not rest
    return bool(left == right)


def _states(domain: Domain, key: str, actions: Sequence[Mapping[str, Any]], basis: Sequence[str]) -> tuple[dict[str, Any], ...]:
    if "DB" not in basis:
        return ()
    world = World(domain, domain.record(key))
    found = [world.state()]
    for action in actions:
        world.call("assistant", action["name"], action["arguments"])
        found.append(world.state())
    return tuple(found)
