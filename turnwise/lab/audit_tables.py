"""What `turnwise lab audit` shows: a table and a verdict per credit, one table for many, and the latter as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

COLUMNS = ("correlation", "pairs", "turns", "bias", "p", "cosine", "against", "variance")
HEADS = ("corr", "pairs", "turns", "bias", "p", "cosine", "against", "var")
LEGEND = (
    "corr: with the true advantage. pairs, turns: right signs of mean credit by state and action, of credit by turn (chance 0.5). bias: "
    "relative to the size of the truth; p: of no bias. cosine: expected gradient with the true one. against: share of visits that it moves "
    "the wrong way. var: of the gradient, GRPO = 1."
)
LOOK = {
    "repetition": " Look at the rows of repetition: how often states repeat decides what can be compared.",
    "luck": " Look at the rows of luck: chance after a turn is taken for its merit.",
    "horizon": " Look at the rows of horizon: a discount prefers short paths, and a state is worth less close to the time limit.",
    "stopping": " Look at the rows of stopping: a further turn has a hidden price or bonus.",
}
NEGLIGIBLE = 0.99  # of a cosine: the expected gradient turns by 8 degrees
Numbers = Mapping[str, Any]


def one(result: Numbers, label: str) -> Group:
    """The numbers of one credit by problem, what it is compared with, and the verdict."""
    numbers, rows = result["methods"][label], result["settings"]["rows"]
    table = _table(label, HEADS)
    before = ""
    for question, level, problem in rows:
        if question != before:
            table.add_row(Text(question, style="bold"))
        before = question
        table.add_row(f"  {level}" if question else level, *cells(numbers["problems"][problem]))
    compared = _table("mean over problems", HEADS)
    for name, problems in {label: numbers["problems"], **result["references"], **numbers["controls"]}.items():
        compared.add_row(Text(name, style="bold" if name == label else ""), *cells(average(list(problems.values()))))
    return Group(table, compared, Text(LEGEND, style="dim"), Text(f"\n{verdict(result, label)}"))


def many(result: Numbers) -> Group:
    """One line per credit: means over problems, the worst problem, the number of problems with a bias."""
    table = _table("mean over problems", SUMMARY)
    for line in summary(result):
        table.add_row(*line)
    return Group(table, Text(f"{LEGEND} worst: the smallest cosine. biased: problems with p < 0.05, by Holm.", style="dim"))


SUMMARY = ("corr", "pairs", "cosine", "worst", "where", "biased", "var")


def summary(result: Numbers) -> Iterator[list[str]]:
    """The lines of the table of many, the highest correlation first."""
    methods, names = result["methods"], row_names(result)
    means = {label: average(list(numbers["problems"].values())) for label, numbers in methods.items()}
    for label in sorted(methods, key=lambda name: (-(means[name]["correlation"] or 0.0), name)):
        problems, mean = methods[label]["problems"], dict(zip(COLUMNS, cells(means[label]), strict=True))
        worst = worst_of(problems, problems)
        cosine = problems[worst]["cosine"]["mean"] if worst else None
        least = (number(cosine), names[worst] if worst and number(cosine) != "1.00" else "–")
        biased = f"{len(methods[label]['biased'])}/{len(problems)}"
        yield [label, mean["correlation"], mean["pairs"], mean["cosine"], *least, biased, mean["variance"]]


def row_names(result: Numbers) -> dict[str, str]:
    return {problem: f"{question} {level}".strip() for question, level, problem in reversed(result["settings"]["rows"])}


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True)
    table.add_column(Text(title), min_width=24 if heads is SUMMARY else 22, overflow="fold")
    for head in heads:
        table.add_column(head, justify="left" if head == "where" else "right", no_wrap=True)
    return table


def cells(numbers: Numbers) -> list[str]:
    return [number(value(numbers, name), 3 if name == "p" else 2) for name in COLUMNS]


def value(numbers: Numbers, name: str) -> float | None:
    """A number, or the mean of an interval. The bias of a credit without an expected gradient is left out."""
    mean: float | None = numbers[name]["mean"] if isinstance(numbers[name], Mapping) else numbers[name]
    return None if name == "bias" and value(numbers, "cosine") is None else mean


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{round(value, digits) + 0.0:.{digits}f}" if abs(value) < 100 else f"{value:.0f}"


def average(problems: Sequence[Numbers]) -> dict[str, float | None]:
    """Means over the problems that have a number. A variance is a ratio: its median. A p is not averaged."""
    known = {name: [number for one in problems if (number := value(one, name)) is not None] for name in COLUMNS}
    result: dict[str, float | None] = {name: fmean(column) if column else None for name, column in known.items()}
    return result | {"p": None, "variance": median(known["variance"]) if known["variance"] else None}


def worst_of(problems: Numbers, among: Iterable[str]) -> str | None:
    """The problem with the smallest cosine."""
    known = [name for name in among if problems[name]["cosine"]["mean"] is not None]
    return min(known, key=lambda name: problems[name]["cosine"]["mean"], default=None)


def verdict(result: Numbers, label: str) -> str:
    """In words: signal, bias and where to look, noise, and whether a placebo does as well."""
    audited, names = result["methods"][label], row_names(result)
    problems, total = audited["problems"], len(audited["problems"])
    silent = [name for name, one in problems.items() if (one["correlation"]["low"] or 0) <= 0]
    if len(silent) == total:
        opposite = all((one["correlation"]["high"] or 0) < 0 for one in problems.values())
        what = "is against the true advantage everywhere: is its sign right?" if opposite else "says nothing about the true advantage."
        return f"{label} {what} Its correlation is not above 0 on any of {total} problems."
    text = [f"{label}: {_bias(audited, names, result)}"]
    if silent:
        text.append(f"Its correlation is not above 0 on {len(silent)} of {total}: {', '.join(names[name] for name in silent)}.")
    noise = [one["variance"] for one in problems.values() if one["variance"] is not None]
    if noise:
        text.append(f"Its gradient has {median(noise):.2f} times GRPO's variance (median; {min(noise):.2f} to {max(noise):.2f}).")
    if (cost := max(one["samples"] for one in problems.values())) > 1:
        text.append(f"It takes up to {cost:.1f} turns of the environment per turn that gets credit.")
    return " ".join(text + list(_placebo(audited)))


def _bias(audited: Numbers, names: Mapping[str, str], result: Numbers) -> str:
    problems, biased = audited["problems"], audited["biased"]
    if not biased:
        return f"no bias was found on any of {len(problems)} problems (5 % over all of them)."
    worst, share = worst_of(problems, biased), f"biased on {len(biased)} of {len(problems)} problems"
    if worst is None:
        return f"{share}, and its expected gradient cannot be told from 0 there."
    cosine, against = problems[worst]["cosine"]["mean"], problems[worst]["against"]
    if cosine > NEGLIGIBLE:
        return f"{share}, by little: the expected gradient has a cosine of at least {cosine:.3f} with the true one."
    question = next(question for question, _, problem in result["settings"]["rows"] if problem == worst)
    wrong = f", and {against:.0%} of visits are moved the wrong way" if against else ""
    return f"{share}, most on {names[worst]}: cosine {cosine:.2f}{wrong}.{LOOK.get(question, '')}"


def _placebo(audited: Numbers) -> Iterator[str]:
    """Whether the credit without what it is built on is as close to the truth."""
    for name, what in (("random anchors", "comparing states"), ("omega = 0", "its step credit")):
        if problems := audited["controls"].get(name):
            own, other = (average(list(each.values()))["correlation"] or 0.0 for each in (audited["problems"], problems))
            if other >= own - 0.01:
                yield f"With {name} its correlation is {other:.2f} (its own: {own:.2f}): here it gains nothing by {what}."
