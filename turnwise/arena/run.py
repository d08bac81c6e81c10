"""Running an arena: first the runs that choose settings, then the final ones. Each is a run folder in a process of its own, as in a sweep,
and leaves a card. What is finished is skipped, what was interrupted goes on where it was.

    OUT/arena.json      the file's hash, with which every card was made
    OUT/runs/           run folders            OUT/cards/      a card per run: all that the report reads

Several machines share the work: each takes a part of the cells, and their cards are copied into one folder. A final cell waits for the
tuning of its method, so tuning has to be complete, or its cards present, on every machine that makes final runs.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from turnwise.arena.card import ENDING, Card, card_of, headline, read_all, write
from turnwise.arena.forked import Forked
from turnwise.arena.plan import Arena, Cell
from turnwise.arena.settings import ArenaSettings
from turnwise.evaluation.sweep import Job, Sweep, inspect, spawned
from turnwise.runs.folder import ARENA, read_facts
from turnwise.setup.early import check_trainable, look
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically
from turnwise.util.seeds import derive

Chosen = dict[tuple[str, str], int]  # by environment and method: the trial that tuning has chosen
Say = Callable[[str], None]
Tell = Callable[[Job], None]


@dataclass(frozen=True)
class Part:
    """Which cells this machine runs: number `index` of `count` equal parts, chosen by the cells' names."""

    index: int = 0
    count: int = 1

    @classmethod
    def read(cls, text: str) -> Part:
        """The second of four parts is written as 2/4."""
        index, _, count = text.partition("/")
        if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
            raise TurnwiseError(f"a part is written as 2/4, the second of four, not {text!r}")
        return cls(int(index) - 1, int(count))

    def has(self, cell: Cell) -> bool:
        return derive(0, "arena part", cell.name) % self.count == self.index


@dataclass
class Progress:
    """What `run` has done."""

    finished: int = 0
    failed: int = 0
    left: list[str] = field(default_factory=list)
    exit_code: int = 0


def bind(arena: Arena, out: Path) -> None:
    """Cards of one folder belong to one arena: another file, or an edited one, needs another folder."""
    known = read_facts(out, ARENA).get("hash")
    if known not in (None, arena.hash):
        raise TurnwiseError(
            f"{out} has results of an arena with the hash {known}, and this file has {arena.hash}: it was changed after runs were made. "
            "Take the former file, or another --out"
        )
    if known is None:
        facts = {"name": arena.name, "hash": arena.hash, "settings": arena.settings.model_dump(mode="json")}
        write_text_atomically(out / ARENA, json.dumps(facts, indent=2) + "\n")


def arena_of(out: Path) -> Arena:
    """The arena whose runs or cards a folder holds."""
    facts = read_facts(out, ARENA)
    if not isinstance(facts.get("settings"), dict):
        raise TurnwiseError(f"{out / ARENA} is missing or damaged: turnwise arena run writes it")
    try:
        return Arena(str(facts.get("name")), out, ArenaSettings.model_validate(facts["settings"]))
    except ValidationError:
        raise TurnwiseError(f"{out / ARENA} was written by another version of Turnwise: take that version, or run again") from None


def cards_in(out: Path) -> dict[str, Card]:
    """All cards of a folder, by the name of their cell."""
    folder = out / "cards"
    return read_all([folder]) if folder.is_dir() else {}


def choose(arena: Arena, cards: Mapping[str, Card]) -> Chosen:
    """The trial of each method and environment with the best mean success over the tuning seeds, within the budget of attempts; of equal
    ones the earliest. Only methods whose tuning is complete are in it."""
    scores: dict[tuple[str, str], dict[int, list[float]]] = {}
    incomplete = set()
    for cell in arena.tuning_cells():
        key = cell.environment, cell.method
        if cell.name not in cards:
            incomplete.add(key)
        else:
            within = headline(cards[cell.name], arena.attempts(cell.environment))
            scores.setdefault(key, {}).setdefault(cell.trial, []).append(within["success"])
    return {
        key: max(trials, key=lambda trial: (math.fsum(trials[trial]) / len(trials[trial]), -trial))
        for key, trials in scores.items()
        if key not in incomplete
    }


