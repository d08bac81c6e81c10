"""One iteration's attempts for display: their tasks and outcomes, and the parts of every turn's credit.

`rollouts` are what was trained on, with the advantages that were trained with. `evals` are what an evaluation played; they have texts and
outcomes, and no credit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from turnwise import credit
from turnwise.config.references import is_reference
from turnwise.config.trust import unknown_code
from turnwise.credit.gigpo import visit_weights
from turnwise.credit.segments import episode_returns, segment_count, segment_sum, trajectory_groups
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.pages.packed import PackedLines
from turnwise.pages.run_list import readable
from turnwise.runs.folder import Run
from turnwise.util.errors import TurnwiseError

PARTS = ("rollouts", "evals")


@dataclass(frozen=True)
class States:
    """The anchor groups of a batch, and what a turn's return is compared with in its own."""

    of_turn: Ints
    returns: Floats  # of each turn, discounted
    score: Floats  # the same, minus the penalty of an invalid turn: what is compared
    gamma: float
    mean: Floats  # by state
    visits: Ints
    attempts: Ints
    compared: bool  # whether step credit comes from comparing these returns: an algorithm may compare something else


@dataclass(frozen=True, eq=False)
class Credit:
    """The credit of every turn, rows in order, and the parts that it is made of."""

    algorithm: str
    options: Mapping[str, Any]
    total: Floats | None
    problem: str
    parts: Mapping[str, tuple[Floats, float]] = field(default_factory=dict)  # each alone, and its weight in the sum

    @property
    def split(self) -> bool:
        """Whether the credit is a sum of several parts."""
        return len(self.parts) > 1

    @property
    def columns(self) -> dict[str, Floats]:
        """The credit and, if it is a sum, its parts, by name."""
        if self.total is None:
            return {}
        return {"credit": self.total} | ({name: column for name, (column, _) in self.parts.items()} if self.split else {})

    @cached_property
    def scales(self) -> dict[str, float]:
        """By column, the value of the strongest colour."""
        return {name: typical_size(column) for name, column in self.columns.items()}


