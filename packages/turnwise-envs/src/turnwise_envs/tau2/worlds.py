"""The databases of an attempt, and the tools that work on them.

Loading a database takes a second, so it is done once per process. An attempt gets an `Overlay`: it reads the shared entries and copies an
entry when it is first looked up, before a tool can change it. Two databases are equal, by the package's own hash, exactly if they differ
from the shared one in the same entries and in the same way: `state` has only these differences.
"""

from __future__ import annotations

import gzip
import inspect
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from turnwise.envs.blame import one_line
from turnwise.envs.tools.schemas import Tool, describe, fitted
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.tau2.package import ToolError, data, modules, using

DOMAINS = ("airline", "retail", "telecom")
TRANSFER = "transfer_to_human_agents"
READS = ("get_", "find_", "list_", "search_", "check_", "calculate", "can_", "run_speed_test", TRANSFER)
CLASSES = {"airline": "AirlineAgentTools", "retail": "RetailAgentTools", "telecom": "TelecomAgentTools"}
LISTS = {"airline": "all_airline_tools", "retail": "all_retail_tools", "telecom": "all_telecom_agent_tools"}
USER_CLASS, USER_LIST = "TelecomUserTools", "all_telecom_user_tools"

Side = Literal["assistant", "user"]


class Done(NamedTuple):
    """A call that was made: by whom, and what it returned. `failed`: the tool raised an error."""

    side: Side
    name: str
    arguments: dict[str, Any]
    result: str
    failed: bool


class Overlay(dict[str, Any]):
    """A table of shared entries, of which those that were looked up are copies."""

    def __init__(self, shared: Mapping[str, Any]):
        super().__init__(shared)
        self.shared = shared
        self.copied: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        found = super().__getitem__(key)
        if key in self.copied:
            return found
        own = found.model_copy(deep=True)
        self[key] = own
        return own

    def __setitem__(self, key: str, value: Any) -> None:
        self.copied.add(key)
        super().__setitem__(key, value)

    def changes(self, dumped: dict[str, str]) -> dict[str, str]:
        """The entries that differ from the shared ones, as JSON. `dumped` remembers those of the shared ones."""
        found = {}
        for key in sorted(self.copied):
            if key not in dumped:
                dumped[key] = as_json(self.shared[key]) if key in self.shared else ""
            if (now := as_json(super().__getitem__(key))) != dumped[key]:
                found[key] = now
        return found


class ToolFunction(NamedTuple):
    """A tool of the package: what a model is told about it, and the function."""

    tool: Tool
    function: Callable[..., Any]


class Domain:
    """One domain of τ²: its tasks, policy, tools and database."""

    def __init__(self, name: str):
        self.name = name
        self.modules = modules(name)
        self.folder = data() / "domains" / name
        self.records: dict[str, dict[str, Any]] = {str(record["id"]): record for record in self._records()}
        self.splits: dict[str, list[str]] = {split: list(map(str, ids)) for split, ids in self._json("split_tasks.json").items()}
        self.tools = _functions(self.modules["tools"].__dict__[LISTS[name]])
        self.user_tools = _functions(self.modules["user_tools"].__dict__[USER_LIST]) if name == "telecom" else {}
        self._shared: dict[str, Any] = self._load()
        self._dumped: dict[str, dict[str, str]] = {}

    def record(self, key: str) -> dict[str, Any]:
        """The task of the package with this id."""
        if key not in self.records:
            raise TurnwiseError(f"tau2: the domain {self.name} has no task {key!r}. Take tasks from tw.tasks('tau2')")
        return self.records[key]

    def policy(self) -> str:
        """What an agent of this domain has to follow."""
        if self.name != "telecom":
            return self._text("policy.txt")
        return f"{self._text('main_policy.txt')}\n\n{self.manual()}"

    def manual(self) -> str:
        """The technical part of the policy; only telecom has one."""
        return self._text("tech_support_manual.txt") if self.name == "telecom" else ""

    def guidelines(self) -> str:
        """What a model that plays the user is told."""
        kind = "simulation_guidelines_tools.txt" if self.user_tools else "simulation_guidelines.txt"
        return (data() / "user_simulator" / kind).read_text("utf-8").strip()

    def store(self) -> dict[str, Any]:
        """Fresh databases, by the name of the package's class that has them."""
        made: dict[str, Any] = {}
        for name, database in self._shared.items():
            if self.name == "telecom":
                own = database.model_copy(deep=True)
            else:
                tables = {field: Overlay(getattr(database, field)) for field in type(database).model_fields}
                own = type(database).model_construct(**tables)
            made[name] = self.modules[name].__dict__[name](initialized=True)
            made[name].db = own
        return made

    def state(self, store: Mapping[str, Any]) -> dict[str, Any]:
        """All that distinguishes these databases from the shared ones, as JSON values."""
        if self.name == "telecom":
            return {name: as_json(one.db) for name, one in store.items()}
        (database,) = (one.db for one in store.values())
        tables = {field: getattr(database, field) for field in type(database).model_fields}
        return {field: found for field, table in tables.items() if (found := table.changes(self._dumped.setdefault(field, {})))}

    def _load(self) -> dict[str, Any]:
        agent = CLASSES[self.name]
        found = {agent: "db.toml" if self.name == "telecom" else "db.json.gz"}
        found |= {USER_CLASS: "user_db.toml"} if self.name == "telecom" else {}
        kinds = {name: self.modules[name].__dict__[name].model_fields["db"].annotation for name in found}
        return {name: kinds[name].model_validate(self._json(file)) for name, file in found.items()}

    def _records(self) -> list[dict[str, Any]]:
        return list(self._json("tasks.json.gz" if self.name == "telecom" else "tasks.json"))

    def _json(self, name: str) -> Any:
        return _read(self.folder / name)

    def _text(self, name: str) -> str:
        return (self.folder / name).read_text("utf-8").strip()


