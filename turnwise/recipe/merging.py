"""Putting a recipe's values together: one table over another, dotted overrides on top, and the settings of a method among them.

A recipe is made of layers: the recipe that it extends, its own file, the command line. The settings of a method go right below the layer
that names it: the words of that layer and of those above win over the method, the method wins over everything below. So a method that is
named in a file yields to the file's other words, and one that is named on the command line wins over the whole file. A method that is
replaced by another takes its settings with it. Where a higher layer changes only an option of the method, the settings that follow from
the option change, and nothing else. The lists of signals and reward terms are joined: the method's entries come first, further ones
follow, and entries of the same name become one.

A method brings the settings that it is, and apart from them what its authors took for settings that all methods share (the aggregation,
KL, the discount per turn …). The recipe's shared settings hold, unless `method.faithful` is true: runs of two methods differ in what the
methods are. So options of the recipe's credit and objective that mean the same in what the method names instead stay, too.

The record of a run holds all settings as they were used, so nothing is applied to it again, and its method cannot change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from turnwise.config.objects import is_given
from turnwise.config.options import Entry
from turnwise.config.references import is_reference, parse, with_code_beside
from turnwise.config.section import NAME, Named
from turnwise.methods.settings import CREDIT, Credit, Method, Objective, Plan, Schedule
from turnwise.recipe.names import registry
from turnwise.util.errors import TurnwiseError

Settings = Mapping[str, Any]
Brought = tuple[Settings, Settings]  # the settings that a method is, and its authors' values of shared ones
UNSET = ("method", "extends", "name", "out", "seed")  # what a method leaves to the recipe
JOINED = ("signal", "reward")
SECTIONS: dict[str, type[Named]] = {"plan": Plan, "credit": Credit, "objective": Objective, "schedule": Schedule}
_unread = False


class Layer(NamedTuple):
    """Words of one place. `typed`: dotted overrides, applied as such. `settled`: the record of a run, to which nothing is applied."""

    words: Mapping[str, Any]
    typed: bool = False
    settled: bool = False


@contextmanager
def unread() -> Iterator[None]:
    """Within, no code of the user's own is run: a method that is named by its file brings no settings."""
    global _unread
    before, _unread = _unread, True
    try:
        yield
    finally:
        _unread = before


def with_names(layers: Sequence[Layer]) -> list[Layer]:
    """The layers with the names that runs get from them: a run's name says what is trained. Where a layer chooses another method or
    algorithm than those below it and sets no name, the name follows."""
    named, below = list(layers), dict[str, Any]()
    for number, layer in enumerate(named):
        values = resolved(named[: number + 1])
        if number and "name" not in layer.words and (name := _follows(values, below)) is not None:
            named[number] = layer._replace(words={**layer.words, "name": name})
            values["name"] = name
        below = values
    return named


def _follows(values: Mapping[str, Any], below: Mapping[str, Any]) -> str | None:
    """The name that follows from what is trained now; None if that is what was trained before."""
    before, now, name = _trained(below), _trained(values), values.get("name", NAME)
    if (method := _trained(values, "method", "")) != _trained(below, "method", ""):
        before, now = _trained(below, "method", before), method or now
    if now == before or not isinstance(name, str):
        return None
    word = re.sub(r"[^A-Za-z0-9._=-]+", "-", now.rsplit(":", 1)[-1])
    parts = re.split(r"([.=-])", name)
    return "".join(word if part == before else part for part in parts) if before in parts else f"{name}-{word}"


def _trained(values: Mapping[str, Any], section: str = "credit", default: str = CREDIT) -> str:
    """The credit algorithm, or the method, that a recipe's plain values name."""
    table = values.get(section)
    return str(table.get("name", default) if isinstance(table, dict) else default)