class Batch:
    """The attempts of one iteration of a run."""

    def __init__(self, run: Run, part: str, iteration: int, algorithm: str, options: Mapping[str, Any]):
        self.part, self.iteration = part, iteration
        self.texts = PackedLines(texts_of(run, part, iteration))
        self._place = {readable(head.get("id")): number for number, head in enumerate(self.texts.heads)}
        self._algorithm, self._options = algorithm, dict(options)
        self._foreign = is_reference(algorithm) and bool(unknown_code(run.folder, {"name": algorithm}))
        self.problem = ""
        self.columns = self._load(run) if part == "rollouts" else None
        self.types = self._types(run)
        self.credit = self._credit()
        if self.columns is not None:  # only a few numbers per turn stay in memory
            self.columns = replace(self.columns, tokens=None, token_value=None, token_logprob=None, extra={}, token_extra={})

    def _load(self, run: Run) -> Rollouts | None:
        try:
            return Rollouts.load(run.file("rollouts", f"{self.iteration:06d}.npz")).in_order()
        except TurnwiseError as error:
            self.problem = str(error)
            return None

    def _types(self, run: Run) -> list[Any]:
        """The type of each attempt's task: an evaluation says it; a training task has the type of an evaluated one with which its id
        begins, the longest if there are several."""
        try:
            evaluated = run.evaluation(self.iteration if self.part == "evals" else (run.iterations_of("evals") or [-1])[0])
        except TurnwiseError as error:
            self.problem = self.problem or (str(error) if self.part == "evals" else "")
            return [None] * len(self.texts)
        outcomes = evaluated.get("outcomes", [])
        if self.part == "evals" and len(outcomes) == len(self.texts) and any("type" in outcome for outcome in outcomes):
            return [outcome.get("type") for outcome in outcomes]
        kinds = sorted(map(str, evaluated.get("by_type", {})), key=len, reverse=True)
        tasks = [readable(head.get("task", "")) for head in self.texts.heads]
        return [next((kind for kind in kinds if task.startswith(kind)), None) for task in tasks]

    @cached_property
    def ordinals(self) -> list[tuple[int, int]]:
        """By line: the attempt's number among the attempts at its task, from 1, and how many they are."""
        groups = [readable(head.get("group")) for head in self.texts.heads]
        sizes, seen, ordinals = Counter(groups), Counter[str](), []
        for group in groups:
            seen[group] += 1
            ordinals.append((seen[group], sizes[group]))
        return ordinals

    def number(self, attempt: str) -> int:
        """Which line holds the attempt of that id."""
        if attempt not in self._place:
            raise TurnwiseError(f"iteration {self.iteration} has no attempt {attempt!r} among its {self.part}")
        return self._place[attempt]

    def members(self, group: str) -> list[int]:
        """The lines of a group."""
        numbers = [number for number, head in enumerate(self.texts.heads) if readable(head.get("group")) == group]
        if not numbers:
            raise TurnwiseError(f"iteration {self.iteration} has no group {group!r} among its {self.part}")
        return numbers

    @cached_property
    def _rows(self) -> dict[str, slice]:
        """The rows of each attempt's turns in the columns."""
        if self.columns is None:
            return {}
        code = self.columns.trajectory
        starts = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]])).tolist()
        ends = [*starts[1:], len(code)]
        labels = self.columns.trajectory_labels.tolist()
        return {readable(labels[code[start]]): slice(start, end) for start, end in zip(starts, ends, strict=True)}

    def rows(self, attempt: str) -> slice:
        """The rows of an attempt; empty if it has no turns or no columns."""
        return self._rows.get(attempt, slice(0, 0))

    def _credit(self) -> Credit:
        """Credit by the run's own algorithm, or the reason why it is not available here."""
        if self.columns is None:
            return Credit(self._algorithm, self._options, None, self.problem)
        assigned, parts = credit.credit_of(self.columns), credit.parts_of(self.columns, self._algorithm, self._options)
        options = self._options
        if assigned is None and self._foreign:
            return Credit(self._algorithm, self._options, None, f"{self._algorithm} is code from elsewhere, which this page does not run")
        try:
            if self._algorithm in credit.algorithms:
                options = credit.algorithms[self._algorithm].bind(self._options, credit.algorithms.kind)
            if assigned is None:  # an earlier Turnwise kept no advantages
                assigned = credit.assign(self._algorithm, self.columns, **self._options)
                parts = credit.split(self._algorithm, self.columns, **self._options)
        except TurnwiseError as error:
            if assigned is None:
                return Credit(self._algorithm, self._options, None, str(error))
        except Exception as error:  # user code may fail in any way
            return Credit(self._algorithm, self._options, None, f"{self._algorithm} failed: {type(error).__name__}: {error}")
        return Credit(self._algorithm, options, assigned.by_turn(self.columns), self.problem, parts)

    @cached_property
    def states(self) -> States | None:
        """Which turns started from the same state, and their returns."""
        r = self.columns
        if r is None:
            return None
        options = credit.explained_options(self._algorithm, self._options)
        why = credit.explain(r, **options)
        state, size = why["anchor_group"], int(why["anchor_group"].max()) + 1
        score = why["step_return"] - options["invalid_penalty"] * ~r.valid
        once = visit_weights(r, state)
        weight = once if options["once"] else np.ones(len(r))
        mean = segment_sum(score * weight, state, size) / segment_sum(weight, state, size)
        attempts = np.rint(segment_sum(once, state, size)).astype(np.int64)
        step = self.credit.parts.get("step", (None, 1.0))[0]
        compared = step is not None and bool(np.allclose(step, why["step"], rtol=1e-4, atol=1e-6))
        return States(state, why["step_return"], score, options["gamma"], mean, segment_count(state, size), attempts, compared)

    @cached_property
    def episodes(self) -> tuple[Floats, Ints, Floats, Ints]:
        """By attempt its return and group; by group the mean return and the number of attempts."""
        assert self.columns is not None
        returns, group = episode_returns(self.columns), trajectory_groups(self.columns)
        size = len(self.columns.group_labels)
        counts = segment_count(group, size)
        return returns, group, segment_sum(returns, group, size) / np.maximum(counts, 1), counts


def texts_of(run: Run, part: str, iteration: int) -> Path:
    """The file with the texts of an iteration."""
    if part not in PARTS:
        raise TurnwiseError(f"a run keeps {' and '.join(PARTS)}, not {part!r}")
    path = run.folder / part / f"{iteration:06d}.jsonl.gz"
    if not path.is_file():
        raise TurnwiseError(f"{run.folder.name} keeps no {part} of iteration {iteration}")
    return path


def typical_size(total: Floats) -> float:
    """The value of the strongest colour: nearly the largest |credit|, so that one outlier does not make all others pale."""
    sizes = np.abs(total[total != 0])
    return float(np.quantile(sizes, 0.95)) if len(sizes) else 1.0
