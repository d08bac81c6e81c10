"""Find a class by text: `path/to/my_env.py:MyEnv` (a user's own file) or `package.module:Class`.

A file is loaded like a script: its folder is importable, so that it can import the files beside it. It is read again when it has
changed since, because a notebook that is edited and run again must not play yesterday's rules.
"""

from __future__ import annotations

import sys
from hashlib import blake2b
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from turnwise import objects
from turnwise.errors import TurnwiseError, unknown_name

_loaded: dict[str, tuple[tuple[int, int], ModuleType]] = {}


def is_reference(name: str) -> bool:
    """Whether a name points to code (`file.py`, `file.py:Class`, `package.module:Class`) and is not a registered name."""
    return ":" in name or name.endswith(".py")


def load_reference(reference: str) -> Any:
    """The class or function that a reference points to. The part after ':' may be left out of a file with one environment."""
    if objects.is_given(reference):
        return objects.find(reference)
    place, _, attribute = reference.rpartition(":") if not reference.endswith(".py") else (reference, "", "")
    module = load_file(Path(place)) if place.endswith(".py") else _load_module(place, reference)
    if not attribute:
        return _only_environment(module, place)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise unknown_name(f"name in {place}:", attribute, _own_names(module))
        target = getattr(target, part)
    return target


def _load_module(name: str, reference: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise TurnwiseError(f"{reference!r}: there is no module {error.name!r}. A file is given as path/to/file.py:Class") from None
        raise


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module of its own; again only when it has changed."""
    full = path.expanduser().resolve()
    if not full.is_file():
        raise TurnwiseError(f"there is no file {path} (looked in {Path.cwd()})")
    stamp = (full.stat().st_mtime_ns, full.stat().st_size)
    known = _loaded.get(str(full))
    if known is not None and known[0] == stamp:
        return known[1]
    name = f"turnwise_file_{full.stem}_{blake2b(str(full).encode(), digest_size=6).hexdigest()}"
    spec = spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise TurnwiseError(f"{path} cannot be loaded as Python")
    module = module_from_spec(spec)
    if str(full.parent) not in sys.path:
        sys.path.append(str(full.parent))
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        sys.modules.pop(name, None)
        raise TurnwiseError(f"{path}, line {error.lineno}: {error.msg}") from error
    except BaseException:
        sys.modules.pop(name, None)
        raise
    _loaded[str(full)] = (stamp, module)
    return module


def _own_names(module: ModuleType) -> list[str]:
    """The classes and functions that stand in a file, without those that it imports."""
    return [name for name, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == module.__name__]


def _environments(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "reset") and hasattr(value, "step")
    ]


def _only_environment(module: ModuleType, place: str) -> Any:
    found = _environments(module)
    if len(found) == 1:
        return getattr(module, found[0])
    if not found:
        raise TurnwiseError(f"{place} has no class with reset and step")
    raise TurnwiseError(f"{place} has several environments: say which, e.g. {place}:{found[0]} (found: {', '.join(found)})")
