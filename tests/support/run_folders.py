"""Run folders as training leaves them, written by hand: what comparisons read, without training anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, to_toml


def write_run(
    out: Path,
    name: str,
    curve: Mapping[int, Sequence[bool]],
    finished: bool = True,
    panel: Mapping[str, Any] | None = None,
    keep_evals: bool = True,
    **changes: Any,
) -> Path:
    """A run whose evaluations came out as `curve` says: iteration → success of every attempt, in the panel's order."""
    config = Config.load(None, {"iterations": 20, "model.tiny.max_length": 4096, "name": name, "out": str(out), **changes})
    folder = out / name
    (folder / "evals").mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(config))
    lines = []
    for iteration in range(max(curve) + 1):
        line: dict[str, Any] = {"iteration": iteration}
        work = {"time/iteration": 2.0, "collect/turns": 100.0, "collect/response_tokens": 1000.0}
        line |= work if iteration else {"time/eval": 4.0, "time/sft": 3.0}
        if iteration in curve:
            won = curve[iteration]
            line["eval/success"] = sum(won) / len(won)
            if keep_evals:
                record = evaluation(config, won, panel or {}) | {"iteration": iteration}
                (folder / "evals" / f"{iteration:06d}.json").write_text(json.dumps(record))
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if finished:
        (folder / "summary.json").write_text(json.dumps({"finished": True, "config_hash": content_hash(config)}))
    return folder


def evaluation(config: Config, won: Sequence[bool], changed: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's record, as a run and `turnwise eval --save` write it."""
    repeats = int(changed.get("repeats", 1))
    outcomes = [
        {"task": f"task-{i // repeats}", "success": bool(w), "reward": float(w), "turns": 3, "stop": "done"} for i, w in enumerate(won)
    ]
    return {
        "split": "valid",
        "seed": 0,
        "temperature": 0.4,
        "max_turns": 10,
        "success": sum(won) / len(won),
        "panel_hash": "ab" * 16,
        "panel_size": len(won) // repeats,
        "repeats": repeats,
        "outcomes": outcomes,
    } | dict(changed)
