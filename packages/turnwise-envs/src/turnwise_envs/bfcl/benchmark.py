"""The tasks and functions of the package bfcl-eval: read from its data files, once per process.

A task is a list of requests of a user, the functions that solve them, and the calls that do. Each of the four categories has 200, made from
the same 200 scenarios. `long_context` makes results long, `miss_func` holds a function back for one request, and `miss_param` an argument.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

from turnwise.envs.tools.schemas import Tool
from turnwise.util.errors import TurnwiseError

PACKAGE = "bfcl_eval"
REMEDY = "turnwise envs --install bfcl"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
CLASSES: Mapping[str, str] = {  # and the name of its data file and module
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
STATELESS = ("MathAPI",)
VALID_SHARE = 4  # one scenario in four is held out
SCHEMA_TYPES = {"dict": "object", "float": "number"}
ABOUT = "Tool description: "


@dataclass(frozen=True)
class Function:
    """A function that a task may offer: its class, its description, and its parameters in their order."""

    owner: str
    tool: Tool
    order: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A task of the benchmark. `requests` are the user's texts, `gold` the calls that solve each of them as text, and `late` the
    functions that are shown only from a request on."""

    id: str
    category: str
    number: int
    requests: tuple[str, ...]
    gold: tuple[tuple[str, ...], ...]
    classes: tuple[str, ...]
    config: Mapping[str, Any]
    late: Mapping[int, tuple[str, ...]]

    @property
    def long_context(self) -> bool:
        return self.category == "long_context"


@cache
def _folder() -> Path:
    try:
        package = import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        raise TurnwiseError(f"environment 'bfcl' needs the package {PACKAGE}. Install it with: {REMEDY}") from None
    return Path(package.__path__[0])


def require() -> None:
    """An error in one line if the package is not installed."""
    _folder()


@cache
def checkers() -> tuple[Any, Any]:
    """The package's own checks of a state and of results: pure functions of two objects and of two lists."""
    module = import_module(f"{PACKAGE}.eval_checker.multi_turn_eval.multi_turn_checker")
    return module.state_checker, module.response_checker


@cache
def simulator(name: str) -> Any:
    """The class of the package that simulates an API."""
    return getattr(import_module(f"{PACKAGE}.eval_checker.multi_turn_eval.func_source_code.{CLASSES[name]}"), name)


@cache
def functions(name: str) -> Mapping[str, Function]:
    """The documented functions of a class. Nothing else of it can be called."""
    found = {}
    for row in _rows(_folder() / "data" / "multi_turn_func_doc" / f"{CLASSES[name]}.json"):
        about = row["description"].partition(ABOUT)
        tool = Tool(row["name"], " ".join((about[2] or about[0]).split()), _schema(row["parameters"]))
        taken = tuple(inspect.signature(getattr(simulator(name), tool.name)).parameters)[1:]
        found[tool.name] = Function(name, tool, taken)
    return found


def _schema(found: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """A parameter as JSON schema. The package writes some types in its own way, and some ids are integers or texts."""
    schema = dict(found)
    schema["type"] = SCHEMA_TYPES.get(schema["type"], schema["type"])
    if schema["type"] == "integer" and name.endswith("_id"):
        schema["type"] = ["integer", "string"]
    if "items" in schema:
        schema["items"] = _schema(schema["items"])
    if "properties" in schema:
        schema["properties"] = {key: _schema(value, key) for key, value in schema["properties"].items()}
    if isinstance(about := schema.get("description"), str):
        schema["description"] = about.strip()
    return schema


def _rows(path: Path) -> list[Any]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


@cache
def entries(category: str) -> tuple[Entry, ...]:
    """The tasks of a category, in the order of their numbers."""
    [name] = {path.name for path in (_folder() / "data").glob(f"BFCL_v*_multi_turn_{category}.json")}
    rows = _rows(_folder() / "data" / name)
    answers = {row["id"]: row["ground_truth"] for row in _rows(_folder() / "data" / "possible_answer" / name)}
    return tuple(_entry(category, number, row, answers[row["id"]]) for number, row in enumerate(rows))


def _entry(category: str, number: int, row: Mapping[str, Any], gold: Sequence[Sequence[str]]) -> Entry:
    requests = tuple("\n".join(said["content"] for said in turn) for turn in row["question"])
    late = {int(place): tuple(names) for place, names in row.get("missed_function", {}).items()}
    classes = tuple(row["involved_classes"])
    return Entry(f"{category}-{number}", category, number, requests, tuple(map(tuple, gold)), classes, row["initial_config"], late)


def entry(category: str, number: int) -> Entry:
    """One task."""
    found = entries(category) if category in CATEGORIES else ()
    if not 0 <= number < len(found):
        raise TurnwiseError(f"bfcl has no task {category}-{number}: categories are {', '.join(CATEGORIES)}, numbers 0 to 199")
    return found[number]


@cache
def scenarios() -> tuple[int, ...]:
    """The scenario of each number. Two numbers are one scenario if, in any category, a class starts in the same state or the user says
    the same sentence: what is learned from one of them could otherwise be used in the other."""
    leader = list(range(len(entries("base"))))
    first: dict[str, int] = {}

    def lead(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    for category in CATEGORIES:
        for found in entries(category):
            states = [json.dumps([name, state], sort_keys=True) for name, state in found.config.items() if state]
            for key in [*states, *filter(None, found.requests)]:
                one, two = sorted((lead(found.number), lead(first.setdefault(key, found.number))))
                leader[two] = one
    return tuple(map(lead, range(len(leader))))


@cache
def held_out(number: int) -> bool:
    """Whether a number belongs to `valid`: decided by its scenario, so it is the same for all categories."""
    scenario = scenarios()[number]
    return blake2b(f"bfcl scenario {scenario}".encode(), digest_size=8).digest()[0] % VALID_SHARE == 0
