"""What makes an exported folder a repository for others: a model card, and the recipe that trains the model again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.config.references import code_in, is_reference
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, toml
from turnwise.util.files import write_text_atomically
from turnwise.util.hub import ADAPTERS, REPOSITORY, at_hand
from turnwise.util.secret import redacted
from turnwise.util.version import VERSION

CARD, RECIPE = "README.md", "recipe.toml"


def describe(folder: Path, config: Config, iteration: int, line: Mapping[str, Any], merged: bool, local: bool) -> None:
    """Write both into the folder. `line`: the metrics of the iteration whose weights these are. Unless `local`, adapters name no folder of
    this machine as their base."""
    base = config.model.path
    name = base if base is not None and REPOSITORY.fullmatch(base) and not Path(base).is_dir() else None
    values = config.model_dump(mode="json", exclude={"out", "run"})
    write_text_atomically(folder / RECIPE, toml(_without_folders(redacted(values))))
    write_text_atomically(folder / CARD, _card(config, iteration, line, name, merged))
    if not merged and (name is not None or not local):
        adapters = json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))
        write_text_atomically(folder / ADAPTERS, json.dumps({**adapters, "base_model_name_or_path": name}, indent=2) + "\n")


def _card(config: Config, iteration: int, line: Mapping[str, Any], base: str | None, merged: bool) -> str:
    trained, env = (Path(name).name if is_reference(name) else name for name in (config.trained_with, config.env.name))
    folder = at_hand(config.model.path) if config.model.path is not None else None
    front = {
        "library_name": "transformers" if merged else "peft",
        "pipeline_tag": "text-generation",
        "base_model": base,
        "license": _licence(Path(folder)) if folder is not None else None,
        "tags": ["turnwise", "reinforcement-learning", "agents", trained, env],
    }
    result = "this checkpoint was not measured"
    if "eval/success" in line:
        result = f"success {line['eval/success']:.1%} (95 % interval {line['eval/low']:.1%} to {line['eval/high']:.1%})"
    facts = {
        "trained from": base or ("a tiny model with random weights" if config.model.path is None else "a model in a folder"),
        "method": f"{trained}: credit `{Path(config.credit.name).name}`, objective `{Path(config.objective.name).name}`",
        "environment": f"`{env}`",
        "iteration": f"{iteration} of {config.iterations}, seed {config.seed}",
        "panel": f"{config.eval.n or 'all, at most 128,'} tasks of the split `{config.eval.split}`, panel seed {config.eval.seed}, "
        f"temperature {config.eval.temperature:g}, attempts at each: {config.eval.repeats}",
        "result": result,
        "recipe": f"`{RECIPE}`, hash {content_hash(config)}",
        "Turnwise": VERSION,
    }
    code = sorted({Path(name).name for name in code_in(config.model_dump(mode="json"))})
    return "\n".join(
        [
            "---",
            *(f"{key}: {json.dumps(value)}" for key, value in front.items() if value is not None),
            "---",
            f"# {config.name}",
            "",
            "An agent for tasks of several turns, trained by reinforcement learning with Turnwise.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {key} | {value} |" for key, value in facts.items()),
            "",
            "To train it again:",
            "",
            f"    turnwise train {RECIPE}",
            *(["", f"The recipe names code that is not in this repository: {', '.join(code)}."] if code else []),
            "",
        ]
    )


def _without_folders(value: Any) -> Any:
    """Of a path on this machine the last part; in other texts `~` for the home folder."""
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    if not isinstance(value, str):
        return value
    parts = Path(value).expanduser().parts
    if len(parts) > 2 and Path(value).expanduser().is_absolute() and Path(*parts[:2]).exists():
        return parts[-1]
    return re.sub(rf"{re.escape(str(Path.home()))}(?=[/\\])", "~", value)


def _licence(folder: Path) -> str | None:
    """The licence that the card of a model states."""
    from huggingface_hub import ModelCard

    try:
        stated = ModelCard.load(folder / CARD).data.license
    except (OSError, ValueError):
        return None
    return stated if isinstance(stated, str) else None
