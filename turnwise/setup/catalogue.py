"""All that a recipe can name, by family: what `turnwise algos` lists. Nothing is listed by hand; everything comes from the registries."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config.addons import unregistered
from turnwise.config.options import Entry, read_options
from turnwise.config.references import is_reference
from turnwise.engines.registry import BUILT_IN
from turnwise.recipe.merging import Brought, overridden, settings_of_method
from turnwise.recipe.names import STAGES, Piece, registry
from turnwise.util.errors import TurnwiseError, install_command, lacks_training, unknown_name
from turnwise.util.terminal import command

FAMILIES: Mapping[str, str] = {
    "credit": "which turn gets credit: from rollouts to advantages",
    "objective": "how the policy moves: from log-probabilities and advantages to a loss",
    "importance": "corrections for tokens that the learner's policy did not sample",
    "plan": "which attempts are made next",
    "source": "what hands out batches, in front of the run's own source",
    "signal": "columns that are added to a batch before credit",
    "schedule": "which parts of a batch make up which optimiser step",
    "method": "settings that belong together, under one name",
    "model kind": "what a further model is trained for",
    "reward": "terms that are added to the environment's reward",
    "context": "how a turn's prompt is made from the past",
    "parser": "how a response becomes an action",
    "prompt": "templates of prompts",
    "engine": "what turns prompts into responses",
    "tracker": "where metrics go in addition to metrics.jsonl",
    "environment": "what is played; see also `turnwise envs`",
}


def entries(family: str) -> list[Entry[Any]]:
    """All that is registered in a family."""
    if family == "environment":
        from turnwise.envs.registry import describe as environments

        return [Entry(row["name"], nothing, row["summary"] or row["error"], "", {}) for row in environments()]
    if family == "prompt":
        from turnwise.agent.prompts import NAMES, find_template

        return [Entry(name, nothing, f"the template {find_template(name).name}", "", {}) for name in NAMES]
    if family == "engine" and lacks_training():
        return [Entry(name, nothing, f"needs {install_command('train')}", "", {}) for name in BUILT_IN]
    return list(registry(family))


def find(name: str, family: str | None = None) -> list[tuple[str, Entry[Any]]]:
    """The entries of a name, with their families; an error that suggests the closest match if there are none."""
    if family is not None and family not in FAMILIES:
        raise unknown_name("kind", family, FAMILIES)
    if is_reference(name):
        if family is None:
            raise TurnwiseError(f"say which kind of code {name} is, as in {command('algos', 'credit', name)}. Kinds: {', '.join(FAMILIES)}")
        return [(family, _environment(name) if family == "environment" else registry(family).load(name))]
    listed = [(one, entry) for one in ([family] if family else FAMILIES) for entry in entries(one)]
    matches = [(one, _environment(name) if one == "environment" else entry) for one, entry in listed if entry.name == name]
    if not matches:
        known = {entry.name for _, entry in listed} | (set() if family else set(FAMILIES))
        raise unregistered(family or "name", name) or unknown_name(family or "name", name, known)
    return matches


def chosen(name: str | None, second: str | None = None) -> list[tuple[str, Entry[Any]]]:
    """What `turnwise algos NAME`, `turnwise algos KIND` and `turnwise algos KIND NAME` select; without arguments everything."""
    if name is not None and second is not None:
        return find(second, name)
    if name is None or name in FAMILIES:
        return [(family, entry) for family in ([name] if name else FAMILIES) for entry in entries(family)]
    return find(name)


def settings_of(entry: Entry[Any]) -> dict[str, Any]:
    """What a method sets with its defaults; nothing where an option has to be given first."""
    return dict(_brought(entry)[0])


def authors_of(entry: Entry[Any]) -> dict[str, Any]:
    """What the method's authors took for shared settings: `method.faithful` sets it, too."""
    return dict(_brought(entry)[1])


def _brought(entry: Entry[Any]) -> Brought:
    return ({}, {}) if any(option.required for option in entry.options.values()) else settings_of_method(entry.name, {})


def pieces_of(entry: Entry[Any]) -> list[Piece]:
    """The stages that a method sets, with their options."""
    stages = []
    for family, section in overridden({}, settings_of(entry).items()).items():
        for stage in section if isinstance(section, list) else [section]:
            if family in STAGES and isinstance(stage, dict) and stage.get("name"):
                options = {key: value for key, value in stage.items() if key != "name"}
                stages.append(Piece(family, f"{family}.name", stage["name"], options))
    return stages


def needs_of(entry: Entry[Any]) -> dict[str, list[str]]:
    """What a method needs, and what each of the pieces that it sets needs."""
    of_pieces = {f"{piece.family} {piece.name}": registry(piece.family)[piece.name].needed(piece.options) for piece in pieces_of(entry)}
    return {who: list(needs) for who, needs in {"method": entry.needs, **of_pieces}.items() if needs}


def found_methods(words: Sequence[str], without: Sequence[str]) -> list[Entry[Any]]:
    """The methods that mention all of these words and none of the others, in what they are, change, need and cost."""
    listed = [
        (entry, " ".join([entry.name, entry.summary, entry.paper, *facts_of(entry), *settings_of(entry)]).lower())
        for entry in entries("method")
    ]
    return [
        entry for entry, text in listed if all(word.lower() in text for word in words) and not any(word.lower() in text for word in without)
    ]


def facts_of(entry: Entry[Any]) -> list[str]:
    """What a method changes, needs and costs, a line each."""
    facts = {"changes": entry.notes.get("changes"), "needs": ", ".join(all_needs(entry)) or "nothing", "costs": entry.notes.get("costs")}
    return [f"{word}: {text}" for word, text in facts.items() if text]


def all_needs(entry: Entry[Any]) -> list[str]:
    """What a method and its pieces need; of a method whose pieces cannot be found, what it says itself."""
    try:
        return list(dict.fromkeys(need for needs in needs_of(entry).values() for need in needs))
    except TurnwiseError:
        return list(entry.needs)


def page_of(entry: Entry[Any]) -> Path | None:
    """The page of a method, where this is a checkout and there is one."""
    checkout = Path(__file__).parent.parent.parent
    pages = (checkout / folder / f"{entry.name}.md" for folder in ("docs/methods", "experiments/docs"))
    return next((page for page in pages if page.is_file()), None)


def nothing() -> None:
    """Stands for what is listed and not loaded."""


def _environment(name: str) -> Entry[Any]:
    from turnwise.envs.registry import spec

    entry = spec(name)
    made_by = entry.load()
    summary = entry.summary or " ".join((inspect.getdoc(made_by) or "").split("\n\n")[0].split())
    return Entry(name, made_by, summary, "", read_options(made_by, 0))
