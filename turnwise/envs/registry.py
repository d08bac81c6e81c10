"""The registry: environments by name, their tasks, and what each of them needs.

A new environment is one new folder here: its `__init__.py` calls `register`, with the factory given as text (`"module:Class"`) so
that listing the environments imports none of their code. Other packages, such as `turnwise-envs`, register theirs as plugins
(`turnwise.plugins`), or name a class under the entry point group `turnwise.envs`. A user's file needs neither:
`"path/to/my_env.py:MyEnv"` works wherever a name does.

A folder or a package that cannot be imported does not affect the others: its error is kept, listed, and raised when it is requested.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeVar, cast

from turnwise.config import addons, objects, plugins
from turnwise.config.loading import load_reference, load_registered
from turnwise.config.options import mistaken, read_options
from turnwise.config.references import is_reference
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Env
from turnwise.envs.capabilities import Capabilities
from turnwise.envs.needs import Need, explain_missing, private_names, use_private
from turnwise.envs.needs import needs_data as needs_data  # environments import these from here
from turnwise.envs.needs import needs_package as needs_package
from turnwise.envs.needs import needs_private as needs_private
from turnwise.envs.wrapping import split_options, wrapped
from turnwise.util.errors import TurnwiseError, install_command, unknown_name

ENTRY_POINTS = "turnwise.envs"
NUMBERED_SPLITS: Mapping[str, tuple[int, ...]] = {"train": (0, 1, 2, 3, 4, 5, 6, 7), "valid": (8,), "test": (9,)}
NUMBERED_DECADES = 1000  # without `n`, numbered tasks are 0 … 9,999: 8,000 train, 1,000 valid, 1,000 test

Factory = TypeVar("Factory", bound=Callable[..., Any])
SplitSizes = Mapping[str, int | None]  # None: as many as requested


@dataclass(frozen=True)
class Spec:
    """One registered environment: how to create it, and its description in listings."""

    name: str
    factory: Callable[..., Any] | str
    summary: str = ""
    splits: SplitSizes | Callable[[], SplitSizes] | None = None
    max_turns: int | None = None
    needs: tuple[Need, ...] = ()
    source: str = "turnwise"
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """The factory itself: a class or a function that returns an environment."""
        if not isinstance(self.factory, str):
            return self.factory
        use_private(private_names(self.needs))
        try:
            loaded = load_reference(self.factory) if is_reference(self.name) else load_registered(self.factory)
        except ModuleNotFoundError as error:
            if (explained := explain_missing(error, self.name, self.needs)) is not None:
                raise explained from None
            raise
        if not callable(loaded):
            raise TurnwiseError(f"environment {self.name!r}: {self.factory} is {type(loaded).__name__}, not a class or a function")
        return cast(Callable[..., Any], loaded)


_specs: dict[str, Spec] = {}
_broken: dict[str, str] = {}
_discovered = False


def register(
    name: str,
    factory: Callable[..., Any] | str | None = None,
    *,
    summary: str = "",
    splits: SplitSizes | Callable[[], SplitSizes] | None = None,
    max_turns: int | None = None,
    needs: Iterable[Need] = (),
    source: str = "turnwise",
    options: Mapping[str, Any] | None = None,
) -> Callable[[Factory], Factory]:
    """Register an environment: a call with a factory (a class, a function, or `"module:Class"`, imported on first use), or a
    decorator of a class. `splits` says how many tasks each split has (None: endless), as a mapping or as a function that looks;
    `options` are defaults for the factory's arguments."""

    def add(made_by: Any) -> Any:
        existing = _specs.get(name)
        if existing is not None and _identity(existing.factory) != _identity(made_by):
            raise TurnwiseError(f"two environments are called {name!r}: {_identity(existing.factory)} and {_identity(made_by)}. Rename one")
        if is_reference(name) or not name.strip():
            raise TurnwiseError(f"invalid environment name {name!r}: a name has letters and no ':' or '.py'")
        if isinstance(made_by, str) and not is_reference(made_by):
            raise TurnwiseError(f"environment {name!r}: a factory given as text is written 'package.module:Class', got {made_by!r}")
        _specs[name] = Spec(name, made_by, summary, splits, max_turns, tuple(needs), source, dict(options or {}))
        return made_by

    if factory is not None:
        add(factory)
    return add


def unregister(name: str) -> None:
    """Forget a registered environment (notebooks that define one again, tests)."""
    _specs.pop(name, None)


def _identity(factory: Callable[..., Any] | str) -> str:
    if isinstance(factory, str):
        return factory
    return f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', repr(factory))}"


