"""One lab run: settings in, one dictionary of results out, files written from it.

The results contain no times and no names of machines: the same settings give the same file, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnwise.lab.lines import Line, choose
from turnwise.lab.problems import DEFAULT, make
from turnwise.lab.study import Case, make_case, measure_case, recurrence_of
from turnwise.lab.training import Schedule, train_case
from turnwise.util.errors import MissingExtra, TurnwiseError
from turnwise.util.files import write_text_atomically
from turnwise.util.version import VERSION

FORMAT = 3


@dataclass(frozen=True)
class Settings:
    """What a lab run does. `problems` and `algos` are lists of names with options (`grid:size=4`, `gigpo:once=true`), None the default set.

    seeds: batches for each measurement; a quarter of them (at least two) are the seeds of the learning curves. budget: trajectories per
    batch, whatever the group size. skill: of the policy whose credit is measured and with which training starts."""

    problems: Sequence[str] | None = None
    algos: Sequence[str] | None = None
    group_sizes: Sequence[int] = (2, 4, 8, 16, 32)
    seeds: int = 16
    seed: int = 0
    budget: int = 128
    skill: float = 0.2
    iterations: int = 45

    @property
    def shown_size(self) -> int:
        """The group size of tables: 8, or the nearest one."""
        return min(self.group_sizes, key=lambda size: (abs(size - 8), size))

    @property
    def training_seeds(self) -> int:
        return max(2, self.seeds // 4)

    def check(self) -> Settings:
        for name, low, high in (("seeds", 2, 10_000), ("seed", 0, 2**63 - 1), ("budget", 2, 65_536), ("iterations", 0, 100_000)):
            _check_whole(name, getattr(self, name), low, high)
        if not self.group_sizes:
            raise TurnwiseError("group_sizes is empty: give at least one, as in 2,8,32")
        for size in self.group_sizes:
            _check_whole("group size", size, 2, 4096)
        for name in ("problems", "algos", "group_sizes"):
            given = getattr(self, name)
            if given is not None and len(set(given)) != len(given):
                raise TurnwiseError(f"{name}: each may be named once, got {', '.join(map(str, given))}")
        return self


QUICK = {"group_sizes": (2, 8), "seeds": 6, "iterations": 20}


def _check_whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise TurnwiseError(f"{name} takes an integer in [{low}, {high}], not {value!r}")


def run(settings: Settings | None = None) -> dict[str, Any]:
    """Everything: measurements and learning curves."""
    settings = (settings or Settings()).check()
    cases, lines = read_cases(settings), choose(settings.algos)
    seeds, seed = settings.seeds, settings.seed
    schedule = Schedule(iterations=settings.iterations)
    result = _header(settings, cases, lines) | {"credit": {}, "learning": {}}
    for case in cases:
        result["credit"][case.label] = measure_case(case, lines, settings.group_sizes, settings.budget, seeds, seed)
        if settings.iterations:
            result["learning"][case.label] = train_case(case, lines, settings.training_seeds, seed, schedule)
    return {name: rounded(part) for name, part in result.items()}


def read_cases(settings: Settings) -> list[Case]:
    names = DEFAULT if settings.problems is None else settings.problems
    if not names:
        raise TurnwiseError("no lab problem is chosen")
    return [make_case(name, make(name), settings.skill) for name in names]


def _header(settings: Settings, cases: Sequence[Case], lines: Sequence[Line]) -> dict[str, Any]:
    shown = (settings.shown_size, settings.budget, settings.seeds, settings.seed)
    described = {
        case.label: {
            "states": case.problem.states,
            "actions": case.problem.actions,
            "horizon": case.problem.horizon,
            "anchors": recurrence_of(case, *shown),
        }
        for case in cases
    }
    named = [
        {"label": line.label, "algorithm": line.name, "options": dict(line.options), "critic": line.critic, "bound": line.is_bound}
        for line in lines
    ]
    kept = {**asdict(settings), "shown_size": settings.shown_size, "training_seeds": settings.training_seeds}
    kept["schedule"] = asdict(Schedule(iterations=settings.iterations))
    return {"format": FORMAT, "turnwise": VERSION, "settings": kept, "problems": described, "lines": named}


def rounded(value: Any) -> Any:
    """Floats to seven significant digits: the last bits of a sum differ between processors and carry no information."""
    if isinstance(value, float):
        return float(f"{value:.7g}") + 0.0
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def write(result: dict[str, Any], folder: str | Path) -> tuple[list[Path], str]:
    """The JSON file and the pictures in `folder`; the files, and a note if pictures could not be drawn."""
    folder = Path(folder)
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    files = [write_text_atomically(folder / "lab.json", text)]
    try:
        from turnwise.lab.pictures import draw_all

        return files + draw_all(result, folder), ""
    except MissingExtra as missing:
        return files, str(missing)
