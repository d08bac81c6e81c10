"""The end of a training run and the result of an evaluation on the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from turnwise.collect.panel import Evaluation, Share
from turnwise.report.curves import draw_curve
from turnwise.report.summary import closing_words, in_words
from turnwise.runs.folder import CONFIG, Run
from turnwise.runs.result import Result
from turnwise.util.console import Console
from turnwise.util.errors import MissingExtra
from turnwise.util.terminal import command


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
    other = compared_with(result.summary["algorithm"])
    folder, again = str(run.folder), ["train", str(run.folder / CONFIG), f"credit.name={other}"]
    for words, why in ((["view", folder], "view it"), (["eval", folder], "evaluate it again"), (again, f"the same with {other}")):
        console.print(Text(f"Next: {command(*words)}   ({why})"), soft_wrap=True)


def compared_with(name: str) -> str:
    """Another algorithm to try: the default of recipes or, for that one, the most similar algorithm that compares whole attempts."""
    from turnwise.credit import algorithms
    from turnwise.methods.settings import CREDIT

    if name != CREDIT:
        return CREDIT
    usual = {option.name: option.default for option in algorithms[CREDIT].options.values()}
    whole = [entry for entry in algorithms if set(entry.parts) == {"episode"}]
    alike = [sum(usual.get(option.name) == option.default for option in entry.options.values()) for entry in whole]
    return whole[alike.index(max(alike))].name if whole else CREDIT


def show_evaluation(console: Console, result: Evaluation) -> None:
    """The result as a short table."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    if trials := result.settings.get("trials"):
        for each in trials:
            table.add_row(f"success within {each['trial']}", str(Share(round(each["success"] * each["n"]), each["n"])))
        table.add_row("", "only the first row is one attempt per task; later rows use the environment's verdict on earlier attempts")
    else:
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