def discover() -> None:
    """Import the environment folders and read the entry points, once."""
    global _discovered
    if _discovered:
        return
    _discovered = True
    for module in iter_modules([str(Path(__file__).parent)]):
        if module.ispkg:
            try:
                import_module(f"turnwise.envs.{module.name}")
            except Exception as error:  # any failure of one folder: the others must stay usable
                _broken[module.name] = f"{type(error).__name__}: {error}"
    plugins.load()
    from importlib.metadata import entry_points  # slow to import

    for point in entry_points(group=ENTRY_POINTS):
        if point.name in _specs:
            warnings.warn(f"{point.value} offers an environment called {point.name!r}, which already exists; it is ignored", stacklevel=2)
            continue
        package_name = point.dist.name if point.dist else point.module
        register(point.name, point.value, source=package_name)


def discover_again() -> None:
    """Look for plugins and entry points again, after a package was installed."""
    global _discovered
    _discovered = False
    plugins.again()


def not_installed(name: str) -> bool:
    """Whether an environment is one of `turnwise-envs`, which is not installed."""
    return name in addons.ENVIRONMENTS and name not in names()


def names() -> list[str]:
    """The names of all registered environments, in order."""
    discover()
    return sorted(_specs)


def broken() -> dict[str, str]:
    """Environment folders that could not be imported, with the error."""
    discover()
    return dict(_broken)


def spec(name: str) -> Spec:
    """The entry of an environment, by its name or by `path/to/my_env.py:MyEnv`."""
    if not is_reference(name):  # a file is found without looking for all the others, which takes longer than most starts
        discover()
    if name in _specs:
        return _specs[name]
    if objects.is_given(name):
        return Spec(name, load_reference(name), source="handed in from Python")
    if is_reference(name):
        return Spec(name, name, source="your own file")
    if name in _broken:
        raise TurnwiseError(f"environment {name!r} cannot be imported: {_broken[name]}")
    if not_installed(name):
        raise addons.comes_with(f"environment {name!r}", name)
    raise unknown_name("environment", name, _specs)


def make(name: str, **options: Any) -> Env:
    """An environment by name. Options go to its factory; an unknown option is an error that suggests the closest match."""
    return _checked(name, resolve(name, options)())


def make_registered(factory: str, options: Mapping[str, Any], private: Iterable[str] = ()) -> Env:
    """A registered environment, in a process where its name is unknown. `private` names the folders of packages that it imports."""
    use_private(private)
    return _checked(factory, load_registered(factory)(**options))


def _checked(name: str, env: Any) -> Env:
    for method in ("reset", "step"):
        if not callable(getattr(env, method, None)):
            raise TurnwiseError(f"environment {name!r}: its factory gave {type(env).__name__}, which has no {method}()")
    return cast(Env, env)


def resolve(name: str, options: Mapping[str, Any]) -> Callable[[], Any]:
    """The factory of an environment with its options bound, after both were checked; nothing is created yet."""
    entry = spec(name)
    factory = entry.load()
    parameters = _parameters(factory)
    options, wrapping = split_options(as_given(factory, {**entry.options, **options}), parameters or ())
    if parameters is not None:
        _check_options(name, parameters, options)
    return wrapped(partial(factory, **options), wrapping)


def portable(name: str, options: Mapping[str, Any]) -> Callable[[], Any]:
    """Like `resolve`, but for another process, where a name that was registered at run time is unknown."""
    entry = spec(name)
    options = as_given(entry.load(), options)
    bound = resolve(name, options)
    if not isinstance(entry.factory, str):
        return bound
    if is_reference(name):
        return partial(make, name, **options)
    options, wrapping = split_options({**entry.options, **options}, _parameters(entry.load()) or ())
    return wrapped(partial(make_registered, entry.factory, options, private_names(entry.needs)), wrapping)


