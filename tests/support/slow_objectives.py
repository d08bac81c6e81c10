"""Objectives and token weights as loops written from their definitions, and the random ragged batches that the tests share."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch

from turnwise.objectives import Tokens, token_weights

CONSTANT = {"turn_sum": 7.0, "trajectory_sum": 11.0}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("reinforce", {}),
    ("clip", {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 1.5}),
    ("clip", {}),
    ("cispo", {"ratio_low": 0.7, "ratio_high": 1.4}),
    ("sapo", {}),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.15}),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.15, "level": "trajectory"}),
    ("gmpo", {"clip_low": 0.2, "clip_high": 0.3}),
    ("gmpo", {"clip_low": 0.2, "clip_high": 0.3, "level": "trajectory"}),
]
NAMES = [f"{name}-{options.get('level') or len(options)}" for name, options in CASES]


def leaf(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def random_tokens(seed: int, how: str = "token", per: str = "turn", spread: float = 0.4, gaps: bool = True) -> Tokens:
    """A ragged batch in float64. `per` is the span that shares one advantage; with `gaps` some tokens are left out."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, 7, size=rng.integers(1, 5)) for _ in range(rng.integers(2, 6))]
    turns = np.concatenate(lengths)
    turn = np.repeat(np.arange(len(turns)), turns)
    trajectory = np.repeat(np.repeat(np.arange(len(lengths)), [len(x) for x in lengths]), turns)
    logprob = -rng.exponential(1.0, len(turn))
    old = logprob - spread * rng.standard_normal(len(turn))
    advantage = rng.standard_normal(len(turns))[turn if per == "turn" else trajectory]
    mask = rng.random(len(turn)) > 0.15 if gaps else np.ones(len(turn), bool)
    mask[0] = True
    column = torch.from_numpy
    return Tokens(
        logprob=leaf(logprob),
        old_logprob=column(old),
        advantage=column(advantage),
        turn=column(turn),
        trajectory=column(trajectory),
        weight=token_weights(turn, trajectory, how, CONSTANT.get(how), mask, dtype=torch.float64),
        engine_logprob=column(old + 0.3 * rng.standard_normal(len(turn))),
        ref_logprob=column(logprob + 0.5 * rng.standard_normal(len(turn))),
        entropy=leaf(rng.exponential(1.0, len(turn))),
    )


def gradient(loss: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    return torch.autograd.grad(loss, tokens.logprob)[0]


def _span_losses(name: str, options: dict[str, Any], tokens: Tokens) -> torch.Tensor:
    """Sum of weight × loss for the objectives that are defined on spans, from their sequence form, by loops."""
    ids = (tokens.trajectory if options.get("level") == "trajectory" else tokens.turn).tolist()
    spans = defaultdict(list)
    for i, span in enumerate(ids):
        if float(tokens.weight[i]) > 0:
            spans[span].append(i)
    total = torch.zeros((), dtype=torch.float64)
    for members in spans.values():
        a = float(tokens.advantage[members[0]])
        logs = []
        for i in members:
            x = tokens.logprob[i] - float(tokens.old_logprob[i])
            if name == "gmpo" and a > 0 and float(x) > options["clip_high"]:
                x = torch.tensor(options["clip_high"], dtype=torch.float64)
            if name == "gmpo" and a < 0 and float(x) < -options["clip_low"]:
                x = torch.tensor(-options["clip_low"], dtype=torch.float64)
            logs.append(x)
        s = torch.exp(sum(logs) / len(logs))
        loss = -a * s
        if name == "gspo":
            bounded = min(max(float(s), 1 - options["clip_low"]), 1 + options["clip_high"])
            if -a * bounded > float(loss):
                loss = torch.tensor(-a * bounded, dtype=torch.float64)
        total = total + sum(float(tokens.weight[i]) for i in members) * loss
    return total


def _token_loss(name: str, options: dict[str, Any], logprob: torch.Tensor, old: float, a: float) -> torch.Tensor:
    """One token's loss, straight from the definition."""
    ratio = torch.exp(logprob - old)
    r = float(ratio.detach())
    if name == "reinforce":
        return -a * logprob
    if name == "cispo":
        return -min(max(r, options["ratio_low"]), options["ratio_high"]) * a * logprob
    if name == "sapo":
        tau = 1.0 if a > 0 else 1.05
        return -(1 / (1 + torch.exp(-tau * (ratio - 1)))) * 4 / tau * a
    low, high, dual = 1 - options.get("clip_low", 0.2), 1 + options.get("clip_high", 0.2), options.get("dual_clip")
    if a > 0 and r > high:
        return torch.tensor(-a * high, dtype=torch.float64)
    if a < 0 and r < low:
        return torch.tensor(-a * low, dtype=torch.float64)
    if a < 0 and dual is not None and r > dual:
        return torch.tensor(-a * dual, dtype=torch.float64)
    return -a * ratio


def loss_of(name: str, options: dict[str, Any], tokens: Tokens) -> torch.Tensor:
    if name in ("gspo", "gmpo"):
        return _span_losses(name, options, tokens)
    total = torch.zeros((), dtype=torch.float64) * tokens.logprob.sum()
    for i in range(len(tokens)):
        if (w := float(tokens.weight[i])) > 0:
            total = total + w * _token_loss(name, options, tokens.logprob[i], float(tokens.old_logprob[i]), float(tokens.advantage[i]))
    return total


def weights_of(turn: list[int], trajectory: list[int], mask: list[bool], how: str, constant: float) -> list[float]:
    kept = [i for i, keep in enumerate(mask) if keep]
    turns, trajectories = {turn[i] for i in kept}, {trajectory[i] for i in kept}
    weights = [0.0] * len(turn)
    for i in kept:
        tokens_of_turn = sum(turn[j] == turn[i] for j in kept)
        tokens_of_trajectory = sum(trajectory[j] == trajectory[i] for j in kept)
        turns_of_trajectory = len({turn[j] for j in kept if trajectory[j] == trajectory[i]})
        weights[i] = {
            "token": 1 / len(kept),
            "turn": 1 / len(turns) / tokens_of_turn,
            "trajectory": 1 / len(trajectories) / tokens_of_trajectory,
            "trajectory_turn": 1 / len(trajectories) / turns_of_trajectory / tokens_of_turn,
            "turn_sum": 1 / len(turns) / constant,
            "trajectory_sum": 1 / len(trajectories) / constant,
        }[how]
    return weights