class World:
    """The databases of one attempt. A call never raises: a mistake is a result that says what is wrong."""

    def __init__(self, domain: Domain, record: Mapping[str, Any]):
        self.domain, self.record = domain, record
        self.store = domain.store()
        self.calls: list[Done] = []
        with using(self.store):
            for step in (record.get("initial_state") or {}).get("initialization_actions") or ():
                getattr(self._side(step["env_type"]), step["func_name"])(**step["arguments"])
                self.sync()

    def call(self, side: Side, name: str, arguments: Mapping[str, Any]) -> Done:
        """What a tool of the agent, or of the user, says."""
        if not _finite(arguments):  # they are written into snapshots
            arguments, (result, failed) = {}, ("Error: numbers are finite, and values are nested at most 20 deep.", True)
        else:
            result, failed = self._called(side, name, arguments)
        done = Done(side, name, dict(arguments), result.encode("utf-8", "replace").decode(), failed)
        self.calls.append(done)
        return done

    def ask(self, side: str, name: str, arguments: Mapping[str, Any]) -> Any:
        """A method that is not a tool: an assertion, or a look at the device."""
        with using(self.store):
            self.sync()
            try:
                return getattr(self._side(side), name)(**arguments)
            except ToolError:
                return None

    def state(self) -> dict[str, Any]:
        """All that tools have changed, as JSON values."""
        return self.domain.state(self.store)

    def sync(self) -> None:
        """What one side changed reaches the other: telecom's line and the user's phone."""
        if self.domain.name == "telecom":
            self.domain.modules["environment"].__dict__["get_environment"]()

    @property
    def transferred(self) -> bool:
        """Whether the agent has handed the user over to a human."""
        return any(done.name == TRANSFER and not done.failed for done in self.calls)

    def _called(self, side: Side, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        tools = self.domain.tools if side == "assistant" else self.domain.user_tools
        if name not in tools:
            return f"Error: {unknown_name('tool', name[:100], list(tools))}", True
        tool, function = tools[name]
        if wrong := fitted(tool, arguments):
            return f"Error: {wrong}", True
        with using(self.store):
            try:
                return str(_finished(function(**_whole(tool, arguments)))), False
            except ToolError as error:
                return f"Error: {error}", True
            except Exception as error:  # malformed objects inside arguments
                return f"Error: {one_line(error)}", True
            finally:
                self.sync()

    def _side(self, side: str) -> Any:
        return self.store[USER_CLASS if side == "user" else CLASSES[self.domain.name]]


@cache
def domain_of(name: str) -> Domain:
    """A domain, loaded once per process."""
    if name not in DOMAINS:
        raise unknown_name("domain of tau2:", name, DOMAINS)
    return Domain(name)


def reads_only(name: str) -> bool:
    """Whether a tool cannot change a database."""
    return name.startswith(READS)


def as_json(value: Any) -> str:
    """A database entry as the package hashes it."""
    return json.dumps(value.model_dump(warnings=False), sort_keys=True, default=str)


def _functions(factories: Any) -> dict[str, ToolFunction]:
    made: dict[str, ToolFunction] = {}
    for factory in factories:
        function = factory()
        made[factory.__name__] = ToolFunction(describe(_plain(function), factory.__name__, hidden=""), function)
    return made


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the same signature in types that a schema can describe: objects and enumerations become what JSON has."""

    def plain(**given: Any) -> str:
        raise NotImplementedError

    hints = inspect.get_annotations(function, eval_str=True)
    plain.__annotations__ = {name: _as_plain(hint) for name, hint in hints.items()}
    plain.__dict__["__signature__"] = inspect.signature(function)
    text = inspect.getdoc(function) or ""
    plain.__doc__ = text.partition("\nReturns:")[0].partition("\nRaises:")[0]
    return plain


def _as_plain(hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        parts = [_as_plain(one) for one in inner]
        return reduce(or_, dict.fromkeys(parts))
    if origin is list:
        return list[_as_plain(inner[0])]  # type: ignore[misc]  # a type that is made here
    if origin is dict or (inspect.isclass(hint) and hasattr(hint, "model_fields")):
        return dict
    return str if inspect.isclass(hint) and issubclass(hint, Enum) else hint


def _finished(value: Any) -> Any:
    """The value of a function that is declared async and waits for nothing."""
    if not inspect.iscoroutine(value):
        return value
    try:
        value.send(None)
    except StopIteration as end:
        return end.value
    value.close()
    raise TurnwiseError("tau2: a tool of the package waits for something. Tested with inspect-evals 0.26")


def _finite(value: Any, depth: int = 20) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if not isinstance(value, Mapping | list):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return depth > 0 and all(_finite(one, depth - 1) for one in inner)


def _whole(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments; 3.0 where an integer is wanted is 3."""
    kinds = tool.parameters["properties"]
    return {
        name: int(value) if isinstance(value, float) and kinds.get(name, {}).get("type") == "integer" else value
        for name, value in arguments.items()
    }


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".toml":
            return tomllib.loads(path.read_text("utf-8"))
        return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    except (OSError, ValueError) as error:
        raise TurnwiseError(f"tau2: {path} cannot be read ({error}). Tested with inspect-evals 0.26") from None
