"""EPO: an entropy bonus, and a penalty on entropies that leave a band around their history, which is the objective's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import last_checkpoint, resumes_alike, train
from references import epo as slow

from turnwise.methods.epo import Epo, smoothing_weight
from turnwise.objectives.clip import clip
from turnwise.objectives.loss import Loss
from turnwise.objectives.tokens import Tokens
from turnwise.recipe.schema import Config
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch
from turnwise.util.errors import TurnwiseError


def columns(rng: np.random.Generator, turns: int = 12, lengths: tuple[int, int] = (1, 6)) -> dict[str, Any]:
    """The columns of a mini-batch, as the learner hands them over: turn indices, reported entropies, weights."""
    tokens = rng.integers(*lengths, turns)
    row = np.repeat(np.arange(turns), tokens)
    n = len(row)
    return {"turn": row, "t": rng.integers(0, 5, turns)[row], "token.entropy": rng.random(n) * 3, "weight": np.full(n, 1 / n)}


def rows_of(batch: dict[str, Any], values: Any) -> list[list[float]]:
    return [np.asarray(values)[batch["turn"] == turn].tolist() for turn in np.unique(batch["turn"])]


def seen(objective: Epo, batches: list[dict[str, Any]]) -> np.ndarray:
    """Let an objective see some updates; the mean entropies by turn index, over the updates that have it."""
    means = []
    for batch in batches:
        objective.prepare(batch)
        objective.observe({})
        of_index = [batch["token.entropy"][batch["t"] == k] for k in range(5)]
        means.append([own.mean() if len(own) else np.nan for own in of_index])
    return np.nanmean(means, axis=0)


def tokens_of(batch: dict[str, Any], prepared: dict[str, Any], entropy: torch.Tensor) -> Tokens:
    n, generator = len(entropy), torch.Generator().manual_seed(0)
    logprob, old, advantage = (torch.rand(n, generator=generator, dtype=torch.float64) for _ in range(3))
    turn = torch.as_tensor(batch["turn"])
    extra = {"history": torch.as_tensor(prepared["history"])}
    return Tokens(logprob, old, advantage, turn, turn, torch.as_tensor(batch["weight"]), entropy=entropy, extra=extra)


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("level", ["token", "turn"])
def test_the_loss_is_the_clipped_one_minus_the_bonus_that_leaves_the_band(seed: int, level: str) -> None:
    rng = np.random.default_rng(seed)
    objective = Epo(level=level, low=0.7, high=1.3, bonus=0.2, smoothing=0.5, penalty=0.3)  # type: ignore[arg-type]
    past = seen(objective, [columns(rng), columns(rng), columns(rng)])
    batch = columns(rng, lengths=(1, 2)) if seed == 3 else columns(rng)
    values = rng.random(len(batch["turn"])) * 3
    entropy = torch.tensor(values, requires_grad=True)
    tokens = tokens_of(batch, objective.prepare(batch), entropy)
    loss, metrics = objective(tokens)

    rows, indices = rows_of(batch, values), [int(batch["t"][batch["turn"] == turn][0]) for turn in np.unique(batch["turn"])]
    compared = [[float(np.mean(row))] * len(row) for row in rows] if level == "turn" else rows
    outside = slow.penalty(compared, indices, past, 0.7, 1.3, 0.3)
    w = slow.epoch_weight(3)
    expected = -0.2 * (np.mean(np.concatenate(rows)) - 0.5 * w * np.mean(np.concatenate(outside)))
    added = loss - clip(tokens).loss
    assert float((tokens.weight * added).sum().detach()) == pytest.approx(expected, abs=1e-6)
    (pull,) = torch.autograd.grad((tokens.weight * loss).sum(), entropy)
    np.testing.assert_allclose(pull.numpy(), -0.2 / len(values), atol=1e-9)  # the bonus alone: the penalty is a constant
    assert 0 < float(metrics["entropy_outside"].double().mean()) < 1


def test_the_weight_of_the_penalty_decays_as_published() -> None:
    for last in (2, 7, 150):
        assert [smoothing_weight(e, last) for e in range(200)] == pytest.approx([slow.epoch_weight(e, last) for e in range(200)])
    assert smoothing_weight(500, None) == 1.0


def test_without_a_history_or_below_the_gate_there_is_no_penalty() -> None:
    rng = np.random.default_rng(0)
    batch = columns(rng)
    assert np.isnan(Epo().prepare(batch)["history"]).all()
    gated = Epo(gate=9)
    seen(gated, [batch])
    assert np.isnan(gated.prepare(batch)["history"]).all() and not np.isnan(gated.history()).all()
    entropy = torch.rand(len(batch["turn"]), dtype=torch.float64, requires_grad=True)
    tokens = tokens_of(batch, gated.prepare(batch), entropy)
    loss, metrics = gated(tokens)
    assert not metrics["entropy_outside"].any()
    torch.testing.assert_close(loss, clip(tokens).loss - 0.001 * entropy)


def test_a_recipe_with_the_former_form_of_epo_is_told_what_to_write() -> None:
    for form in ("hinge", "published"):
        with pytest.raises(TurnwiseError, match=r"'epo' has no option 'form' any more: remove it"):
            Loss("epo", {"form": form})
    for name in ({"method": "epo_hinge"}, {"objective": {"name": "epo_hinge"}}):
        with pytest.raises(TurnwiseError, match=r"there is no (method|objective) 'epo_hinge' any more: use epo"):
            Config.load(name)


def test_a_run_keeps_its_history_over_a_stop(tmp_path: Path) -> None:
    changes = {"method.name": "epo", "objective.high": 0.5, "objective.bonus": 0.5, "objective.penalty": 4.0}
    whole = train(tmp_path / "whole", **changes)
    resumes_alike(tmp_path / "stopped", whole, 2, **changes)
    first, second = whole.metrics[1:]
    assert first["learner/entropy_outside"] == 0 < second["learner/entropy_outside"]  # the first update has no history
    state = last_checkpoint(whole.folder).state["learner"]["pieces"]["objective"]["state"]
    means = []
    for iteration in (1, 2):
        rollouts = stored_batch(Run.open(whole.folder), iteration).rollouts
        index = np.repeat(rollouts.t, rollouts.tokens)
        means.append([rollouts.column("token.entropy")[index == k].mean() if (index == k).any() else np.nan for k in range(2)])
    assert state["updates"] == 2
    np.testing.assert_allclose(np.divide(state["sums"], state["counts"])[:2], np.nanmean(means, axis=0), rtol=1e-5)
