"""The end of a run in a few numbers and words: before and after, where everything lies, what to try next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.config import Config
from turnwise.report.progress import duration
from turnwise.runs import Run
from turnwise.state import State
from turnwise.terminal import plain


def summarise_run(metrics: Sequence[Mapping[str, Any]], state: State, config: Config, run: Run) -> dict[str, Any]:
    """What summary.json holds."""
    measured = [line for line in metrics if "eval/success" in line]
    before, after = (measured[0], measured[-1]) if measured else ({}, {})
    return {
        "name": config.name,
        "algorithm": config.credit.name,
        "environment": config.env.name,
        "seed": config.seed,
        "iterations": state.iteration,
        "success_before": before.get("eval/success"),
        "success_after": after.get("eval/success"),
        "interval_before": [before.get("eval/low"), before.get("eval/high")],
        "interval_after": [after.get("eval/low"), after.get("eval/high")],
        "turns_before": before.get("eval/turns"),
        "turns_after": after.get("eval/turns"),
        "panel_size": config.eval.n,
        "train_seconds": round(state.seconds, 1),
        "turns": state.turns,
    }


def closing_words(summary: Mapping[str, Any], run: Run) -> list[str]:
    """What the terminal says at the end."""

    def percent(key: str) -> str:
        value = summary.get(key)
        return "–" if value is None else f"{100 * value:.1f} %"

    low, high = summary["interval_after"]
    interval = f" (95 % interval {100 * low:.0f}–{100 * high:.0f} %)" if low is not None else ""
    then = f"{percent('success_before')} before, {percent('success_after')} after" if summary["iterations"] else percent("success_after")
    return [
        f"Success on {summary['panel_size']} held-out tasks: {then}{interval}.",
        f"{summary['iterations']} iterations, {summary['turns']} turns, {duration(summary['train_seconds'])} of training.",
        f"Everything lies in {run.folder}: model/ (the trained model), metrics.jsonl, rollouts/, summary.json.",
    ]


def in_words(trajectory: Mapping[str, Any], width: int = 200) -> list[str]:
    """A trajectory as lines of text, whatever a model or an environment put into it."""
    word = "solved" if trajectory["success"] else f"not solved ({trajectory['stop']})"
    lines = [f"{trajectory['task']}: {word} in {len(trajectory['turns'])} turns"]
    for turn in trajectory["turns"]:
        seen, did = (" ".join(plain(str(turn[part])).split()) for part in ("observation", "action"))
        lines.append(f"    {seen[:width]}{'…' if len(seen) > width else ''}")
        lines.append(f"  > {did}" + ("" if turn["valid"] else "   (could not be parsed)"))
    return lines
