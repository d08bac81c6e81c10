"""The parts of the package inspect-evals that τ² needs, without the 500 MB that the package depends on.

The tools of τ² use four names of inspect-ai: an exception, a base class, a decorator and a store. Small stand-ins for them are enough, so
the package is installed without its dependencies, into a private folder. The stand-ins are visible to other code only while the modules
are imported: afterwards `sys.modules` is as before, and a real inspect-ai in the same process is not affected.

`store_as` of the stand-ins returns the databases of the attempt that calls a tool (`using`), so the package's own tool functions work on
any number of attempts in one process.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from turnwise.util.errors import TurnwiseError

REMEDY = "turnwise envs --install tau2"
PACKAGE, TAU2 = "inspect_evals", "inspect_evals.tau2"
MODULES = {
    "airline": ("airline.tools", "airline.AirlineAgentTools"),
    "retail": ("retail.tools", "retail.RetailAgentTools"),
    "telecom": (
        "telecom.tools",
        "telecom.TelecomAgentTools",
        "telecom.user_tools",
        "telecom.TelecomUserTools",
        "telecom.environment",
        "utils",
    ),
}
_lock = threading.Lock()
_current = threading.local()


class ToolError(Exception):
    """What a tool of the package raises to tell the agent that a call failed."""


def folder() -> Path | None:
    """The folder of the package, if it is installed."""
    try:
        found = find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        if (Path(place) / "tau2" / "data").is_dir():
            return Path(place)
    return None


def data() -> Path:
    """The folder of τ²'s data."""
    found = folder()
    if found is None:
        raise TurnwiseError(f"environment 'tau2' needs the package inspect-evals. Install it with: {REMEDY}")
    return found / "tau2" / "data"


@cache
def modules(domain: str) -> Mapping[str, ModuleType]:
    """The package's modules of one domain, by their last name."""
    root = data().parent
    with _lock, _stand_ins(root):
        try:
            found = {name.rpartition(".")[2]: importlib.import_module(f"{TAU2}.{name}") for name in MODULES[domain]}
        except Exception as error:
            raise TurnwiseError(
                f"environment 'tau2': inspect-evals {_version()} cannot be used ({type(error).__name__}: {error}). "
                f"Tested with 0.26.0: {REMEDY}"
            ) from error
    if domain == "telecom":  # its ids of new bills are random; here they follow from the number of bills
        found["TelecomAgentTools"].__dict__["uuid"] = SimpleNamespace(uuid4=_next_id)
    return found


@contextmanager
def using(store: Mapping[str, Any]) -> Iterator[None]:
    """While this lasts, the package's tools work on these databases (by the name of their class)."""
    before = getattr(_current, "store", None)
    _current.store = store
    try:
        yield
    finally:
        _current.store = before


def _store_as(kind: type, instance: str | None = None) -> Any:
    return _current.store[kind.__name__]


def _next_id() -> Any:
    count = len(_current.store["TelecomAgentTools"].db.bills)
    return SimpleNamespace(hex=blake2b(f"bill {count}".encode(), digest_size=16).hexdigest())


def _version() -> str:
    try:
        return version("inspect-evals")
    except PackageNotFoundError:
        return "of unknown version"


@contextmanager
def _stand_ins(root: Path) -> Iterator[None]:
    """`sys.modules` with stand-ins for inspect-ai and for the packages' own `__init__`, which would import everything."""
    from pydantic import BaseModel, ConfigDict

    class StoreModel(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        instance: str | None = None

    made = {
        "inspect_ai": _module("inspect_ai", []),
        "inspect_ai.tool": _module("inspect_ai.tool", None, ToolError=ToolError, Tool=object, tool=lambda factory: factory),
        "inspect_ai.util": _module("inspect_ai.util", None, StoreModel=StoreModel, store_as=_store_as),
        "inspect_ai.model": _module("inspect_ai.model", None, Content=object, ContentText=object),
        "toml": _module("toml"),  # the two read files, which we read ourselves
        "yaml": _module("yaml"),
        PACKAGE: _module(PACKAGE, [str(root.parent)]),
        TAU2: _module(TAU2, [str(root)]),
    }
    hidden = {name: module for name, module in sys.modules.items() if _is_theirs(name)}
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _is_theirs(name)]:
            del sys.modules[name]
        sys.modules.update(hidden)


def _is_theirs(name: str) -> bool:
    return name.partition(".")[0] in ("inspect_ai", PACKAGE, "toml", "yaml")


def _module(name: str, path: list[str] | None = None, **content: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(content)
    if path is not None:
        made.__dict__["__path__"] = path
    return made
