"""What an arena compares: a TOML file with environments, methods, seeds, budgets, the tuning that is allowed, and predictions.

    attempts = 2560                     # of training, for every run
    evaluations = 8                     # points of a curve
    seeds = [100, 101, 102, 103]        # of the final runs
    controls = "gigpo"                  # the method whose negative controls take part; leave it out for none

    [tuning]
    trials = 4                          # settings that each method may try, its own defaults among them
    seeds = [0, 1]
    common = {"learner.lr" = [3e-4, 1e-3]}

    [panel]                             # keys of [eval]: on what final runs are measured
    seed = 1

    [environments.numberline]           # a recipe and settings that all methods share
    recipe = "numberline-tiny"

    [methods.gigpo]                     # settings of a recipe, and what may be tuned
    "method.name" = "gigpo"
    tune = {"credit.omega" = [0.5, 1.0, 2.0]}

    [predictions]                       # what should win where, written before the first final run
    numberline = {method = "gigpo", why = "few states, which repeat"}

A *cell* is one run: environment, method, seed, and, while a method is tuned, its trial. The file's hash covers all of this.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice, product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from turnwise.arena.controls import CONTROLS
from turnwise.arena.settings import ArenaSettings, MethodSettings
from turnwise.config.references import with_code_beside
from turnwise.config.section import problem
from turnwise.recipe.reading import find_recipe
from turnwise.recipe.schema import Config
from turnwise.runs.records import flatten
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
Values = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run. `trial`: which of the method's settings; `tuning`: whether the run serves to choose among them."""

    environment: str
    method: str
    seed: int
    trial: int = 0
    tuning: bool = False

    @property
    def name(self) -> str:
        stage = f"tuning-trial{self.trial}" if self.tuning else "final"
        return f"{self.environment}-{self.method}-{stage}-seed{self.seed}"