def run(
    arena: Arena,
    out: Path,
    *,
    at_once: int = 1,
    threads: int | None = 1,
    part: Part = Part(),
    only: str | None = None,
    tell: Tell = lambda job: None,
    say: Say = lambda text: None,
) -> Progress:
    """Run what is missing: `at_once` processes at a time, with `threads` each. `only`: cells whose name contains all of these words."""
    bind(arena, out)
    progress = Progress()
    for stage in ("tuning", "final"):
        cards = cards_in(out)
        chosen = choose(arena, cards)
        missing = [cell for cell in _cells(arena, stage, chosen) if cell.name not in cards]
        tuned = [cell for cell in missing if cell.tuning or arena.is_tuned(cell, chosen)]
        mine = [cell for cell in tuned if part.has(cell) and all(word in cell.name for word in (only or "").split())]
        waiting = f"; {len(missing) - len(tuned)} wait for the tuning of their method" if len(tuned) < len(missing) else ""
        say(f"{stage}: {len(mine)} runs to do here, {len(missing)} missing in all{waiting}")
        _run_cells(arena, out, mine, at_once, threads, progress, tell, say)
        progress.left += [cell.name for cell in missing if not (out / "cards" / f"{cell.name}{ENDING}").is_file()]
        if progress.exit_code:
            break
    return progress


def again(
    arena: Arena,
    published: Mapping[str, Card],
    out: Path,
    *,
    at_once: int = 1,
    threads: int | None = 1,
    tell: Tell = lambda job: None,
    say: Say = lambda text: None,
) -> dict[str, tuple[Card, Card | None]]:
    """Run the cells of published cards again, each with the settings that its card names. By name, the published card and the new one; none
    where the run was interrupted."""
    bind(arena, out)
    made = cards_in(out)
    cells = [cell_of(arena, name, card) for name, card in published.items() if name not in made]
    _run_cells(arena, out, cells, at_once, threads, Progress(), tell, say)
    made = cards_in(out)
    return {name: (card, made.get(name)) for name, card in published.items()}


def cell_of(arena: Arena, name: str, card: Card) -> Cell:
    """The cell that a card belongs to."""
    about = card["about"]
    if about.get("arena_hash") != arena.hash:
        raise TurnwiseError(
            f"{name}: its card was made with another arena file, of the hash {about.get('arena_hash')}; this has {arena.hash}"
        )
    cell = Cell(about.get("environment", ""), about.get("method", ""), card["seed"], about.get("trial", 0), bool(about.get("tuning")))
    if cell.name != name:
        raise TurnwiseError(f"{name}: its card is that of another run, or was edited")
    return cell


def _cells(arena: Arena, stage: str, chosen: Chosen) -> Iterable[Cell]:
    return arena.tuning_cells() if stage == "tuning" else arena.final_cells(chosen)


def _run_cells(
    arena: Arena,
    out: Path,
    cells: Sequence[Cell],
    at_once: int,
    threads: int | None,
    progress: Progress,
    tell: Callable[[Job], None],
    say: Say,
) -> None:
    """A sweep over these cells; each leaves its card as soon as it has ended."""
    jobs, by_name = [], {cell.name: cell for cell in cells}
    for cell in cells:
        config = arena.config(cell, out / "runs").trusted()
        check_trainable(config, runs=False)
        look(config)
        job = Job(cell.name, out / "runs" / cell.name, {}, config)
        inspect(job)
        jobs.append(job)

    def note(job: Job) -> None:
        tell(job)
        if job.state in ("finished", "failed"):
            keep_card(arena, by_name[job.name], job.folder, out, job.state, job.message)
            progress.finished += job.state == "finished"
            progress.failed += job.state == "failed"

    for job in jobs:
        if job.state == "finished":
            note(job)
    copied = sys.platform == "linux" and all(job.config.device == "cpu" for job in jobs)
    start = Forked if copied else spawned
    sweep = Sweep(out / "runs", [job for job in jobs if job.state != "finished"], at_once, threads, note, say, start)
    if sweep.jobs:
        sweep.run()
        progress.exit_code = 130 if sweep.exit_code == 130 else progress.exit_code


def keep_card(arena: Arena, cell: Cell, folder: Path, out: Path, ended: str, message: str = "") -> Path:
    """Write the card of a run that has ended, whatever way."""
    about = {
        "arena": arena.name,
        "arena_hash": arena.hash,
        "environment": cell.environment,
        "method": cell.method,
        "control": arena.is_control(cell.method),
        "tuning": cell.tuning,
        "trial": cell.trial,
    }
    return write(card_of(folder, ended, message, about), out / "cards" / f"{cell.name}{ENDING}")
