"""The end of a run in a few lines: before and after, the paths of its files, what to try next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.recipe.schema import Config
from turnwise.report.progress import duration
from turnwise.runs.folder import Run
from turnwise.setup.state import State
from turnwise.util.printable import counted, printable


def summarise_run(metrics: Sequence[Mapping[str, Any]], state: State, config: Config, run: Run, panel: int) -> dict[str, Any]:
    """What summary.json holds. "After" means: after the last update that the run has made. If no evaluation was made there, it is empty,
    and `last_evaluation` says when the last one was."""
    measured = {int(line.get("iteration", 0)): line for line in metrics if "eval/success" in line}
    updates = config.iterations > 0  # a run without updates has nothing before them, only the result of its warm start
    before = measured.get(0, {}) if updates else {}
    after = measured.get(state.iteration, {}) if state.iteration or not updates else {}
    last = measured[max(measured)] if measured else {}
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
        "last_evaluation": {"iteration": last.get("iteration"), "success": last.get("eval/success")},
        "panel_size": panel,
        "train_seconds": round(state.seconds, 1),
        "turns": state.turns,
    }


def closing_words(summary: Mapping[str, Any], run: Run) -> list[str]:
    """The lines that the terminal shows at the end."""
    return [
        success_words(summary),
        f"{counted(summary['iterations'], 'iteration')}, {counted(summary['turns'], 'turn')}, "
        f"{duration(summary['train_seconds'])} of training.",
        f"Everything is in {run.folder}: model/ (the trained model), metrics.jsonl, rollouts/, summary.json.",
    ]


def success_words(summary: Mapping[str, Any]) -> str:
    """The line about success."""
    return f"Success on {counted(summary['panel_size'], 'held-out task')}: {measured_words(summary)}."


def measured_words(summary: Mapping[str, Any]) -> str:
    """What was measured, and when: never an older figure as the newest."""

    def figure(part: str) -> str:
        return f"{100 * summary[f'success_{part}']:.1f} %"

    updates, (low, high) = summary["iterations"], summary["interval_after"]
    interval = f" (95 % interval {100 * low:.0f}–{100 * high:.0f} %)" if low is not None else ""
    last = summary.get("last_evaluation") or {}
    words = [f"{figure('before')} before"] if summary["success_before"] is not None else []
    if summary["success_after"] is not None:
        words.append(figure("after") + (" after" if updates else "") + interval)
    elif last.get("iteration"):
        words.append(f"{100 * last['success']:.1f} % after iteration {last['iteration']}, not measured after the last one ({updates})")
    else:
        words.append(f"not measured after the last iteration ({updates})" if updates else "not measured yet")
    return ", ".join(words)


def in_words(trajectory: Mapping[str, Any], width: int = 200) -> list[str]:
    """A trajectory as lines of printable text, whatever a model or an environment put into it."""
    word = "solved" if trajectory["success"] else f"not solved ({trajectory['stop']})"
    lines = [f"{trajectory['task']}: {word} in {counted(len(trajectory['turns']), 'turn')}"]
    for turn in trajectory["turns"]:
        seen, did = (" ".join(printable(str(turn[part])).split()) for part in ("observation", "action"))
        lines.append(f"    {seen[:width]}{'…' if len(seen) > width else ''}")
        lines.append(f"  > {did}" + ("" if turn["valid"] else "   (could not be parsed)"))
    return lines
