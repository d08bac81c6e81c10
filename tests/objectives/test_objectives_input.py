"""What objectives do with odd, extreme and wrong input; objectives of one's own; and the page about them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_objectives import CASES, NAMES, gradient, leaf, random_tokens

from turnwise import objectives
from turnwise.objectives import AGGREGATIONS, Loss, TokenLoss, Tokens, algorithms, token_weights
from turnwise.util.errors import TurnwiseError

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test sees the package's own objectives, whatever others have registered before it, and what it registers is forgotten."""
    ours = {entry.name: entry for entry in algorithms if entry.function.__module__.startswith("turnwise.")}
    monkeypatch.setattr(algorithms, "_entries", ours)


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_left_out_tokens_change_nothing_whatever_they_hold(name: str, options: dict[str, Any]) -> None:
    tokens = random_tokens(11, "turn")
    dirt = {
        key: torch.where(tokens.weight > 0, column.detach(), bad)
        for (key, column), bad in zip(
            ((k, c) for k, c in tokens.columns().items() if c.is_floating_point() and k != "weight"),
            (math.nan, math.inf, math.nan, -math.inf, math.nan, math.inf),
            strict=True,
        )
    }
    dirty = Tokens(**{**tokens.columns(), **dirt})
    dirty.logprob.requires_grad_()
    clean = tokens.take(tokens.weight > 0)
    settings_ = {"kl_coef": 0.1, "entropy_coef": 0.1, "importance": "truncate"}
    loss, metrics = Loss(name, options, **settings_)(dirty)
    expected, known = Loss(name, options, **settings_)(clean)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    assert {k: float(v) for k, v in metrics.items()} == pytest.approx({k: float(v) for k, v in known.items()}, rel=1e-12)
    slope = gradient(loss, dirty)
    assert torch.equal(slope[tokens.weight == 0], torch.zeros(int((tokens.weight == 0).sum()), dtype=torch.float64))
    assert slope.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_extreme_log_probabilities_give_finite_numbers(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    grid = [(new, old, a) for new in (-1e4, -1e-3, 0.0) for old in (-1e4, 0.0) for a in (-100.0, 0.0, 100.0)]
    new, old, advantage = (torch.tensor(column, dtype=dtype) for column in zip(*grid, strict=True))
    new.requires_grad_()
    turn = torch.arange(len(grid)) // 2
    tokens = Tokens(new, old, advantage, turn, turn // 2, token_weights(turn, turn // 2, "turn"), old.flip(0), old, new.detach().exp())
    for importance in ("none", "truncate", "mask"):
        loss, metrics = Loss(name, options, kl_coef=0.1, entropy_coef=0.1, importance=importance)(tokens)
        assert loss.dtype == torch.float32 and loss.isfinite()
        assert gradient(loss, tokens).isfinite().all()
        assert all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_a_part_without_tokens_has_loss_zero_and_can_be_differentiated(name: str, options: dict[str, Any]) -> None:
    tokens = random_tokens(1)
    nothing = tokens.take(slice(0, 0))
    loss, metrics = Loss(name, options, kl_coef=0.1, importance="truncate")(nothing)
    assert float(loss) == 0 and all(float(value) == 0 for value in metrics.values())
    assert torch.equal(gradient(loss, tokens), torch.zeros(len(tokens), dtype=torch.float64))


def test_turns_without_tokens_and_gaps_in_the_ids_do_no_harm() -> None:
    turn, trajectory = torch.tensor([0, 0, 3, 3]), torch.tensor([0, 0, 2, 2])
    assert token_weights(turn, trajectory, "turn").tolist() == [0.25] * 4
    new = leaf([-1.0, -2.0, -3.0, -4.0])
    for name in ("gspo", "gmpo"):
        loss, _ = objectives.compute(name, Tokens(new, new, torch.ones(4), turn, trajectory, token_weights(turn, trajectory, "turn")))
        assert torch.autograd.grad(loss, new)[0].tolist() == [-0.25] * 4
    assert token_weights([], [], "turn").tolist() == []
    assert token_weights([0, 1], [0, 0], "turn", mask=[False, False]).tolist() == [0.0, 0.0]


def test_the_old_policy_carries_no_gradient_even_if_it_is_the_same_tensor() -> None:
    tokens = random_tokens(4)
    same = Tokens(**{**tokens.columns(), "old_logprob": tokens.logprob})
    expected = gradient(objectives.compute("reinforce", tokens)[0], tokens)
    assert torch.allclose(gradient(objectives.compute("clip", same)[0], same), expected)


def test_metrics_carry_no_gradient() -> None:
    _, metrics = Loss("gspo", kl_coef=0.1, entropy_coef=0.1, importance="truncate")(random_tokens(0))
    assert not any(value.requires_grad for value in metrics.values())
    assert all(value.dim() == 0 for value in metrics.values())


def test_a_split_trajectory_is_refused_where_the_loss_needs_it_whole() -> None:
    assert (Loss("clip").level, Loss("gspo").level, Loss("gspo", {"level": "trajectory"}).level) == ("token", "turn", "trajectory")
    assert Loss("gspo", importance="mask", importance_options={"level": "trajectory"}).level == "trajectory"
    with pytest.raises(TurnwiseError, match="trajectory 1 is split over micro-batches 0 and 1"):
        objectives.check_split([[0, 0, 1], [1, 2]], "trajectory")
    objectives.check_split([[0, 0, 1], [2, 3]], "trajectory")
    objectives.check_split([[0], [0]], "token")


def test_wrong_names_and_columns_are_explained() -> None:
    tokens = random_tokens(0)
    with pytest.raises(TurnwiseError, match=r"unknown objective 'gpso'\. Did you mean 'gspo'"):
        objectives.compute("gpso", tokens)
    with pytest.raises(TurnwiseError, match="Did you mean 'clip_high'"):
        objectives.compute("clip", tokens, clip_hihg=0.2)
    with pytest.raises(TurnwiseError, match=r"clip_low takes number in \[0, 1\]"):
        objectives.compute("clip", tokens, clip_low=-0.1)
    with pytest.raises(TurnwiseError, match="unknown importance correction 'truncated'"):
        Loss(importance="truncated")
    with pytest.raises(TurnwiseError, match='importance is "none"'):
        Loss(importance_options={"high": 2.0})
    with pytest.raises(TurnwiseError, match="kl_coef must be a number"):
        Loss(kl_coef=-1.0)
    with pytest.raises(TurnwiseError, match="Did you mean 'k3"):
        Loss(kl="k4")
    with pytest.raises(TurnwiseError, match="Did you mean 'turn'"):
        token_weights([0], [0], "turns")
    with pytest.raises(TurnwiseError, match="constant"):
        token_weights([0], [0], "turn", constant=3.0)
    with pytest.raises(TurnwiseError, match="one turn id occurs in several trajectories"):
        token_weights([0, 1, 0], [0, 0, 1], "turn")
    with pytest.raises(TurnwiseError, match="column advantage has shape"):
        Tokens(**{**tokens.columns(), "advantage": tokens.advantage[:-1]})
    with pytest.raises(TurnwiseError, match="'advantage' has the name of a built-in column"):
        Tokens(**tokens.columns(), extra={"advantage": tokens.advantage})
    with pytest.raises(TurnwiseError, match="int64 or int32"):
        Tokens(**{**tokens.columns(), "turn": tokens.turn.double()})


def test_a_missing_column_names_who_needs_it() -> None:
    columns = random_tokens(0).columns()
    bare = Tokens(**{key: columns[key] for key in ("logprob", "old_logprob", "advantage", "turn", "trajectory", "weight")})
    for settings_, column in (
        ({"kl_coef": 0.1}, "ref_logprob"),
        ({"entropy_coef": 0.1}, "entropy"),
        ({"importance": "mask"}, "engine_logprob"),
    ):
        loss_of = Loss(**settings_)
        assert loss_of.needs == (column,)
        with pytest.raises(TurnwiseError, match=f"no column {column}"):
            loss_of(bare)


def test_an_objective_of_ones_own_is_one_function(own_names: None) -> None:
    @objectives.register("test_scaled")
    def scaled(tokens: Tokens, *, factor: float = 2.0) -> TokenLoss:
        """Reinforce times a column of one's own."""
        return TokenLoss(-factor * tokens.extra["scale"] * tokens.advantage * tokens.logprob, {"scale": tokens.extra["scale"]})

    tokens = random_tokens(6)
    wide = Tokens(**tokens.columns(), extra={"scale": torch.full((len(tokens),), 0.5)})
    loss, metrics = objectives.compute("test_scaled", wide)
    assert float(loss) == pytest.approx(float(objectives.compute("reinforce", tokens)[0]))
    assert float(metrics["scale"]) == pytest.approx(0.5)

    @objectives.register("test_summed")
    def summed(tokens: Tokens) -> TokenLoss:
        """A sum where one loss a token belongs."""
        return TokenLoss(-tokens.logprob.sum(), {})

    with pytest.raises(TurnwiseError, match="return one loss per token"):
        objectives.compute("test_summed", tokens)
    halves = [wide.take(tokens.turn % 2 == k) for k in (0, 1)]
    assert sum(float(objectives.compute("test_scaled", half)[0]) for half in halves) == pytest.approx(float(loss))


def test_the_pages_name_every_objective_option_aggregation_and_metric() -> None:
    docs = Path(__file__).parents[2] / "docs"
    own = [docs / "methods" / f"{name}.md" for name, _ in CASES]  # what an objective of one method has is on the page of the method
    page = "\n".join(
        path.read_text() for path in [docs / "guides" / "objectives.md", docs / "reference" / "metrics.md", *own] if path.exists()
    )
    names = {name for name, _ in CASES} | {option for name, _ in CASES for option in algorithms[name].options} | set(AGGREGATIONS)
    for importance in objectives.corrections.names():
        names |= {importance} | set(objectives.corrections[importance].options)
        if isinstance(objectives.corrections[importance].function, type):
            continue  # it is prepared per mini-batch: see test_method_objectives_losses.py
        for name, options in CASES:
            names |= set(Loss(name, options, kl_coef=0.1, entropy_coef=0.1, importance=importance)(random_tokens(0))[1])
    assert [name for name in sorted(names) if f"`{name}`" not in page and f"`learner/{name}`" not in page] == []


def test_the_examples_of_the_page_run(own_names: None) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "objectives.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shared: dict[str, Any] = {"__name__": "objectives_page"}  # later examples use what earlier ones import
    for number, example in enumerate(examples):
        exec(compile(example, f"objectives.md, example {number}", "exec"), shared)
    assert "one_sided" in algorithms


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_loss_and_gradient_can_be_captured_in_a_cuda_graph(name: str, options: dict[str, Any]) -> None:
    whole = random_tokens(9, "turn")
    columns = {key: column.detach().cuda() for key, column in whole.columns().items()}
    tokens = Tokens(**columns, batch_tokens=int((whole.weight > 0).sum()), turns=whole.turns, trajectories=whole.trajectories)
    tokens.logprob.requires_grad_()
    loss_of = Loss(name, options, kl_coef=0.1, entropy_coef=0.1, importance="truncate")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.autograd.grad(loss_of(tokens)[0], tokens.logprob)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, _ = loss_of(tokens)
        slope = torch.autograd.grad(loss, tokens.logprob)[0]
    graph.replay()
    expected, _ = loss_of(whole)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    assert torch.allclose(slope.cpu(), gradient(expected, whole), rtol=1e-10, atol=1e-14)