def as_given(factory: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's options as the factory takes them: objects instead of their names, and None where "none" stands for it."""
    declared = read_options(factory, 0)
    values = objects.put_back(options)
    return {name: declared[name].read(value) if name in declared else value for name, value in values.items()}


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """What a factory takes; None for some callables written in C, which have no signature and check their arguments themselves."""
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return None


def _check_options(name: str, parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    accepted = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for option in options:
        if option not in accepted and not takes_any:
            raise unknown_name(f"option of environment {name!r}:", option, accepted)
        if option in parameters and (wrong := mistaken(options[option], parameters[option].annotation)):
            raise TurnwiseError(f"environment {name!r}: option {option}: {wrong}")
    required = [key for key in accepted if parameters[key].default is inspect.Parameter.empty and key not in options]
    if required:
        key = required[0]
        raise TurnwiseError(f"environment {name!r} needs the option {key!r}: env.options.{key}=…, in Python make({name!r}, {key}=…)")


def tasks(name: str, split: str = "train", *, n: int | None = None, **options: Any) -> TaskSet:
    """The tasks of one split of an environment, `n` of them where `n` is given (the first n; generated ones are made lazily).

    The environment made to ask for its tasks is closed again: what a task set makes lazily must not need an open environment.
    """
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 0):
        raise TurnwiseError(f"tasks({name!r}): n must be a non-negative integer, got {n!r}")
    env = make(name, **options)
    try:
        return tasks_of(env, name, split, n)
    finally:
        close(env)


def tasks_of(env: Any, name: str, split: str, n: int | None = None) -> TaskSet:
    """The tasks of one split of an open environment."""
    listing = Capabilities(env).tasks
    if listing is None:
        return numbered(name, split, n)
    takes_n = "n" in inspect.signature(listing).parameters
    task_set = listing(split, n=n) if takes_n and n is not None else listing(split)
    if not isinstance(task_set, TaskSet):
        raise TurnwiseError(f"environment {name!r}: tasks({split!r}) gave {type(task_set).__name__}, not a TaskSet")
    if n is None or n == len(task_set):
        return task_set
    if n > len(task_set):
        raise TurnwiseError(f"environment {name!r} has {len(task_set)} tasks in split {split!r}, fewer than n={n}")
    return task_set[:n]


def numbered(name: str, split: str, n: int | None = None) -> TaskSet:
    """The tasks of an environment without a list: the numbers 0, 1, 2 …, split by their last digit.

    0 to 7 is train, 8 is valid, 9 is test: disjoint for any number of tasks, and the numbers stay small.
    """
    if split not in NUMBERED_SPLITS:
        raise unknown_name(f"split of environment {name!r}:", split, NUMBERED_SPLITS)
    digits = NUMBERED_SPLITS[split]

    def task(index: int) -> Task:
        number = index // len(digits) * 10 + digits[index % len(digits)]
        return Task(str(number), split, {"number": number})

    return TaskSet.lazy(len(digits) * NUMBERED_DECADES if n is None else n, task, f"{name}/{split}")


def close(env: Any) -> None:
    """Close an environment that has something to close."""
    Capabilities(env).close()


def turn_limit(name: str, env: Any) -> int | None:
    """The default turn limit of an episode: the environment's, else the registered one."""
    limit: int | None = Capabilities(env).max_turns
    return limit if limit is not None else spec(name).max_turns


def split_sizes(name: str) -> dict[str, int | None]:
    """The number of tasks per split (None: as many as requested), if it is known without creating the environment."""
    entry = spec(name)
    declared = entry.splits() if callable(entry.splits) else entry.splits
    if declared is None:
        factory = Capabilities(entry.load())
        declared = factory.splits
        if declared is None and factory.tasks is None:
            declared = dict.fromkeys(NUMBERED_SPLITS)
    return dict(declared) if isinstance(declared, Mapping) else {}


def describe(name: str | None = None) -> list[dict[str, Any]]:
    """What a listing says of each environment, as plain JSON values; of one where a name is given. Never raises for an
    environment that cannot run here: what it lacks is part of the answer."""
    if name is not None:
        return [_describe_missing(name) if not_installed(name) else _describe(spec(name))]
    rows = [_describe(spec(registered)) for registered in names()]
    rows += [_row(folder, error=error) for folder, error in broken().items()]
    return rows + [_describe_missing(offered) for offered in addons.ENVIRONMENTS if not_installed(offered)]


def _describe_missing(name: str) -> dict[str, Any]:
    need = {"what": f"package {addons.DISTRIBUTION}", "present": False, "remedy": install_command(name, addons.DISTRIBUTION)}
    return _row(name, summary=addons.ENVIRONMENTS[name], needs=[need], source=addons.DISTRIBUTION) | {"ready": False}


def _describe(entry: Spec) -> dict[str, Any]:
    needs = [{"what": need.what, "present": need.met(), "remedy": need.remedy} for need in entry.needs]
    row = _row(entry.name, summary=entry.summary, max_turns=entry.max_turns, needs=needs, source=entry.source)
    if not all(need["present"] for need in needs):
        row["ready"] = False
        if isinstance(entry.splits, Mapping):
            row["splits"] = dict(entry.splits)
        return row
    try:
        row["splits"] = split_sizes(entry.name)
        if row["max_turns"] is None and isinstance(turns := Capabilities(entry.load()).max_turns, int):
            row["max_turns"] = turns
        row["summary"] = entry.summary or (inspect.getdoc(entry.load()) or "").partition("\n")[0]
    except Exception as error:  # the listing shows what is wrong with one environment beside the others
        row.update(ready=False, error=f"{type(error).__name__}: {error}")
    return row


def _row(name: str, **fields: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "summary": "", "splits": {}, "max_turns": None, "needs": [], "source": "turnwise"}
    row.update(ready="error" not in fields, error="")
    row.update(fields)
    return row
