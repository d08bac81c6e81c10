"""Which runs belong together: those whose recipes differ in nothing relevant but the seed. And the name of each group."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.runs.records import Panel, Record
from turnwise.util.errors import TurnwiseError

# Keys that set paths, the frequency of measurements, or memory use, but never change what is learned.
IMMATERIAL = {"name", "out", "seed", "eval.every", "env.workers", "env.timeout", "env.memory_mb", "engine.sleep", "engine.max_batch"} | {
    "env.in_order",
    "learner.tokens_per_batch",
    "learner.gradient_checkpointing",
}
ABSENT = "–"
# What starts like this is a method's own, whatever it says.
OWN = ("method", "player", "plan", "source", "signal", "schedule", "models", "reward", "collect.shared_prefix")


@dataclass(frozen=True)
class Group:
    """Runs that differ only by their seed."""

    label: str
    differs: Mapping[str, Any]
    records: tuple[Record, ...]

    @property
    def seeds(self) -> list[int]:
        return [record.seed for record in self.records]

    @property
    def successes(self) -> list[float]:
        return [record.success for record in self.records]

    @property
    def panel(self) -> Panel | None:
        """The panel that all of its runs share; None if they differ, or if one is unknown."""
        first = self.records[0].panel
        alike = first is not None and all(
            record.panel is not None and not first.differences(record.panel) and record.tasks == self.records[0].tasks
            for record in self.records
        )
        return first if alike else None

    @property
    def won(self) -> NDArray[np.float64]:
        """Task by task: the share of attempts won, over all runs of the group."""
        shares: NDArray[np.float64] = np.mean([record.won for record in self.records], axis=0)
        return np.round(shares, 12)


def gathered(records: Sequence[Record]) -> tuple[list[Group], list[str]]:
    """The groups, in an order that does not depend on the order of the records, and the keys that name them."""
    configs = [{key: value for key, value in record.config.items() if _matters(key) and not _retired(key, value)} for record in records]
    keys = sorted({key for config in configs for key in config})
    unset = {key: "none" if any(key not in config for config in configs) else None for key in keys}  # to leave a key out is to unset it
    texts = [{key: ABSENT if config.get(key, "none") == unset[key] else _word(config[key]) for key in keys} for config in configs]
    differing = [key for key in keys if len({values[key] for values in texts}) > 1]
    members: dict[tuple[str, ...], list[Record]] = {}
    for record, shown in zip(records, texts, strict=True):
        members.setdefault(tuple(shown[key] for key in differing), []).append(record)
    named = label_keys(differing, list(members))
    groups = []
    for values, inside in members.items():
        shown = dict(zip(differing, values, strict=True))
        parts = [f"{key}={shown[key]}" if len(named) > 1 else shown[key] for key in named if shown[key] != ABSENT]
        label = ", ".join(parts) or ("all runs" if not named else "the others")
        config = {key: inside[0].config.get(key) for key in differing}
        groups.append(Group(label, config, tuple(sorted(inside, key=lambda record: (record.seed, str(record.path))))))
    return sorted(groups, key=lambda group: group.label), named


def also_differ(groups: Sequence[Group], named: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """In which settings the groups differ besides what names them: by setting, the groups of each value. The names of pieces and the
    options that only one of them has are the methods themselves; an option that a recipe does not set has its default."""
    configs = [group.records[0].config for group in groups]
    keys = {key for config in configs for key in config}
    by_meaning: dict[tuple[str, Any], dict[str, list[str]]] = {}
    for group, config in zip(groups, configs, strict=True):
        for key, (value, meaning) in _settings(config, keys).items():
            if _matters(key) and key not in named and not key.startswith(OWN) and not key.endswith(".name"):
                by_meaning.setdefault((key, meaning), {}).setdefault(_word(value), []).append(group.label)
    differing: dict[str, dict[str, list[str]]] = {}
    for (key, _), by_value in sorted(by_meaning.items(), key=lambda item: item[0][0]):
        if len(by_value) > 1:
            differing.setdefault(key, {}).update(by_value)
    return differing


def _settings(config: Mapping[str, Any], keys: set[str]) -> dict[str, tuple[Any, Any]]:
    """The settings of a run, each with its meaning: options of credit and objective that have one name may be different settings."""
    from turnwise.methods.settings import Objective
    from turnwise.recipe.merging import meaning
    from turnwise.recipe.names import registry

    values: dict[str, tuple[Any, Any]] = {key: (value, None) for key, value in config.items()}
    if "objective.name" in config:
        options = {key for key in keys if key.startswith("objective.") and key.split(".")[1] not in Objective.model_fields}
        values |= {key: (config.get(key, "the default"), config["objective.name"]) for key in options}
    if (entry := registry("credit").known(str(config.get("credit.name", "")))) is not None:
        options_set = {key.removeprefix("credit."): value for key, value in config.items() if key.startswith("credit.")}
        for name, option in entry.options.items():
            values[f"credit.{name}"] = (options_set.get(name, option.usual), meaning(name, entry, options_set))
    return values


def _matters(key: str) -> bool:
    return key not in IMMATERIAL and not key.startswith(("run.", "method.authors."))


def _retired(key: str, value: Any) -> bool:
    """Whether it is a setting of an earlier version with the value that changes nothing."""
    from turnwise.recipe.schema import RETIRED

    harmless, _ = RETIRED.get(key, (ABSENT, ""))
    return bool(value == ("none" if harmless is None else harmless))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def check_seeds(group: Group) -> None:
    """The same recipe with the same seed is the same run: counted twice it would overstate the certainty."""
    seen: dict[int, Record] = {}
    for record in group.records:
        if record.seed in seen:
            raise TurnwiseError(
                f"{seen[record.seed].path} and {record.path} have the same recipe and the same seed {record.seed}: they are one result, "
                "not two. Leave one of them out"
            )
        seen[record.seed] = record


def label_keys(keys: Sequence[str], groups: Sequence[Sequence[str]]) -> list[str]:
    """The fewest of the differing keys that distinguish the groups, names first: an algorithm's own options follow from its name."""
    order = sorted(range(len(keys)), key=lambda i: (_rank(keys[i]), any(values[i] == ABSENT for values in groups), keys[i]))
    chosen: list[int] = []
    told = 1
    for i in order:
        apart = len({tuple(values[j] for j in (*chosen, i)) for values in groups})
        if apart > told:
            chosen.append(i)
            told = apart
    for i in list(chosen):  # later keys may make an earlier one unnecessary
        rest = [j for j in chosen if j != i]
        if rest and _rank(keys[i]) > 1 and len({tuple(values[j] for j in rest) for values in groups}) == told:
            chosen = rest
    for values in groups:  # no group is left without a name
        if all(values[i] == ABSENT for i in chosen):
            chosen += [i for i in order if values[i] != ABSENT and i not in chosen][:1]
    return [keys[i] for i in chosen]


def _rank(key: str) -> int:
    if key == "method.name":
        return -1
    if key in ("player", "credit.name"):
        return 0
    if key.endswith(".name") or key == "method.faithful":
        return 1
    return 2 if key in ("model", "model.path", "engine.model", "file") else 3
