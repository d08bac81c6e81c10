"""The end of a training run on the terminal."""

from __future__ import annotations

from rich.text import Text

from turnwise.report.curve import draw_curve
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
