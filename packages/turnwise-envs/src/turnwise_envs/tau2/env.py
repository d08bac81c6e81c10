"""τ²-bench as an environment: a customer-service agent with tools and a policy, and a simulated user."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.envs.tools.calls import FORM, HOW, Call, Final, Mistake, read_call
from turnwise.envs.tools.schemas import Tool
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.tau2.agents import call, expert_action, look, plausible, rule_action
from turnwise_envs.tau2.models import SCRIPTED, ModelUser, read_user
from turnwise_envs.tau2.package import data
from turnwise_envs.tau2.scoring import Gold, gold_of, matches, score, told_in
from turnwise_envs.tau2.users import Reply, ScriptedUser, User
from turnwise_envs.tau2.worlds import DOMAINS, Domain, World, domain_of

ALL = "all"
SPLITS = {"train": "train", "valid": "test"}  # ours and τ²'s
POLICIES, TOOLS, TELECOM = ("full", "short", "none"), ("schemas", "signatures", "none"), ("base", "full")
OWN_HOW = f"Call a tool as {FORM}, or write a message to the user as plain text."
MESSAGE = Tool(  # for models whose every response is a call; elsewhere a message is plain text
    "message_user",
    "Send a message to the user.",
    {"type": "object", "properties": {"message": {"type": "string", "description": "The message."}}, "required": ["message"]},
)
PERSONA = re.compile(r"\[PERSONA:.*\]$")
CUSTOMER = re.compile(r"\b[a-z]+_[a-z]+_\d{4}\b")
MAX_TURNS = 40


class Tau2Env:
    """Customer service with tools. An action is a call of a tool as JSON, or a message to the user as plain text.

    `domain`: airline, retail, telecom or all. `user`: "scripted", a server {url, model, …} whose model plays the user, or a function
    (messages, tools, seed) -> text. `policy`: how much of the domain's policy the first observation has; short: the first sentence of each
    rule, without telecom's manual. `show_tools`: schemas, signatures, or none if the chat template shows them (agent.prompt = "tool").
    `max_turns`: an attempt that the user has not ended by then is worth 0. `longest_result`: characters of a result that are shown.
    `must_act`: leave out tasks that an agent solves by handing over to a human at once. `telecom_tasks`: "base", or "full" with 2,245
    train tasks. `suggest`: list some plausible actions, for the random agent."""

    instructions = (
        "You are a customer service agent. Follow the policy. Each of your actions is either one call of a tool, written as JSON, or a "
        "message to the user, written as plain text. It cannot be both."
    )

    def __init__(
        self,
        domain: Literal["airline", "retail", "telecom", "all"] = "all",
        user: str | Mapping[str, Any] | Callable[..., Any] = SCRIPTED,
        policy: Literal["full", "short", "none"] = "full",
        show_tools: Literal["schemas", "signatures", "none"] = "schemas",
        max_turns: int = MAX_TURNS,
        longest_result: int = 8000,
        must_act: bool = False,
        telecom_tasks: Literal["base", "full"] = "base",
        suggest: bool = False,
    ):
        data()  # an error says what to install
        for what, value, known in (
            ("domain", domain, (*DOMAINS, ALL)),
            ("policy", policy, POLICIES),
            ("show_tools", show_tools, TOOLS),
            ("telecom_tasks", telecom_tasks, TELECOM),
        ):
            if value not in known:
                raise unknown_name(f"{what} of tau2:", str(value), known)
        if max_turns < 1 or longest_result < 1:
            raise TurnwiseError("tau2: max_turns and longest_result are at least 1")
        self.domains = DOMAINS if domain == ALL else (domain,)
        self.max_turns, self._longest, self._must_act, self._suggest = max_turns, longest_result, must_act, suggest
        self._speak, self._policy, self._show, self._telecom = read_user(user), policy, show_tools, telecom_tasks
        self._intros: dict[str, str] = {}
        self._task: Task | None = None
        self._over = "step() was called before reset(): call reset(task) first"

    @classmethod
    def offered_tools(cls, domain: str = ALL, **options: Any) -> list[dict[str, Any]]:
        """The schemas of a domain's tools, for an agent whose prompts show them in the model's own form."""
        if domain == ALL:
            raise TurnwiseError('tau2: agent.prompt = "tool" shows the tools of one domain: set env.options.domain')
        return [*(found.tool.schema for found in domain_of(domain).tools.values()), MESSAGE.schema]

    # -- tasks --------------------------------------------------------------------------------------------------------------------

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The tasks of a split, the domains in turn. `train` is τ²'s train, `valid` its test."""
        if split not in SPLITS:
            raise unknown_name("split of environment 'tau2':", split, SPLITS)
        lists = [[_task(name, key, split) for key in self._keys(name, split)] for name in self.domains]
        mixed = [task for place in range(max(map(len, lists))) for some in lists for task in some[place : place + 1]]
        return TaskSet(mixed if n is None else mixed[:n], f"tau2 {'+'.join(self.domains)} {split}")

    def _keys(self, name: str, split: str) -> list[str]:
        own = domain_of(name)
        keys = own.splits[SPLITS[split]]
        if name == "telecom" and self._telecom == "full" and split == "train":  # a problem of valid is in no train task, whoever has it
            held = {PERSONA.sub("", key) for key in own.splits[SPLITS["valid"]]}
            keys = [key for key in own.splits["full"] if PERSONA.sub("", key) not in held]
        return [key for key in keys if not (self._must_act and gold_of(name, key).idle)]

    # -- playing ------------------------------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._start(task, seed)
        return self._see(f"User: {self._user.open().text}")

    def _start(self, task: Task, seed: int) -> None:
        if not {"domain", "id"} <= set(task.data):
            raise TurnwiseError(f"task {task.id!r} is not a tau2 task: its data has no domain and id")
        self._domain: Domain = domain_of(str(task.data["domain"]))
        self._gold: Gold = gold_of(self._domain.name, str(task.data["id"]))
        self._world = World(self._domain, self._domain.record(str(task.data["id"])))
        self._user: User = ScriptedUser(self._world, self._gold) if self._speak is None else ModelUser(self._world, self._speak, seed)
        self._told: set[str] = set()
        self._seen: dict[str, list[str]] = {}
        self._unread: list[str] = []
        self._task, self._turn, self._messages, self._last, self._over = task, 0, 0, "", ""

    def step(self, action: str) -> Transition:
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        self._turn += 1
        asked = _said(read_call(action, plain_answers=True))
        reply = Reply("")
        if isinstance(asked, Mistake):
            text = asked.text.replace(HOW, OWN_HOW)
        elif isinstance(asked, Call):
            text = f"Result: {self._cut(self._world.call('assistant', asked.name, asked.arguments).result)}"
        else:
            self._messages += 1
            self._told.update(told_in(asked.text, self._gold))
            reply = self._user.answer(asked.text)
            text = f"User: {reply.text}"
        if reply.ends:
            return self._finish(text, reply.ends)
        if self._turn >= self.max_turns:
            return self._finish(text, "turn limit")
        return Transition(self._see(text))

    def _finish(self, text: str, ends: str) -> Transition:
        """The score, if the user ended the conversation; nothing at the turn limit."""
        parts = score(self._gold, self._world, self._told)
        success = ends != "turn limit" and all(parts.values())
        self._over = "the attempt is over: call reset(task) before the next step"
        state = all(right for part, right in parts.items() if part != "COMMUNICATE")
        measures = {"do_nothing": float(self._gold.idle), "state": float(state), "told": float(parts.get("COMMUNICATE", True))}
        return Transition(self._see(text), float(success), True, success, {"ends": ends, "parts": parts, "measures": measures})

    def _see(self, text: str) -> Observation:
        """An observation; the first one begins with the rules and the tools."""
        self._last = text
        self._unread.append(text)
        return self._shown()

    def _shown(self) -> Observation:
        text = self._last
        whole, anchor = f"{self._intro()}{text}" if self._turn == 0 else text, self._anchor(text)
        return Observation(whole, actions=self._plausible() if self._suggest else None, anchor=anchor)

    def _plausible(self) -> tuple[str, ...]:
        return tuple(self._written(action) for action in plausible(self._world, self._values()))

    def _values(self) -> dict[str, list[str]]:
        """What was seen so far that could be an argument. Texts are searched when somebody asks."""
        for text in self._unread:
            look(text, self._seen)
        self._unread.clear()
        return self._seen

    def _anchor(self, text: str) -> bytes:
        """The databases, what was said that matters for what follows, and the last text; no counters, no history."""
        assert self._task is not None
        calls, wanted = self._world.calls, self._gold.actions if "ACTION" in self._gold.basis else ()
        found = [place for place, one in enumerate(wanted) if any(matches(one, done) for done in calls)]
        kept = [self._task.id, self._world.state(), self._user.shown(), sorted(self._told), self._world.transferred, found, text]
        return blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).digest()

    def _cut(self, text: str) -> str:
        if len(text) <= self._longest:
            return text
        return f"{text[: self._longest]}\n[cut: the result has {len(text):,} characters, and the first {self._longest:,} are shown]"

    def _intro(self) -> str:
        name = self._domain.name
        if name not in self._intros:
            self._intros[name] = "".join(f"{part}\n\n" for part in (self._rules(), self._offers(), OWN_HOW) if part)
        return self._intros[name]

    def _rules(self) -> str:
        if self._policy == "none":
            return ""
        if self._policy == "full":
            return f"Policy:\n{self._domain.policy()}"
        rules = self._domain.policy().removesuffix(self._domain.manual()).strip()
        return "Policy:\n" + "\n".join(_first_sentence(line) for line in rules.splitlines() if line.strip())

    def _offers(self) -> str:
        if self._show == "none":
            return ""
        tools = [found.tool for found in self._domain.tools.values()]
        if self._show == "schemas":
            return "Tools:\n" + "\n".join(tool.as_text() for tool in tools)
        lines = (f"{tool.name}({', '.join(tool.parameters['properties'])}): {_first_sentence(tool.description)}" for tool in tools)
        return "Tools:\n" + "\n".join(lines)

    # -- agents without a model ---------------------------------------------------------------------------------------------------

    def expert_action(self) -> str | None:
        """The next gold action, or the message that the user needs for it; None if the databases have left the path of the gold actions."""
        if self._task is None or self._over:
            return None
        found = expert_action(self._gold, self._world, self._messages)
        return self._written(found) if found is not None else None

    def scripted_action(self) -> str:
        """The action of a simple rule that sees no more than an agent."""
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        return self._written(rule_action(self._world, self._messages, self._last))

    def random_action(self, number: int) -> str:
        """A plausible message or call; the same for the same number."""
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        found = self._plausible()
        return found[number % len(found)]

    def _written(self, action: str) -> str:
        """An action; if the chat template shows the tools, a message is a call as well."""
        return call(MESSAGE.name, {"message": action}) if self._show == "none" and not action.startswith("{") else action

    # -- states -------------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The calls so far, which `restore` makes again, and what was said."""
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        calls = [[done.side, done.name, done.arguments] for done in self._world.calls]
        state: dict[str, Any] = {"task": self._task.to_json(), "calls": calls, "user": self._user.kept(), "told": sorted(self._told)}
        state |= {"turn": self._turn, "messages": self._messages, "last": self._last, "seen": self._values()}
        return pack("tau2", state, self._options())

    def restore(self, state: bytes) -> Observation:
        kept = unpack(state, "tau2", self._options())
        with restoring("tau2"):
            self._start(Task.from_json(kept["task"]), 0)
            for side, name, arguments in kept["calls"]:
                self._world.call(side, name, arguments)
            self._user.restore(kept["user"])
            self._told, self._seen = set(kept["told"]), {name: list(values) for name, values in kept["seen"].items()}
            self._turn, self._messages, self._last = int(kept["turn"]), int(kept["messages"]), str(kept["last"])
            return self._shown()

    def _options(self) -> dict[str, Any]:
        return {"user": "scripted" if self._speak is None else "model", "max_turns": self.max_turns, "longest_result": self._longest}

    def close(self) -> None:
        self._task = None
        self._over = "the environment was closed: call reset(task) first"


def _task(domain: str, key: str, split: str) -> Task:
    """A task of the package. Variants of one problem, or of one customer's requests, are a cluster."""
    problem = PERSONA.sub("", key)
    if domain != "telecom" and (customer := CUSTOMER.search(json.dumps(domain_of(domain).record(key)))):
        problem = customer.group()
    return Task(f"{domain}-{key}", split, {"domain": domain, "id": key}, cluster=f"{domain}-{problem}")


def _said(asked: Call | Final | Mistake) -> Call | Final | Mistake:
    """A call that sends a message, as the message."""
    if not isinstance(asked, Call) or asked.name != MESSAGE.name:
        return asked
    text = asked.arguments.get("message")
    return Final(text) if isinstance(text, str) and text.strip() else Mistake(f"A message is a text. {HOW}")


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0]
