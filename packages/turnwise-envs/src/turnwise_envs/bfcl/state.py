"""The state of the simulated APIs as plain JSON values, exact and in any shape.

Copied folders share their files, moved ones keep their old parents, and a folder can be copied into itself: the objects form a graph. It is
written as a table: one row per object in the order in which it is reached, with `[row]` for a reference. The same state gives the same
table, so its hash is an anchor; read back, it gives the same objects with the same references. Nothing is recursive, so no state is too
deep.
"""

from __future__ import annotations

import math
import random
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from turnwise_envs.bfcl.benchmark import simulator

MOST_ENTRIES = 20_000  # of a file system, as a walk through it counts them
DEEPEST = 100
WORDS = struct.Struct("<625I")  # the state of Python's generator
DESCRIPTION, MODIFIED = "_api_description", "_last_modified"  # the same for all objects of a class; the time of day
LONG_AGO = datetime(2024, 1, 1)


class Unknown(ValueError):
    """A value that cannot be written exactly."""


def table(objects: Mapping[str, Any], exact: bool = True) -> list[list[Any]]:
    """The state of the objects. Its first rows are the objects themselves, in their order. Without `exact`, a value of unknown kind is
    written as its type, which is enough for a hash."""
    known: dict[int, int] = {}
    queue: list[Any] = []

    def refer(value: Any) -> Any:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return value if abs(value) < 1 << 63 else {"integer": hex(value)}
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if id(value) not in known:
            known[id(value)] = len(queue)
            queue.append(value)
        return [known[id(value)]]

    for found in objects.values():
        refer(found)
    rows: list[list[Any]] = []
    while len(rows) < len(queue):
        rows.append(_row(queue[len(rows)], refer, exact))
    return rows


def _row(value: Any, refer: Any, exact: bool) -> list[Any]:
    name = type(value).__name__
    if isinstance(value, dict):
        return ["dict", [[refer(key), refer(one)] for key, one in value.items()]]
    if isinstance(value, list | tuple):
        return [name, [refer(one) for one in value]]
    if isinstance(value, set):
        return ["set", [refer(one) for one in sorted(value, key=repr)]]
    if isinstance(value, random.Random):
        version, words, gauss = value.getstate()
        if version != 3 or gauss is not None:
            raise Unknown("a generator of another kind")
        return ["Random", b64encode(WORDS.pack(*words)).decode()]
    if type(value).__module__.startswith("bfcl_eval."):
        return [name, [[key, refer(one)] for key, one in vars(value).items() if key not in (DESCRIPTION, MODIFIED)]]
    if exact:
        raise Unknown(f"a value of type {name}")
    return ["unknown", name]


def rebuild(objects: Mapping[str, Any], rows: Sequence[Sequence[Any]]) -> None:
    """Bring fresh objects of the same classes to the state of a table."""
    made: list[Any] = [*objects.values(), *(_empty(kind, content) for kind, content in rows[len(objects) :])]

    def read(value: Any) -> Any:
        if isinstance(value, list):
            return made[value[0]]
        if isinstance(value, dict):
            return float(value["float"]) if "float" in value else int(value["integer"], 16)
        return value

    for target, (kind, content) in zip(made, rows, strict=True):
        if kind == "dict":
            target.update((read(key), read(one)) for key, one in content)
        elif kind == "list":
            target.extend(map(read, content))
        elif kind == "set":
            target.update(map(read, content))
        elif kind != "Random":
            vars(target).update((str(key), read(one)) for key, one in content)
            if kind == "File":
                setattr(target, MODIFIED, LONG_AGO)


def _empty(kind: str, content: Any) -> Any:
    """An object of a row before its content is known."""
    if kind == "Random":
        data = b64decode(content)
        if len(data) != WORDS.size:
            raise ValueError("the state of a generator has another length")
        made = random.Random(0)
        made.setstate((3, WORDS.unpack(data), None))
        return made
    plain: dict[str, Any] = {"dict": dict, "list": list, "set": set}
    if kind in plain:
        return plain[kind]()
    if kind not in ("File", "Directory"):
        raise ValueError(f"objects of type {kind} are not known")
    module = __import__(simulator("GorillaFileSystem").__module__, fromlist=[kind])
    return object.__new__(getattr(module, kind))


def overgrown(objects: Mapping[str, Any]) -> str:
    """Why a file system can no longer be walked through; empty if it can. Folders that share their files or contain themselves look
    larger from inside than they are, and the package's functions and checks walk through all of it."""
    system = objects.get("GorillaFileSystem")
    if system is None:
        return ""
    sizes: dict[int, int] = {}
    return _walked(system.root, sizes) or _walked(system._current_dir, sizes)


def _walked(start: Any, sizes: dict[int, int]) -> str:
    """A walk from a folder downwards. `sizes` has the entries of each folder that was left again."""
    path: list[tuple[Any, list[Any]]] = [(start, _folders(start))]
    inside = {id(start)}
    while path:
        folder, left = path[-1]
        if left:
            child = left.pop()
            if id(child) in inside:
                return "a folder contains itself"
            if id(child) not in sizes:
                inside.add(id(child))
                path.append((child, _folders(child)))
                if len(path) > DEEPEST:
                    return f"its folders are more than {DEEPEST} levels deep"
            continue
        path.pop()
        inside.discard(id(folder))
        sizes[id(folder)] = sum(1 + sizes.get(id(one), 0) for one in folder.contents.values())
        if sizes[id(folder)] > MOST_ENTRIES:
            return f"it has more than {MOST_ENTRIES:,} entries"
    return ""


def _folders(folder: Any) -> list[Any]:
    return [one for one in folder.contents.values() if hasattr(one, "contents")]
