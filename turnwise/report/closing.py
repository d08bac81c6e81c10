"""The end of a run: what summary.json holds, before and after in words, and what to try next; and the result of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from turnwise.collect.panel import Evaluation
from turnwise.methods.settings import CREDIT
from turnwise.recipe.schema import Config
from turnwise.report.curves import draw_curve
from turnwise.report.progress import duration
from turnwise.runs.folder import CONFIG, Result, Run
from turnwise.util.console import Console
from turnwise.util.errors import MissingExtra
from turnwise.util.printable import counted, printable
from turnwise.util.terminal import command

if TYPE_CHECKING:
    from turnwise.setup.state import State


def summarise_run(metrics: Sequence[Mapping[str, Any]], state: State, config: Config, panel: int) -> dict[str, Any]:
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


def finish(console: Console, run: Run, result: Result) -> None:
    """The end of a run: the curve, three trajectories as text, the summary, and what to try next."""
    try:
        picture = draw_curve(result.metrics, run.folder / "curve.png", f"{result.summary['name']}: {result.summary['algorithm']}")
    except MissingExtra as error:
        console.print(Text(str(error)))
        picture = None
    last = int(result.summary["iterations"])
    if (run.folder / "rollouts" / f"{last:06d}.jsonl.gz").exists():
        console.print(Text("\nThree attempts of the last iteration:"))
        played = run.trajectories(last)
        groups = [trajectory["group"] for trajectory in played]
        firsts = [groups.index(group) for group in dict.fromkeys(groups)]  # from different tasks, if there are three
        for number in [*firsts, *(other for other in range(len(played)) if other not in firsts)][:3]:
            for line in in_words(played[number]):
                console.print(Text(line), soft_wrap=True)
    console.print()
    for line in closing_words(result.summary, run):
        console.print(Text(line), soft_wrap=True)
    if picture is not None:
        console.print(Text(f"The curve: {picture}"), soft_wrap=True)
    other = CREDIT if result.summary["algorithm"] != CREDIT else "grpo"
    folder, again = str(run.folder), ["train", str(run.folder / CONFIG), f"credit.name={other}"]
    for words, why in ((["view", folder], "view it"), (["eval", folder], "evaluate it again"), (again, f"the same with {other}")):
        console.print(Text(f"Next: {command(*words)}   ({why})"), soft_wrap=True)


def show_evaluation(console: Console, result: Evaluation) -> None:
    """The result as a short table."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("success", str(result.success))
    for kind, share in result.by_type.items():
        table.add_row(f"  {kind}", str(share))
    if result.mean_of_types is not None:
        table.add_row("  mean of these", f"{100 * result.mean_of_types:.1f} %, each counted once")
    for name, mean in result.measures.items():
        table.add_row(name, f"{mean:.3f} on average")
    table.add_row("turns", f"{result.turns:.1f} on average")
    table.add_row("reward", f"{result.reward:.3f} on average")
    table.add_row("invalid turns", f"{100 * result.invalid:.1f} %")
    table.add_row("stopped by", ", ".join(f"{stop} {count}" for stop, count in result.stops.items()))
    again = f", each {result.repeats} times" if result.repeats > 1 else ""
    table.add_row("panel", f"{result.panel_size} tasks{again}, hash {result.panel_hash}")
    console.print(table)