def resolved(layers: Sequence[Layer]) -> dict[str, Any]:
    """The values of all layers, the last one on top, with the settings of the method in their place."""
    layers = [layer._replace(words=none_as_text(layer.words)) if layer.settled else layer for layer in layers]
    sections: list[dict[str, Any]] = []
    for layer in layers:
        sections.append(_section(sections[-1] if sections else {}, layer))
    last = sections[-1] if sections else {}
    if sections and layers[0].settled and sections[0] and last != sections[0]:
        raise TurnwiseError(
            f"this record of a run has what its method {sections[0].get('name')} has set, and not what that replaced: neither the method "
            "nor its options can change. Start from the recipe of that run"
        )
    if not last.get("faithful"):  # then nothing of it is applied on the way
        sections = [{key: value for key, value in section.items() if key != "faithful"} for section in sections]
        last = sections[-1] if sections else {}
    start = next((k + 1 for k in reversed(range(len(layers))) if sections[k].get("name") != last.get("name")), 0)
    values: dict[str, Any] = {}
    known: Settings | None = None  # what the method has set so far
    authors: Settings = last.get("authors", {})
    for number, (layer, section) in enumerate(zip(layers, sections, strict=True)):
        changed = number == start or section != sections[number - 1]
        if section and number >= start and changed and not layer.settled:
            parts, authors = brought_by(section)
            now = {**authors, **parts} if section.get("faithful") is True else parts
            values = _applied(values, {key: value for key, value in now.items() if known is None or known.get(key, now) != value})
            known = now
        values = _put(values, layer, known or {})
    if last or "method" in values:
        values["method"] = last | {"authors": dict(authors)} if last else "none"
    return values


def brought_by(section: Mapping[str, Any]) -> Brought:
    """The settings that a method is, and its authors' values of shared ones."""
    name = section.get("name")
    if not isinstance(name, str) or not name:
        given = ", ".join(f"method.{key}" for key in section)
        raise TurnwiseError(f'{given}: options of a method, and the recipe names none. Add method.name = "…"; `turnwise algos` lists them')
    if _unread and is_reference(name):
        return {}, {}
    parts, authors = settings_of_method(name, {key: value for key, value in section.items() if key not in Method.model_fields})
    return none_as_text(dict(parts)), none_as_text(dict(authors))


def settings_of_method(name: str, options: Mapping[str, Any]) -> Brought:
    """The settings that a method is with these options, and its authors' values of shared ones: dotted keys and values. Files that it
    names may lie beside its own. A plain table from a method of the user's own is all of it."""
    methods = registry("method")
    settings = methods.load(name).make(options, methods.kind)()
    if not isinstance(settings, Mapping):
        raise TurnwiseError(
            f'method {name!r} returns {type(settings).__name__}; a table of settings is needed, as {{"credit.name": "grpo"}}'
        )
    authors = dict(getattr(settings, "authors", {}))
    for key in (*settings, *authors):
        if not isinstance(key, str) or key.partition(".")[0] in UNSET:
            raise TurnwiseError(f"method {name!r} sets {key!r}: a method sets keys of a recipe, but none of {', '.join(UNSET)}")
    path = parse(name).path if is_reference(name) and not is_given(name) else None
    return cast("dict[str, Any]", with_code_beside(dict(settings), path.parent)) if path is not None else dict(settings), authors


