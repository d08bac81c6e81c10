"""A diagnosis as text for a terminal: what decides, what is wasted, where attempts part, and what so few attempts cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from turnwise.logs.findings import ANYTHING_ELSE, Choice, Diagnosis, Finding, Fork, Interval, Place
from turnwise.util.printable import counted

WIDEST = 100
SCOPES = {"task": "in one task", "equal": "in {tasks}, at equal states", "similar": "in {tasks}, at states that are alike"}  # of states
LOSES = {
    "state": "In this state: {where}",
    "result": "What this call returned: {where}",
    "tool": "Tool {where}",
    "error": "Error from {where}",
    "waste": "Waste: {where}",
}
GAINS = {"state": "all did the better", "result": "it never happened", "error": "it never happened"}


def diagnosis_text(diagnosis: Diagnosis, width: int = 80, top: int = 10, forks: int = 3) -> str:
    """The whole text. `top`: findings; `forks`: tasks whose fork is shown."""
    width = min(width, WIDEST)
    won = f"{diagnosis.won:,} won ({percent(diagnosis.won / max(1, diagnosis.attempts))})"
    lines = [f"{counted(diagnosis.attempts, 'attempt')} at {counted(diagnosis.tasks, 'task')}, {counted(diagnosis.turns, 'turn')}; {won}"]
    if diagnosis.outcome != "success":
        lines += _wrapped(f"Won means here: {diagnosis.outcome}.", width)
    lines += ["", "WHAT LOSES ATTEMPTS", ""]
    for number, finding in enumerate(diagnosis.findings[:top], start=1):
        lines += _finding(finding, number, width)
    compared = sum(diagnosis.compared.values())
    if not diagnosis.findings:
        lines += _wrapped(f"Nothing that chance does not explain, in {counted(compared, 'comparison')}.", width, "  ")
    else:
        more = f"{len(diagnosis.findings) - top} more with --top. " if len(diagnosis.findings) > top else ""
        note = f"{more}{counted(compared, 'comparison')}: the chance that any finding is mere chance is below {percent(diagnosis.level)}."
        lines += _wrapped(note, width, "  ")
    if any(waste.turns for waste in diagnosis.waste):
        lines += ["", "WASTED TURNS", ""]
    for waste in diagnosis.waste:
        if waste.turns:
            told = f"{counted(waste.turns, 'turn')}, {percent(waste.share.value)} of all ({_range(waste.share)})"
            lines += _wrapped(f"{waste.kind}: {told}. In {counted(waste.attempts, 'attempt')}; {waste.won:,} won.", width, "  ")
            lines += _wrapped(_places(waste.examples[:2]), width, "      ")
    if diagnosis.forks:
        lines += ["", "WHERE WON AND LOST ATTEMPTS PART", ""]
    for fork in diagnosis.forks[:forks]:
        lines += _fork(fork, width)
    if len(diagnosis.forks) > forks:
        lines.append(f"  … and {counted(len(diagnosis.forks) - forks, 'more task')}: --json has all of them")
    if diagnosis.unsaid:
        lines += ["", "WHAT IS NOT SAID", ""]
    for unsaid in diagnosis.unsaid:
        needs = f". At least about {counted(unsaid.attempts, 'attempt')} at each task would be needed" if unsaid.attempts else ""
        lines += _wrapped(f"- {unsaid.what}: {unsaid.why}{needs}.", width, "  ", "    ")
    return "\n".join(lines) + "\n"


def percent(share: float) -> str:
    """A share in percent, with a decimal if it is small."""
    return f"{100 * share:.0f} %" if share >= 0.095 or f"{100 * share:.1f}".endswith(".0") else f"{100 * share:.1f} %"


def _finding(finding: Finding, number: int, width: int) -> Iterator[str]:
    head = LOSES[finding.kind].format(where=_line(finding.where))
    yield from _wrapped(f"{number}. {head}", width, "  ", "     ")
    for mark, choice in (("✗", finding.worse), ("✓", finding.better)):
        yield from _wrapped(f"{mark} {_line(choice.text)}: {_won(choice)}", width, "     ", "       ")
        if choice.text == ANYTHING_ELSE:
            rest = [each for each in finding.choices if each.text not in (finding.worse.text, finding.better.text)][:3]
            yield from _wrapped("such as " + "; ".join(f"{_line(each.text)} ({_won(each)})" for each in rest), width, "       ")
    gain = f"{finding.gain.value:+.1f} tasks won per 100 attempts ({finding.gain.low:+.1f} to {finding.gain.high:+.1f})"
    gain += f" if {GAINS.get(finding.kind, 'none did it')}"
    scope = SCOPES[finding.scope] if finding.kind == "state" else "in {tasks}"
    yield from _wrapped(f"{gain}; {scope.format(tasks=counted(finding.tasks, 'task'))}, p = {finding.adjusted:.2g}.", width, "     ")
    yield from _wrapped(_places(finding.turns[:3]), width, "     ")
    yield ""


def _fork(fork: Fork, width: int) -> Iterator[str]:
    yield from _wrapped(f"{_line(str(fork.task))}, turn {fork.t + 1}", width, "  ")
    yield from _wrapped(f"saw: {_line(fork.where)}", width, "    ", "         ")
    for choice in fork.choices[:4]:
        yield from _wrapped(f"{_line(choice.text)}: {_won(choice)}", width, "      ", "        ")
    if len(fork.choices) > 4:
        yield f"      … and {counted(len(fork.choices) - 4, 'other choice')}"


def _won(choice: Choice) -> str:
    return f"{choice.won:,} of {counted(choice.attempts, 'attempt')} won"


def _places(places: Sequence[Place]) -> str:
    return "See " + ", ".join(f"{_line(str(place.trajectory), 60)} turn {place.t + 1}" for place in places) if places else ""


def _range(interval: Interval) -> str:
    return f"{percent(interval.low)} to {percent(interval.high)}"


def _line(text: str, longest: int = 240) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest // 2].rstrip()} … {text[-longest // 2 :].lstrip()}"


def _wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    return wrap(text, width, initial_indent=first, subsequent_indent=first if rest is None else rest, break_on_hyphens=False)
