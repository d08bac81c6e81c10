"""Agents without a model: the expert, a simple rule, and plausible actions for a random agent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise_envs.tau2.phone import ASKS, ask_for
from turnwise_envs.tau2.scoring import Gold, matches, side_of
from turnwise_envs.tau2.users import CHECKS
from turnwise_envs.tau2.worlds import TRANSFER, World, reads_only

WHO = {
    "airline": "Hello, how can I help you? Please tell me your user id and, if there is one, your reservation number.",
    "retail": "Hello, how can I help you? Please tell me your email, or your name and zip code.",
    "telecom": "Hello, how can I help you? Please tell me your name and phone number.",
}
CLOSE = "Is there anything else I can help you with?"
HOLD = "You are being transferred to a human agent. Please hold on."
AGREE = "Do you confirm that I should go ahead (yes/no)?"
WALK = (  # the technical manual in one order, for all problems
    "Please turn off airplane mode.",
    "Please reseat your SIM card.",
    "Please turn on mobile data.",
    "Please turn on data roaming.",
    "Please turn off the data saver mode.",
    "Please set the network mode to 4g 5g preferred.",
    "Please disconnect the VPN.",
    "Please reset the APN settings.",
    "Please reboot your phone.",
    "Please turn off Wi-Fi calling.",
    "Please grant the messaging app the storage permission.",
    "Please grant the messaging app the sms permission.",
)
SEEN = {  # what an argument of this name looks like in a text
    "user_id": r"\b[a-z]+_[a-z]+_\d{4}\b",
    "reservation_id": r"\b(?=[A-Z0-9]*\d)[A-Z0-9]{6}\b",
    "flight_number": r"\bHAT\d{3}\b",
    "date": r"\b2024-05-\d\d\b",
    "email": r"\b[\w.]+@[\w.]+\w\b",
    "order_id": r"#W\d{7}",
    "product_id": r"\b\d{10}\b",
    "phone_number": r"\b\d{3}-\d{3}-\d{4}\b",
    "customer_id": r"\bC\d{4}\b",
    "line_id": r"\bL\d{4}\b",
    "bill_id": r"\bB\d{4,}\b",
    "id": r"\b[CLDBP]\d{4}\b",
}
MOST_SEEN = 4  # values of one kind that are remembered


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as an agent writes it."""
    return json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)


def expert_action(gold: Gold, world: World, messages: int) -> str | None:
    """The next action of an agent that knows the gold actions; None if the databases have left their path."""
    done = progress(gold, world)
    if gold.states and world.state() != gold.states[done]:
        return None
    if messages == 0:
        return WHO[world.domain.name]
    if world.domain.name == "telecom" and not any(one.side == "assistant" for one in world.calls):
        return call("get_customer_by_phone", {"phone_number": _phone(world.record)})
    if done == len(gold.actions):
        return _end(gold, world)
    action = gold.actions[done]
    if side_of(action) == "user":
        return ask_for(action["name"], action["arguments"])
    if messages == 1 and not reads_only(action["name"]) and world.domain.name != "telecom":
        return f"I can do this: {action['name'].replace('_', ' ')}, {_listed(action['arguments'])}. {AGREE}"
    return call(action["name"], action["arguments"])


def progress(gold: Gold, world: World) -> int:
    """How many of the gold actions were played, in their order."""
    done = 0
    for one in world.calls:
        if done < len(gold.actions) and matches(gold.actions[done], one):
            done += 1
    return done


def rule_action(world: World, messages: int, observation: str) -> str:
    """What a simple rule does that sees no more than an agent: it asks who the user is, goes through telecom's manual from front to back,
    and hands over to a human."""
    if messages == 0:
        return WHO[world.domain.name]
    steps = (*WALK, *(ASKS[tool] for tool in dict.fromkeys(CHECKS.values()))) if world.domain.name == "telecom" else ()
    if phone := bool(steps) and not world.calls and re.search(SEEN["phone_number"], observation):
        return call("get_customer_by_phone", {"phone_number": phone[0]})
    if messages <= len(steps):
        return steps[messages - 1]
    return HOLD if world.transferred else call(TRANSFER, {"summary": "The user needs help."})


def look(text: str, seen: dict[str, list[str]]) -> None:
    """Remember what a text has that could be an argument: the last few of each kind."""
    for name, pattern in SEEN.items():
        for value in dict.fromkeys(re.findall(pattern, text)):
            known = seen.setdefault(name, [])
            if value not in known:
                known.append(value)
                del known[:-MOST_SEEN]


def plausible(world: World, seen: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Some actions that make sense in form: messages, and calls whose arguments were seen."""
    found = [WHO[world.domain.name], AGREE, CLOSE, HOLD]
    found += [text for text in ASKS.values() if "{" not in text] if world.domain.user_tools else []
    for name, (tool, _) in world.domain.tools.items():
        wanted = list(tool.parameters["required"])
        if name == TRANSFER:
            found.append(call(name, {"summary": "The user needs help."}))
        elif all(seen.get(argument) for argument in wanted):
            for place in range(max((len(seen[argument]) for argument in wanted), default=1)):
                found.append(call(name, {argument: seen[argument][place % len(seen[argument])] for argument in wanted}))
    return tuple(dict.fromkeys(found))


def _end(gold: Gold, world: World) -> str:
    told = f"This is what you asked for: {'; '.join(gold.tell)}. " if gold.tell else ""
    if world.transferred:
        return f"{told}{HOLD}"
    if world.domain.name == "telecom":
        names = [str(one["func_name"]) for one in gold.assertions]
        return ASKS[next((CHECKS[name] for name in names if name in CHECKS), "check_status_bar")]
    return f"{told}{CLOSE}"


def _phone(record: Mapping[str, Any]) -> str:
    steps = (record.get("initial_state") or {}).get("initialization_actions") or ()
    return next((str(one["arguments"]["phone_number"]) for one in steps if one["func_name"] == "set_user_info"), "")


def _listed(arguments: Mapping[str, Any]) -> str:
    words = (f"{name.replace('_', ' ')} {json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return ", ".join(words).replace('"', "")
