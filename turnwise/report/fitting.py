"""What `turnwise fit` shows: a table of the memory by term and phase, what would make the recipe fit, and the same as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from turnwise.setup.fit_words import ESTIMATE, cost, fixed_settings, instead, is_near, keys, opened, optional_bytes, words
from turnwise.util.console import Console
from turnwise.util.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnwise.setup.fit import Found

GB = 10**9
PHASES = {
    "start": "start",
    "collect": "collecting",
    "learn": "forward,\nbackward",
    "step": "optimiser\nstep",
    "publish": "publishing\nweights",
}


def show(found: Found, name: str) -> None:
    """The memory of a recipe on one GPU."""
    console, fit = Console(wide=120), found.fit
    limit = f"{fit.memory / GB:g} GB"
    if not fit.changed:
        console.print(table(found, f"{name}, model {found.shape.name}, on a GPU with {limit}, in GB"))
        console.print(Text(_verdict(found)), soft_wrap=True)
        return
    console.print(Text(f"As it is, {name} would need about {found.plain.peak / GB:.1f} GB and does not fit into {limit}."), soft_wrap=True)
    console.print(Text("What would make it fit:" if fit.fits else "The most that can be saved:"), soft_wrap=True)
    console.print(choices(found))
    console.print(table(found, f"With these settings, model {found.shape.name}, in GB"))
    console.print(Text(_verdict(found)), soft_wrap=True)


def table(found: Found, title: str) -> Table:
    """Gigabytes by term and phase; the largest sum is the peak."""
    shown = Table(title=title, title_justify="left", box=None)
    shown.add_column("", no_wrap=True)
    for head in PHASES.values():
        shown.add_column(head, justify="right", no_wrap=True)
    for term in found.fit.terms:
        shown.add_row(term.name, *(_number(term.bytes.get(phase, 0)) for phase in PHASES))
    sums = found.fit.totals
    most = max(sums.values())
    shown.add_row("in all", *(f"{'*' if sums[phase] == most else ''}{_number(sums[phase])}" for phase in PHASES))
    return shown


def choices(found: Found) -> Table:
    """One row per setting: what, how it is typed, and what it costs."""
    shown = Table(box=None, show_header=True, padding=(0, 2, 0, 0))
    for head in ("", "setting", "estimated cost"):
        shown.add_column(head, overflow="fold", no_wrap=head == "setting")  # it is copied from here
    for name in found.fit.changed:
        shown.add_row(words(name, found), keys(name, found) or "(decided as it runs)", cost(name, found).words)
    return shown


def _verdict(found: Found) -> str:
    fit = found.fit
    state = "It fits" if fit.fits else "It does not fit"
    first = f"{state}: the peak is {fit.peak / GB:.1f} of {fit.memory / GB:g} GB, in the phase with a star. {_slopes(found)}{ESTIMATE}."
    notes = _notes(found)
    if is_near(fit):
        notes.append("`turnwise train` would try it nevertheless: the estimate may be off by 5 %.")
    if (fixed := fixed_settings(found)) and not (fit.fits and not fit.changed):
        notes.append(_fixed(fixed))
    if not fit.fits:
        notes.append(f"{'Or use' if fixed else 'Use'} {instead(found)}.")
    return "\n".join((first, *notes))


def _notes(found: Found) -> list[str]:
    """What a reader of the numbers has to know."""
    notes = []
    if found.engine != found.config.engine.name:
        notes.append(
            f"The {found.config.engine.name} engine does not take models of the family {found.shape.family}: {found.engine} serves it."
        )
    if found.shape.vision:
        notes.append("The model's vision part is not counted: its weights take as many bytes each as the others, and images activations.")
    if found.config.cluster is not None:
        notes.append(
            "The recipe has a [cluster] section. This is learner, engine and cache on one GPU; a cluster divides them among several."
        )
    return notes


def _slopes(found: Found) -> str:
    """What the learner takes because there is room, and would do without."""
    size = optional_bytes(found.fit.demand)
    return f"{size / GB:.1f} GB of slopes of log-probs are optional: they are kept because there is room. " if size >= 5 * 10**7 else ""


def _fixed(fixed: list[str]) -> str:
    return f"The recipe sets {', '.join(fixed)}; such settings are never changed. To leave them open: {', '.join(opened(fixed))}."


def _number(size: int) -> str:
    return f"{size / GB:.2f}" if size >= 5_000_000 else "" if size == 0 else "0.00"


def overview(several: Sequence[Found], name: str) -> None:
    """One line per size of a GPU."""
    shown = Table(title=f"{name}, model {several[0].shape.name}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for head in ("GPU", "peak, GB", "fits", "what is chosen"):
        shown.add_column(head, overflow="fold")
    for found in several:
        chosen = ", ".join(LABELS[one] for one in found.fit.changed) or "nothing: as it is"
        shown.add_row(f"{found.fit.memory / GB:g} GB", f"{found.fit.peak / GB:.1f}", "yes" if found.fit.fits else "no", chosen)
    console = Console(wide=120)
    console.print(shown)
    for note in _notes(several[0]):
        console.print(Text(note), soft_wrap=True)
    if (fixed := fixed_settings(several[0])) and not all(found.fit.fits for found in several):
        console.print(Text(_fixed(fixed)), soft_wrap=True)
    console.print(Text("One of them in detail: --memory GB."), soft_wrap=True)


LABELS = {
    "prefill": "fewer prompt tokens at once",
    "cache": "cache size",
    "tokens": "fewer tokens at once",
    "recompute": "recomputation",
    "sleep": "cache released during updates",
    "reference": "reference in host memory",
    "moments": "8-bit moments",
    "place": "optimiser in host memory",
    "lora": "adapters",
    "four_bit": "4-bit weights",
}


def as_data(found: Found) -> dict[str, Any]:
    """The same as plain values."""
    fit = found.fit
    return {
        "model": found.shape.name,
        "engine": found.engine,
        "parameters": found.shape.parameters,
        "memory_gb": fit.memory / GB,
        "fits": fit.fits,
        "peak_gb": round(fit.peak / GB, 3),
        "as_it_is_gb": round(found.plain.peak / GB, 3),
        "terms_gb": {term.name: {phase: round(size / GB, 4) for phase, size in term.bytes.items()} for term in fit.terms},
        "keeps_slopes": fit.demand.slopes,
        "phases_gb": {phase: round(size / GB, 3) for phase, size in fit.totals.items()},
        "choices": [
            {"what": words(name, found), "setting": keys(name, found), "estimated_cost": cost(name, found).words} for name in fit.changed
        ],
        "settings": found.settings,
        "estimate": True,
    }


def print_json(several: Sequence[Found]) -> None:
    """All of it as JSON: one object, or a list for several GPUs."""
    data = [as_data(found) for found in several]
    say(json.dumps(data[0] if len(data) == 1 else data, indent=1))
