"""Kinds of auxiliary models: which heads a model has on its hidden states, and what its loss is.

    class Mine:
        '''A value per turn, trained towards the return.'''

        needs = ("turn.to_go",)                       # columns that the loss reads

        def __init__(self, *, scale: float = 1.0): ...

        def heads(self):                              # optional: name → where it is read
            return {"value": "turn"}

        def loss(self, said):                         # optional: a number with gradient, or (number, metrics)
            return (said.outputs["value"] - said["turn.to_go"]).square().mean()

A recipe names a kind by its registered name, as `package.module:Class` or as `path/file.py:Class`. A model that has a loss is trained by
the run itself, once per iteration after credit is known; one without is trained by whoever calls `update(batch, loss)`, such as a signal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.methods.registry import model
from turnwise.util.errors import TurnwiseError, unknown_name


@model("causal")
class Causal:
    """A plain causal language model: it gives log-probs, and has no loss of its own."""


@model("heads")
class Heads:
    """Linear heads on the last hidden state, per turn or per token, each trained towards a column of its own.

    `turn` is read at the last prompt token (what the state is worth), `turn_end` at the turn's last token (what the action is worth),
    `token` at the token before each response token. Entries whose target is NaN are not trained. With an expectile τ, an error counts τ
    times where the value is below its target and 1 − τ times elsewhere.
    """

    logprobs = False

    def __init__(
        self,
        *,
        heads: Annotated[dict[str, str], Help("name → where it is read: turn, turn_end or token")],
        targets: Annotated[dict[str, str] | None, Help("name → column; none: turn.target_NAME or token.target_NAME")] = None,
        weights: Annotated[dict[str, float] | None, Help("name → factor of its loss, 1 unless given")] = None,
        spread: Annotated[float, Help("standard deviation of the heads' first weights; 0: all values start at 0", low=0)] = 0.0,
        layers: Annotated[int, Help("hidden layers with ReLU in each head; 0: heads are linear", low=0, high=8)] = 0,
        expectiles: Annotated[dict[str, float] | None, Help("name → τ, the expectile of its target that it learns; else the mean")] = None,
    ) -> None:
        levels = {name: "token" if place == "token" else "turn" for name, place in heads.items()}
        self._heads, self.weights, self.spread = dict(heads), dict(weights or {}), spread
        self.layers, self.expectiles = layers, dict(expectiles or {})
        self.targets = {name: f"{level}.target_{name}" for name, level in levels.items()} | dict(targets or {})
        for option, given in (("targets", targets), ("weights", weights), ("expectiles", expectiles)):
            for name in given or ():
                if name not in heads:
                    raise unknown_name(f"head (option {option}):", name, heads)
        for name, column in self.targets.items():
            if column.partition(".")[0] != levels[name]:
                raise TurnwiseError(f"head {name!r} has one value per {levels[name]}, and its target {column!r} is of another level")
        for name, tau in self.expectiles.items():
            if not 0 < tau < 1:
                raise TurnwiseError(f"the expectile of head {name!r} is between 0 and 1, not {tau}")
        self.needs = tuple(self.targets.values())

    def heads(self) -> dict[str, str]:
        """Name → where it is read."""
        return dict(self._heads)

    def loss(self, said: Any) -> tuple[Any, Mapping[str, Any]]:
        """Half the mean (weighted) squared error of every head, summed."""
        total: Any = 0.0
        metrics: dict[str, Any] = {}
        for name, value in said.outputs.items():
            target = said[self.targets[name]].to(value.dtype)
            known = target.isfinite()
            gap = (value - target).where(known, 0.0)
            squares = gap.square()
            if (tau := self.expectiles.get(name)) is not None:
                squares = squares * (gap.detach() < 0).to(gap.dtype).mul(2 * tau - 1).add(1 - tau)
            error = squares.sum() / known.sum().clamp(min=1) / 2
            total = total + self.weights.get(name, 1.0) * error
            metrics |= {f"loss_{name}": error.detach(), f"mean_{name}": value.detach().mean()}
        return total, metrics


@model("reward")
class Reward:
    """A reward model of transformers: one number per sequence, read at the end of each turn. It has no loss of its own."""

    logprobs = False
    classifier = True

    def heads(self) -> dict[str, str]:
        """One head, the model's own."""
        return {"reward": "turn_end"}
