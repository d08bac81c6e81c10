"""What dies when: runs, and the strikes that each of them has to survive.

A strike: the kind of the victim, who comes to which moment (`inside/sitecustomize.py` has the moments), and after which logged iteration it
counts. -1 is before the first line of the log. If the victim is of another kind than who comes to the moment, that one goes on: an engine
that dies while the driver saves, for example. A node is the one of the process that is at the moment, or, for the driver, one of its
engines or ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

ITERATIONS = 10
ONE: dict[str, Any] = {"cluster.engines": 1}
TWO: dict[str, Any] = {"cluster.engines": 2}
RANKS: dict[str, Any] = {"cluster.engines": 1, "cluster.learners": 2, "run.checkpoint_every": 2}
AHEAD: dict[str, Any] = {"cluster.engines": 2, "cluster.staleness": 2, "cluster.retries": 8}  # more than the strikes of a run


@dataclass(frozen=True)
class Strike:
    """`words` say it for people."""

    kind: str
    role: str
    moment: str
    iteration: int
    words: str
    rank: int | None = None

    def described(self) -> dict[str, Any]:
        found = asdict(self)
        return {name: value for name, value in found.items() if name != "words" and (name, value) != ("rank", None)}


@dataclass(frozen=True)
class Run:
    """Settings, and strikes. A driver is killed by one strike after another and resumed after each; others by all in one life."""

    settings: Mapping[str, Any]
    strikes: tuple[Strike, ...] = ()
    like: str = ""  # the undisturbed run with the same settings
    driver: bool = field(default=False)


_engine, _worker, _rank, _node = (partial(Strike, kind) for kind in ("engine", "worker", "rank", "node"))
_driver = partial(Strike, "driver", "driver")


RUNS: dict[str, Run] = {
    "two-engines": Run(TWO),
    "two-ranks": Run(RANKS),
    "plain": Run({}),  # one process: one engine must give the same
    "engines": Run(
        TWO,
        (
            _engine("engine", "before it loads", -1, "during the start, before its model is loaded"),
            _engine("engine", "loaded", -1, "during the start, before it has weights"),
            _engine("engine", "turn", 0, "while collecting, at a turn"),
            _engine("engine", "takes weights", 1, "while publishing, before it has read the weights"),
            _engine("engine", "copied weights", 2, "while publishing, with the weights half applied"),
            _engine("engine", "work is done", 3, "while collecting, when its groups are done and not yet sent"),
            _engine("driver", "has gradients", 4, "during the optimiser step"),
            _engine("driver", "before the manifest", 5, "while saving"),
            _engine("driver", "logged", 6, "between two iterations"),
            _engine("driver", "evaluates", 9, "during the evaluation"),
        ),
        "two-engines",
    ),
    "workers": Run(
        TWO,
        (
            _worker("environment", "reset", 0, "while collecting, during a reset"),
            _worker("environment", "step", 1, "while collecting, before a step"),
            _worker("environment", "first step", 2, "while collecting, after the first step"),
            _worker("environment", "last step", 3, "while collecting, after the last step"),
            _worker("engine", "attempt ends", 4, "while collecting, when an attempt has ended"),
            _worker("engine", "takes weights", 5, "while publishing"),
            _worker("driver", "has gradients", 6, "during the optimiser step"),
            _worker("driver", "before the manifest", 7, "while saving"),
            _worker("driver", "logged", 8, "between two iterations"),
            _worker("driver", "evaluates", 9, "during the evaluation"),
        ),
        "two-engines",
    ),
    "ranks": Run(
        RANKS,
        (
            _rank("rank", "before it meets the others", -1, "during the start, before the ranks meet", 0),
            _rank("rank", "met the others", -1, "during the start, before the model is loaded", 1),
            _rank("rank", "has gradients", 0, "during the optimiser step, after the gradients", 1),
            _rank("rank", "stepped", 1, "during the optimiser step, after it", 0),
            _rank("rank", "gathers weights", 2, "while publishing", 0),
            _rank("rank", "saves", 3, "while saving, before anything is written", 1),
            _rank("rank", "before the manifest", 5, "while saving, before the manifest", 0),
            _rank("driver", "logged", 7, "between two iterations"),
            _rank("rank", "restores", 7, "while restarting, before the checkpoint is read", 1),
            _rank("rank", "exports", 9, "during the export", 0),
        ),
        "two-ranks",
    ),
    "nodes-of-engines": Run(
        TWO,
        (
            _node("engine", "loaded", -1, "during the start of its engine"),
            _node("engine", "turn", 1, "while collecting"),
            _node("engine", "copied weights", 3, "while publishing"),
            _node("driver", "has gradients", 5, "during the optimiser step in the driver"),
            _node("driver", "before the manifest", 7, "while the driver saves"),
        ),
        "two-engines",
    ),
    "nodes-of-ranks": Run(
        RANKS,
        (
            _node("rank", "met the others", -1, "during the start of its rank"),
            _node("rank", "has gradients", 1, "during the optimiser step of its rank"),
            _node("rank", "gathers weights", 3, "while its rank gathers weights"),
            _node("rank", "before the manifest", 5, "while its rank saves", 0),
            _node("driver", "logged", 8, "between two iterations"),
        ),
        "two-ranks",
    ),
    "driver": Run(
        ONE,
        (
            _driver("before it joins Ray", -1, "during the start, before it joins Ray"),
            _driver("started engines", -1, "during the start of its engines"),
            _driver("has collected", 0, "when a batch is collected"),
            _driver("has gradients", 1, "during the optimiser step"),
            _driver("optimiser", 2, "during the optimiser step, with the masters moved"),
            _driver("publishes", 3, "while publishing"),
            _driver("before the manifest", 5, "while saving"),
            _driver("logged", 7, "between two iterations"),
            _driver("evaluates", 9, "during the evaluation"),
            _driver("exports", 9, "during the export"),
        ),
        "plain",
        driver=True,
    ),
    "ahead-parts": Run(
        AHEAD,
        (
            _engine("engine", "turn", 0, "while collecting ahead, at a turn"),
            _worker("environment", "step", 1, "while collecting ahead, before a step"),
            _engine("engine", "takes weights", 2, "while publishing in the middle of groups"),
            _node("engine", "attempt ends", 3, "while collecting ahead"),
            _worker("environment", "last step", 5, "while collecting ahead, after the last step"),
            _engine("driver", "has gradients", 6, "during the optimiser step, while collecting ahead"),
        ),
    ),
    "ahead-driver": Run(
        AHEAD,
        (
            _driver("has collected", 2, "when a batch is collected, others being under way"),
            _driver("publishes", 6, "while publishing, others being under way"),
        ),
        driver=True,
    ),
}
