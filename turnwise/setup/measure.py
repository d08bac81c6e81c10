"""What an evaluation plays and reports: the panel, the settings that its result depends on, attempts that a fault ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from turnwise.collect.faults import NEARLY_ALL, WHOSE, FaultWatch, spoilt
from turnwise.collect.panel import Evaluation
from turnwise.data.rollouts import Stop
from turnwise.data.tasks import TaskSet
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash
from turnwise.setup.arguments import Given
from turnwise.setup.system import PANEL, System
from turnwise.util.errors import TurnwiseError


class Chosen(NamedTuple):
    """The tasks of an evaluation, and the line that describes them."""

    panel: TaskSet
    split: str
    seed: int
    repeats: int
    words: str


def says_how(source: Any, given: Given, overrides: Mapping[str, Any]) -> bool:
    """Whether a source itself defines how it is measured: a run or a recipe on its own environment. For a model, the environment was
    given."""
    return source is not None and given.env is None and given.prompts is None and "env.name" not in overrides


def choose_panel(
    system: System,
    measured: bool,
    split: str | None,
    n: int | Literal["all"] | None,
    seed: int | None,
    repeats: int | None,
    overrides: Mapping[str, Any] | None = None,
) -> Chosen:
    """The selected panel; it is always reported whether training measured on it. Only the split that is asked for needs to exist, and where
    an override names it, its size need not be that of the recipe's panel."""
    own, env, changed = system.config.eval, system.config.env.name, overrides or {}
    chosen, chance = split or own.split, own.seed if seed is None else seed
    if measured and n is None and split is None:
        at_most = "eval.split" in changed and "eval.n" not in changed
        panel = system.panel_of(chosen, None if at_most else own.n, chance, most=own.n or PANEL)
    else:
        panel = system.panel_of(chosen, None if n == "all" else n, chance)
    words = f"evaluating on {env}: {len(panel)} tasks of {chosen} (panel {panel.hash})"
    if measured and "eval.split" not in changed:
        try:
            of_run = system.own_panel
        except TurnwiseError:  # its split is not here, or has fewer tasks
            words += f", not the panel of {own.split} that training measures on"
        else:
            other = f"not the {len(of_run)} tasks of {own.split} that training measures on (panel {of_run.hash})"
            words += ", the panel that training measures on" if panel.hash == of_run.hash else f", {other}"
    return Chosen(panel, chosen, chance, (own.repeats if measured else 1) if repeats is None else repeats, words)


def settings_of(config: Config, split: str, seed: int, max_turns: int) -> dict[str, Any]:
    """What an evaluation's result depends on in addition to the panel, with the recipe that it belongs to."""
    recipe = config.model_dump(mode="json", exclude={"out", "run"})
    own = {"config": recipe, "config_hash": content_hash(config)}
    return {"environment": config.env.name, "split": split, "seed": seed, "max_turns": max_turns} | own


def report_faults(result: Evaluation, say: Callable[[str], None], faults: FaultWatch) -> None:
    """Attempts that a fault ended count as failures, so they are reported; if nearly all ended like that, it is an error."""
    tried = [trajectory for trajectory in result.trajectories if trajectory.stop is not Stop.CANCELLED]
    bad = [trajectory for trajectory in tried if spoilt(trajectory)]
    if bad and len(bad) >= NEARLY_ALL * len(tried):
        raise faults.verdict(bad, len(tried))
    for stop, whose in WHOSE.items():
        found = [trajectory for trajectory in bad if trajectory.stop is stop]
        if found:
            remedy = ". Raise it, or shorten the prompt" if stop is Stop.CONTEXT_LIMIT else ""
            why = f": {found[0].stop_detail}" if found[0].stop_detail else ""
            say(
                f"warning: {len(found)} of {len(tried)} attempts were ended by {whose}, and count as failed{remedy}. "
                f"The first, at task {found[0].task}{why}"
            )