@dataclass(frozen=True)
class Arena:
    """A checked arena file."""

    name: str
    folder: Path  # paths of recipes are relative to it
    settings: ArenaSettings

    @classmethod
    def load(cls, path: str | Path) -> Arena:
        path = Path(path)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TurnwiseError(f"{path}: {error.strerror}. An arena is a TOML file; docs/guides/arena.md has one") from None
        except ValueError as error:  # not TOML, or not UTF-8
            raise TurnwiseError(f"{path}: not TOML: {error}") from None
        try:
            settings = ArenaSettings.model_validate(values)
        except ValidationError as error:
            known = list(ArenaSettings.model_fields)
            raise TurnwiseError(f"{path}: {'; '.join(problem(item, known) for item in error.errors())}") from None
        arena = cls(path.stem, path.parent, settings)
        arena._check(path)
        return arena

    def _check(self, path: Path) -> None:
        """What contradicts itself is found before anything runs."""
        settings = self.settings
        for name in (self.name, *settings.environments, *settings.methods):
            if not NAME.fullmatch(name):
                raise TurnwiseError(f"{path}: {name!r} cannot be part of a folder's name: use letters, digits, dots and dashes")
        if shared := sorted(set(settings.seeds) & set(settings.tuning.seeds)):
            raise TurnwiseError(
                f"{path}: the seeds {shared} are for tuning and for the final runs. Settings are never chosen on final seeds"
            )
        if settings.tuning.trials > 1 and settings.tuning.panel == settings.panel:
            raise TurnwiseError(f"{path}: tuning.panel and panel are the same. Settings are never chosen on the panel of the final runs")
        if settings.controls is not None and settings.controls not in settings.methods:
            raise TurnwiseError(f"{path}: controls = {settings.controls!r}, which is none of the methods: {', '.join(settings.methods)}")
        for environment, prediction in settings.predictions.items():
            if environment not in settings.environments:
                raise TurnwiseError(f"{path}: predictions.{environment}: the environments are {', '.join(settings.environments)}")
            if prediction.method not in settings.methods:
                raise TurnwiseError(f"{path}: predictions.{environment}: the methods are {', '.join(settings.methods)}")
        for name, method in settings.methods.items():
            if wrong := [environment for environment in method.environments or () if environment not in settings.environments]:
                raise TurnwiseError(f"{path}: methods.{name}.environments: there is no {wrong[0]!r}")

    @cached_property
    def hash(self) -> str:
        """16 hex digits over all that the file says, but not over how it says it."""
        text = json.dumps(self.settings.model_dump(mode="json"), sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @cached_property
    def methods(self) -> dict[str, MethodSettings]:
        """The methods, and the controls of one of them, which differ from it only by their credit."""
        base = self.settings.controls
        controls = {} if base is None else dict.fromkeys(map("control-{}".format, (*CONTROLS, "omega-0")), self.settings.methods[base])
        return dict(self.settings.methods) | controls

    def is_control(self, method: str) -> bool:
        return method not in self.settings.methods

    def takes_part(self, method: str, environment: str) -> bool:
        allowed = self.methods[method].environments
        return allowed is None or environment in allowed

    def attempts(self, environment: str) -> int:
        """The attempts of training that a run may use, those that a method throws away included."""
        return self.settings.environments[environment].attempts or self.settings.attempts

    def trials(self, method: str) -> list[Values]:
        """The settings that a method may try: its defaults, then others in an order that depends on the method's name alone."""
        axes = self.settings.tuning.common | self.methods[method].tune
        if not axes:
            return [{}]
        points = [dict(zip(axes, values, strict=True)) for values in islice(product(*axes.values()), 100_000)]
        points.sort(key=lambda point: derive(0, "arena", method, json.dumps(point, sort_keys=True)))
        return [{}, *points[: self.settings.tuning.trials - 1]]

    def tuning_cells(self) -> Iterator[Cell]:
        """Runs that choose settings; none for methods that have nothing to choose."""
        for environment in self.settings.environments:
            for method in self.settings.methods:
                trials = self.trials(method)
                if len(trials) > 1 and self.takes_part(method, environment):
                    for trial, seed in product(range(len(trials)), self.settings.tuning.seeds):
                        yield Cell(environment, method, seed, trial, True)

    def is_tuned(self, cell: Cell, chosen: Mapping[tuple[str, str], int]) -> bool:
        """Whether the settings of a final cell are known: its method has nothing to choose, or has chosen."""
        return (cell.environment, self._tuned(cell.method)) in chosen or len(self.trials(self._tuned(cell.method))) == 1

    def _tuned(self, method: str) -> str:
        """The method whose tuning decides: a control has the settings of its method."""
        return (self.settings.controls or "") if self.is_control(method) else method

    def final_cells(self, chosen: Mapping[tuple[str, str], int]) -> Iterator[Cell]:
        """The runs that are reported, with the trial that tuning chose for (environment, method); a control has the settings of its
        method. Seed by seed, so that an arena that is stopped early has whole seeds."""
        for number, seed in enumerate(self.settings.seeds):
            for environment in self.settings.environments:
                for method, settings in self.methods.items():
                    if self.takes_part(method, environment) and (settings.seeds is None or number < settings.seeds):
                        yield Cell(environment, method, seed, chosen.get((environment, self._tuned(method)), 0))

    def config(self, cell: Cell, out: Path) -> Config:
        """The recipe of a cell."""
        environment, method = self.settings.environments[cell.environment], self.methods[cell.method]
        path = find_recipe(Path(environment.recipe), self.folder)
        panel = self.settings.tuning.panel if cell.tuning else self.settings.panel
        tuned = self.trials(self._tuned(cell.method))[cell.trial]
        values = with_code_beside(flatten(environment.options) | flatten(method.options) | tuned, self.folder)
        values |= {f"eval.{key}": value for key, value in panel.items()}
        values |= {"name": cell.name, "out": str(out), "seed": cell.seed}
        config = Config.load(path, values)
        iterations = max(1, self.attempts(cell.environment) // (config.collect.groups * config.collect.group_size))
        every = 1 if config.plan is not None else max(1, iterations // self.settings.evaluations)  # a plan may use up the attempts early
        values |= {"iterations": iterations, "eval.every": every}
        if self.is_control(cell.method):
            values = {key: value for key, value in values.items() if not key.startswith("credit.")} | _control(cell.method, config)
        return Config.load(path, values)


def _control(name: str, config: Config) -> Values:
    """The credit of a control, from the recipe of its method."""
    control = name.removeprefix("control-")
    if control == "omega-0":
        return (
            {"credit.name": config.credit.name}
            | {f"credit.{key}": value for key, value in config.credit.options.items()}
            | {"credit.omega": 0.0}
        )
    gamma = {"credit.gamma": config.credit.options["gamma"]} if "gamma" in config.credit.options else {}
    return {"credit.name": f"turnwise.arena.controls:{control}", "credit.base": config.credit.name} | gamma
