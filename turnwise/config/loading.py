"""Load the class or function that a text names: `path/to/my_env.py:MyEnv` (the user's file) or `package.module:Class`.

`load_reference` is the only entrance, and it checks what it found before anything is called: it must be of the requested kind (a class
with the methods of that kind, or a function written in Python), and neither a part of Python itself nor a function of an installed
package that does not declare what it returns. Importing a file still runs it: a recipe that names code is code.

A file is loaded like a script: its folder is importable, so that it can import the files next to it. It is read again when it has
changed, because a notebook that is edited and run again must use the new version.
"""

from __future__ import annotations

import inspect
import sys
from functools import partial
from hashlib import blake2b
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, get_type_hints

from turnwise.config import objects
from turnwise.config.kinds import ENVIRONMENT, Kind
from turnwise.config.references import check_unread, home_of, lacking, parse
from turnwise.util.errors import TurnwiseError, unknown_name

_loaded: dict[str, tuple[tuple[int, int], ModuleType]] = {}


def load_reference(reference: str, kind: Kind = ENVIRONMENT) -> Any:
    """The class or function that a reference points to, checked to be of the right kind. It has not been called. The part after ':' may be
    left out if the file has one class of that kind, such as an environment."""
    if objects.is_given(reference):
        _check(objects.find(reference), kind, reference)
        return objects.find(reference)
    check_reference(reference, kind)
    place, attribute = parse(reference)
    if not attribute:
        return _only_class(load_file(Path(place)), place, kind)
    target = load_registered(reference)
    _check(target, kind, reference)
    return target


def load_text(reference: str) -> str:
    """A named text in a file or a module, such as a prompt template."""
    check_unread(reference, word="text")
    target = load_registered(reference)
    if not isinstance(target, str):
        raise TurnwiseError(f"{reference} is {type(target).__name__}, not a text")
    return target


def load_registered(reference: str) -> Any:
    """What a reference names, unchecked: for what a package has registered, whose user trusts it. Never for a text of a recipe."""
    place, attribute = parsed = parse(reference)
    module = load_file(Path(place)) if parsed.path is not None else import_module(place)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise unknown_name(f"name in {place}:", attribute, _own_names(module))
        target = getattr(target, part)
    return target


def check_reference(reference: str, kind: Kind = ENVIRONMENT) -> None:
    """Checks of a reference without importing it."""
    if objects.is_given(reference):  # an object of this process is checked when it is used
        return
    if reference.endswith(".py") and not kind.alone:
        what = "class" if kind.methods else "function"
        raise TurnwiseError(f"{reference} is a file: say which {what} of it is the {kind.word}, as {reference}:NAME")
    check_unread(reference, kind.methods, kind.word)


def _check(target: Any, kind: Kind, reference: str) -> None:
    """An error for what must not be used as this kind."""
    while isinstance(target, partial):
        target = target.func
    home = home_of(str(getattr(target, "__module__", None) or "builtins"))
    if home == "python" and not isinstance(target, ModuleType) and callable(target):
        raise TurnwiseError(f"{reference} is not a valid {kind.word}: it is {_named(target)}, a part of Python. {kind.wanted}")
    if isinstance(target, type):
        _check_class(target, kind, reference, home == "own")
        return
    function = inspect.unwrap(target) if callable(target) else target
    function = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(function, FunctionType):
        inner = inspect.getattr_static(type(target), "__call__", None)
        if not isinstance(inner, FunctionType):
            raise TurnwiseError(f"{reference} is not a valid {kind.word}: it is {_named(target, kind)}. {kind.wanted}")
        function = inner
    if kind.takes:
        _check_arguments(target, kind, reference)
    _check_result(function, kind, reference, home_of(str(function.__module__)) == "own")


