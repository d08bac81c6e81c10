"""The whole loss of a micro-batch: objective + kl_coef × KL − entropy_coef × entropy, all summed with the same weights.

A learner calls only this function. Settings are checked when the `Loss` is created, so an invalid name fails before a model loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from turnwise.config.references import is_reference
from turnwise.objectives import kl
from turnwise.objectives.kl import CAP
from turnwise.objectives.registry import CorrectionFunction, Objective, algorithms, corrections
from turnwise.objectives.tokens import LEVELS, Level, Tokens
from turnwise.util.errors import TurnwiseError, unknown_name

Metrics = dict[str, Tensor]
COLUMNS = ("group.", "trajectory.", "turn.", "token.")  # how names of columns start; other needs are models and the like


@dataclass(frozen=True)
class Loss:
    """A loss as settings. `loss, metrics = Loss(...)(tokens)`; call `loss.backward()` for every micro-batch, then step.

    objective, options             a name of `algorithms` and its options
    kl, kl_coef, kl_cap            estimator of the KL to the reference, its coefficient (0: no term), a bound on each k3
    entropy_coef                   coefficient of the entropy bonus (0: none)
    importance, importance_options "none" or a name of `corrections`, and its options
    """

    objective: str = "clip"
    options: Mapping[str, Any] = field(default_factory=dict)
    kl: str = "k3"
    kl_coef: float = 0.0
    kl_cap: float | None = CAP
    entropy_coef: float = 0.0
    importance: str = "none"
    importance_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", algorithms[self.objective].bind(self.options, "objective"))
        if self.importance != "none":
            if self.importance not in corrections and not is_reference(self.importance):
                raise unknown_name("importance correction", self.importance, ["none", *corrections.names()])
            bound = corrections[self.importance].bind(self.importance_options, "importance correction")
            object.__setattr__(self, "importance_options", bound)
        elif self.importance_options:
            raise TurnwiseError('loss: importance_options are given but importance is "none"; name a correction or remove them')
        if self.kl not in kl.KINDS:
            raise unknown_name("KL estimator", self.kl, kl.KINDS)
        for name in ("kl_coef", "entropy_coef"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise TurnwiseError(f"loss: {name} must be a number ≥ 0, not {value!r}")
        if self.kl_cap is not None and not self.kl_cap > 0:
            raise TurnwiseError(f"loss: kl_cap must be a number > 0 or none, not {self.kl_cap!r}")

    @property
    def level(self) -> Level:
        """The span that every micro-batch must contain completely: "token" (cut anywhere), "turn" or "trajectory"."""
        asked = {options.get("level", "token") for options in (self.options, self.importance_options)}
        return next(level for level in reversed(LEVELS) if level in asked)

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional columns of `Tokens` that this loss needs."""
        wanted = {"engine_logprob": self.importance != "none", "ref_logprob": self.kl_coef > 0, "entropy": self.entropy_coef > 0}
        return tuple(name for name, needed in wanted.items() if needed)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a batch that the objective and the correction declare, as level.name (`token.teacher_logprob`)."""
        correction = corrections[self.importance].needed(self.importance_options) if self.importance != "none" else ()
        needs = algorithms[self.objective].needed(self.options) + correction
        return tuple(dict.fromkeys(name for name in needs if name.startswith(COLUMNS)))

    @property
    def is_class(self) -> bool:
        """Whether the objective is an object, which may remember, and not a function."""
        return isinstance(algorithms[self.objective].function, type)

    def made(self) -> Objective:
        """The objective itself, to be called with tokens: a function with its options, or a new object of its class."""
        return algorithms[self.objective].make(self.options, "objective")

    def made_correction(self) -> CorrectionFunction | None:
        """The importance correction, to be called with tokens; None if there is none."""
        return None if self.importance == "none" else corrections[self.importance].make(self.importance_options, "importance correction")

    def __call__(
        self, tokens: Tokens, objective: Objective | None = None, correction: CorrectionFunction | None = None
    ) -> tuple[Tensor, Metrics]:
        """The loss of one part of a batch, with gradient, and its metrics; both add up over the parts (see `combine`). `objective` and
        `correction`: what `made` and `made_correction` gave; needed by those that remember or prepare."""
        tokens = tokens.prepared()
        policy, columns = (objective or self.made())(tokens)
        columns = dict(columns)
        if policy.shape != tokens.logprob.shape:
            raise TurnwiseError(
                f"objective {self.objective!r} returned a loss of shape {tuple(policy.shape)} for {len(tokens)} tokens: "
                "return one loss per token, and leave the sum to the weights"
            )
        if (correct := correction or self.made_correction()) is not None:
            factor, more = correct(tokens)
            policy = policy * factor.detach()
            columns |= {**more, "importance": factor}
        total = policy_loss = (tokens.weight * policy).sum()
        if self.kl_coef > 0:
            ref = tokens.need("ref_logprob", "a KL term")
            total = total + self.kl_coef * (tokens.weight * kl.estimate(tokens.logprob, ref, self.kl, self.kl_cap)).sum()
        if self.entropy_coef > 0:
            total = total - self.entropy_coef * (tokens.weight * tokens.need("entropy", "an entropy bonus")).sum()
        metrics = {"loss": total.detach(), "policy_loss": policy_loss.detach()}
        metrics |= {name: tokens.batch_mean(column) for name, column in (columns | _observed(tokens)).items()}
        return total, metrics | _largest(tokens)


def compute(name: str, tokens: Tokens, **options: Any) -> tuple[Tensor, Metrics]:
    """The loss of a registered objective by itself, and its metrics."""
    return Loss(name, options)(tokens)


def combine(parts: Iterable[Mapping[str, Tensor]]) -> Metrics:
    """The metrics of a batch from those of its parts: names that end in `_max` by the maximum, all others by the sum."""
    whole: Metrics = {}
    for part in parts:
        for name, value in part.items():
            known = whole.get(name)
            if known is None:
                whole[name] = value
            else:
                whole[name] = torch.maximum(known, value) if name.endswith("_max") else known + value
    return whole


def _observed(tokens: Tokens) -> Metrics:
    """Per-token columns to log for every objective."""
    with torch.no_grad():
        columns = {
            "ratio": tokens.ratio,
            "kl_old_k1": kl.estimate(tokens.old_logprob, tokens.logprob, "k1"),
            "kl_old_k3": kl.estimate(tokens.old_logprob, tokens.logprob, "k3"),
        }
        if tokens.entropy is not None:
            columns["entropy"] = tokens.entropy
        if tokens.ref_logprob is not None:
            columns["kl_ref_k1"] = kl.estimate(tokens.logprob, tokens.ref_logprob, "k1")
            columns["kl_ref_k3"] = kl.estimate(tokens.logprob, tokens.ref_logprob, "k3")
        if tokens.engine_logprob is not None:
            columns["engine_gap"] = (tokens.old_logprob - tokens.engine_logprob).abs()
            columns["engine_kl_k3"] = kl.estimate(tokens.engine_logprob, tokens.old_logprob, "k3")
        return columns


def _largest(tokens: Tokens) -> Metrics:
    """The maxima, which do not add up; 0 for a part without tokens."""
    if tokens.engine_logprob is None:
        return {}
    gap = (tokens.old_logprob - tokens.engine_logprob).detach().abs()
    return {"engine_gap_max": gap.max() if len(tokens) else gap.sum()}