def carried(family: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a recipe's credit or objective that hold for what a method names instead: those of the same name and meaning. For
    what the recipe does not say, the default of its credit counts, or that of the default credit. So all methods on top of one recipe have
    the same discount per turn, norm and penalty. Options that are equal to the new default are left out."""
    sections: dict[str, type[Named]] = {"credit": Credit, "objective": Objective}
    section = sections.get(family)
    if section is None or (family == "objective" and not set(before) - set(section.model_fields)):  # the defaults of objectives are equal
        return {}
    usual, algorithms = section.model_fields["name"].default, registry(family)
    if (entry := algorithms.known(now["name"])) is None:
        return {}
    sources = [(algorithms.known(before.get("name", usual)), before), (algorithms[usual], {})]
    values: dict[str, Any] = {}
    for name, option in entry.options.items():
        same = [(one, given) for one, given in sources if one is not None and meaning(name, one, given) == meaning(name, entry, now)]
        value = same[0][1].get(name, same[0][0].options[name].usual) if same else option.usual
        taken = not option.choices or value in option.choices
        values |= {name: value} if taken and value != option.usual else {}
    return values


def meaning(name: str, entry: Entry[Any], given: Mapping[str, Any]) -> str | None:
    """What options of one name must share to be one setting: their text up to a semicolon, in which an option's name in braces stands for
    its value (`discount per {level}`). None if there is no such option."""
    if name not in entry.options:
        return None
    text = entry.options[name].help.text.partition(";")[0]
    for other in entry.options.values():
        text = text.replace(f"{{{other.name}}}", str(given.get(other.name, other.usual)))
    return text


def _section(before: dict[str, Any], layer: Layer) -> dict[str, Any]:
    """The section [method] once a layer has spoken: another name drops the options of the one before. What the authors took is read from
    the record of a run only."""
    words = layer.words
    given = words.get("method", {})
    given = {} if given is None else {"name": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping):
        raise TurnwiseError(f"method takes a name or a section with name and options, not {given!r}")
    typed = {key.removeprefix("method."): value for key, value in words.items() if key.startswith("method.")} if layer.typed else {}
    given = {key: value for key, value in {**given, **typed}.items() if key != "authors" or layer.settled}
    if given.get("name") == "none" or ("method" in words and words["method"] is None):
        return {}
    same = given.get("name", before.get("name")) == before.get("name")
    return (before if same else {key: value for key, value in before.items() if key == "faithful"}) | given


def _applied(values: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Values with a method's settings over them. A section that names something else keeps its own keys and the options that mean the same
    in what it names now, and no others."""
    above, below = overridden({}, settings.items()), dict(values)
    for key, section in SECTIONS.items():
        old, now = below.get(key, {}), above.get(key)
        now = now if isinstance(now, dict) else {}
        name = now.get("name")
        if isinstance(old, dict) and name is not None and old.get("name", section.model_fields["name"].default) != name:
            stays = {own: value for own, value in old.items() if own in section.model_fields and own != "name"}
            stays |= carried(key, old, now)
            if stays or key in below:
                below[key] = stays
    for key in JOINED:
        if key in above:
            above[key] = _joined(above[key], below.get(key), over=False)
    return merged(below, above)


def _put(values: dict[str, Any], layer: Layer, known: Settings) -> dict[str, Any]:
    """Values with the words of a layer on top."""
    words = {key: value for key, value in layer.words.items() if key != "method" and not (layer.typed and key.startswith("method."))}
    if layer.typed:
        return overridden(values, words.items())
    for key in JOINED:
        if key in words and key in known:
            words[key] = _joined(known[key], words[key], over=True)
    return merged(values, words) | ({"method": {}} if "method" in layer.words else {})


def _joined(first: Any, more: Any, over: bool) -> Any:
    """Entries of two lists by their names, the first ones first. `over`: where both have one, the words of the second win."""
    if not isinstance(first, list) or not isinstance(more, list) or not all(isinstance(one, dict) for one in (*first, *more)):
        return first if more in (None, "none") or not over else more
    known = {one.get("name"): one for one in more}
    both = [(one | known.get(one.get("name"), {})) if over else (known.get(one.get("name"), {}) | one) for one in first]
    names = {one.get("name") for one in first}
    return both + [one for one in more if one.get("name") not in names]


# -- one table over another --------------------------------------------------------------------------------------------------------


def overridden(values: dict[str, Any], pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Values with dotted overrides set in them."""
    for key, value in sorted(pairs, key=lambda item: not item[0].endswith(".name")):  # names first: they decide which options there are
        _set(values, key, value)
    return values


def none_as_text(value: Any) -> Any:
    """TOML has no null: a recipe writes "none", which `config/section.py` reads as None."""
    if isinstance(value, dict):
        return {key: none_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [none_as_text(item) for item in value]
    return "none" if value is None else value


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """One table over another; tables in both are merged, anything else is replaced."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            if "name" in value:
                old = renamed(key, old, value["name"])
            both[key] = merged(old, value)
        else:
            both[key] = value
    return both


def renamed(section: str, values: dict[str, Any], name: Any) -> dict[str, Any]:
    """A section that now names something else: the options of what it named before do not carry over."""
    if values.get("name", name) == name or section not in ("plan", "source", "signal", "credit", "objective", "schedule", "env"):
        return values
    return {key: value for key, value in values.items() if key != "options"} if section == "env" else {}


def _set(values: Any, dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        values = _opened(values, section, dotted)
    if isinstance(values, list):
        raise TurnwiseError(
            f"override {dotted}: {sections[-1]} is a list; change an entry of it ({'.'.join(sections)}.0.KEY), or all of it"
        )
    if last == "name" and (len(sections) == 1 or sections[:1] == ["signal"]):
        kept = dict(renamed(sections[0], values, value))
        values.clear()
        values.update(kept)
    values[last] = value


def _opened(values: Any, section: str, dotted: str) -> Any:
    """A section as a copy that may be changed: of a table by its name, of a list of tables by its number, as in `signal.0.weight`."""
    key: Any = section
    if isinstance(values, list):
        if not section.isdecimal() or int(section) >= len(values):
            raise TurnwiseError(f"override {dotted}: there is no entry {section}; the list has {len(values)}, counted from 0")
        key = int(section)
    inner = values[key] if isinstance(values, list) else values.get(key)
    inner = {} if inner is None or inner == "none" else inner
    if not isinstance(inner, dict | list):
        raise TurnwiseError(f"override {dotted}: {section} is {inner!r}, not a section")
    values[key] = copied = inner.copy()
    return copied