def _check_class(target: type, kind: Kind, reference: str, own: bool) -> None:
    if not kind.methods and not kind.callable_class:
        raise TurnwiseError(f"{reference} is not a valid {kind.word}: {target.__name__} is a class. {kind.wanted}")
    lacks = [method for method in kind.methods or ("__call__",) if not _has(target, method)]
    if lacks and not (own and _has(target, "__getattr__")):
        raise TurnwiseError(f"{reference} is not a valid {kind.word}: {lacking(target.__name__, lacks)}. {kind.wanted}")
    if kind.callable_class and not lacks:
        _check_arguments(partial(inspect.getattr_static(target, "__call__"), None), kind, reference)


def _check_arguments(target: Any, kind: Kind, reference: str) -> None:
    try:
        inspect.signature(target).bind(*kind.takes)
    except TypeError as error:
        called = f"it is called with ({', '.join(kind.takes)}), and {error}"
        raise TurnwiseError(f"{reference} is not a valid {kind.word}: {called}. {kind.wanted}") from None
    except ValueError:
        return


def _check_result(function: FunctionType, kind: Kind, reference: str, own: bool) -> None:
    """A function declares by its annotation what it returns. One in the user's file may leave that open; its result is checked after the
    call."""
    try:
        gives = get_type_hints(function).get("return")
    except Exception:  # an annotation that cannot be read gives no information
        gives = None
    if own and gives in (None, Any, object):
        return
    if kind.methods:
        fits = isinstance(gives, type) and all(_has(gives, method) for method in kind.methods)
        if fits or (own and not isinstance(gives, type)):
            return
    elif own or any(word in str(gives).lower() for word in kind.gives):
        return
    said = f"says that it returns {gives}" if gives is not None else "does not say what it returns"
    raise TurnwiseError(f"{reference} is not a valid {kind.word}: {_named(function)} {said}. {kind.wanted}")


def _has(owner: type, method: str) -> bool:
    found = inspect.getattr_static(owner, method, None)
    return found is not None and (callable(found) or hasattr(found, "__get__"))


def _named(target: Any, kind: Kind = ENVIRONMENT) -> str:
    if isinstance(target, type | FunctionType) or callable(target):
        what = "the class" if isinstance(target, type) else "the function" if isinstance(target, FunctionType) else "a built-in function"
        return f"{what} {getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', type(target).__qualname__)}"
    return f"{type(target).__name__}, not a {'class or a ' if kind.methods else ''}function"


class _Uncached(SourceFileLoader):
    """Compiles the source. Python's own cache tells versions apart by whole seconds and size: it would miss a quick change of a number."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a separate module; again only when it has changed."""
    full = path.expanduser().resolve()
    if not full.is_file():
        raise TurnwiseError(f"there is no file {path} (looked in {Path.cwd()})")
    stamp = (full.stat().st_mtime_ns, full.stat().st_size)
    known = _loaded.get(str(full))
    if known is not None and known[0] == stamp:
        return known[1]
    name = f"turnwise_file_{full.stem}_{blake2b(str(full).encode(), digest_size=6).hexdigest()}"
    spec = spec_from_file_location(name, full, loader=_Uncached(name, str(full)) if full.suffix == ".py" else None)
    if spec is None or spec.loader is None:
        raise TurnwiseError(f"{path} cannot be loaded as Python")
    module = module_from_spec(spec)
    if str(full.parent) not in sys.path:
        sys.path.append(str(full.parent))
    sys.modules[name] = module  # dataclasses and pickle look up a class's module by name
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
    """The classes and functions that a file defines, without those that it imports."""
    return [name for name, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == module.__name__]


def _only_class(module: ModuleType, place: str, kind: Kind) -> Any:
    """The class of this kind if a file has one and the reference names none."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    found = [value.__name__ for value in own if all(hasattr(value, method) for method in kind.methods)]
    if len(found) == 1:
        return getattr(module, found[0])
    if not found:
        raise TurnwiseError(f"{place} has no class with {' and '.join(kind.methods)}")
    raise TurnwiseError(f"{place} has several {kind.word}s: say which, e.g. {place}:{found[0]} (found: {', '.join(found)})")
