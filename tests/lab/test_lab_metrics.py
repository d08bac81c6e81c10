"""The lab's readings: perfect for the truth, nil for noise, and right about planted bias and variance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import turnwise as tw
from turnwise.lab.lines import choose, read_line
from turnwise.lab.metrics import correlation, interval, measure
from turnwise.lab.problems import make
from turnwise.lab.signals import runs_here
from turnwise.lab.study import Case, credit_of, make_case, views_of
from turnwise.lab.training import Schedule, train_case
from turnwise.util.statistics import t_interval

SKILL = 0.2


@pytest.fixture(scope="module")
def grid() -> Case:
    return make_case("grid", make("grid"), SKILL)


@pytest.fixture(scope="module")
def chain() -> Case:
    return make_case("chain", make("chain"), SKILL)


def test_the_true_advantage_reads_perfect(grid: Case) -> None:
    truth, views = views_of(grid, 4, 64, 5, 0)
    credit = credit_of(read_line("oracle"), views)
    for scale in (1.0, 7.5):
        found = measure(scale * credit, truth)
        assert found["correlation"] == pytest.approx(1)
        assert (found["gradient_cosine"] > 0.85).all()


def test_more_samples_bring_the_oracles_gradient_to_the_exact_one(chain: Case) -> None:
    truth, views = views_of(chain, 8, 4096, 2, 0)
    assert (measure(credit_of(read_line("oracle"), views), truth)["gradient_cosine"] > 0.999).all()


def test_noise_reads_nil(grid: Case) -> None:
    truth, _ = views_of(grid, 8, 128, 30, 0)
    noise = np.random.default_rng(5).normal(size=len(truth.advantage))
    found = {name: interval(values) for name, values in measure(noise, truth).items()}
    for name, nothing in (("correlation", 0.0), ("gradient_cosine", 0.0)):
        low, high = found[name]["low"], found[name]["high"]
        assert low is not None and high is not None
        assert low - 0.02 < nothing < high + 0.02
        assert high - low < 0.2


def test_a_constant_credit_has_no_correlation() -> None:
    run, truth = np.array([0, 0, 0, 1, 1]), np.array([1.0, -1.0, 0.0, 2.0, -1.0])
    assert correlation(np.full(5, 0.3), truth, run, 2).tolist() == [0, 0]


def test_correlation_is_pearsons_of_each_run() -> None:
    rng = np.random.default_rng(0)
    run, credit, truth = rng.integers(0, 3, 200), rng.normal(size=200), rng.normal(size=200)
    expected = [np.corrcoef(credit[run == k], truth[run == k])[0, 1] for k in range(3)]
    assert correlation(credit, truth, run, 3) == pytest.approx(expected)


def readings(problem: str, credit: str, seeds: int) -> dict[str, np.ndarray]:
    """What a credit reads on a problem, batch by batch."""
    truth, views = views_of(make_case(problem, make(problem), SKILL), 8, 128, seeds, 0)
    return measure(credit_of(read_line(credit), views), truth)


def gain(problem: str, reading: str, seeds: int) -> dict[str, float | None]:
    """GiGPO's gain over GRPO."""
    ours, theirs = (readings(problem, name, seeds)[reading] for name in ("gigpo", "grpo"))
    return interval(ours - theirs)


# about half of the gain that each of six other seeds shows
@pytest.mark.parametrize(("problem", "least"), [("bifurcation", 0.06), ("corridor", 0.015), ("grid", 0.012), ("chain", 0.03)])
def test_gigpos_credit_is_closer_to_the_truth_than_grpos_where_states_repeat(problem: str, least: float) -> None:
    assert (gain(problem, "correlation", 12)["low"] or 0) > least
    assert (gain(problem, "gradient_cosine", 12)["low"] or 0) > 0


@pytest.mark.parametrize("problem", ["bifurcation", "chain"])
def test_gigpos_gain_grows_with_recurrence_and_is_nil_without(problem: str) -> None:
    gains = [gain(f"{problem}:recurrence={share}", "correlation", 8)["mean"] for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert gains[0] == 0 and gains == sorted(gains)


def test_training_with_the_truth_learns_fastest_and_gigpo_beats_grpo_on_the_chain(chain: Case) -> None:
    lines = choose(["grpo", "gigpo", "oracle"])
    found = train_case(chain, lines, 6, 0, Schedule(iterations=40))["lines"]
    area = {label: one["area"]["mean"] for label, one in found.items()}
    assert all(one["curve"][0] == pytest.approx(0, abs=1e-9) for one in found.values())
    assert area["oracle"] > area["gigpo"] + 0.05 > area["grpo"] + 0.08


def test_a_better_critic_gives_better_credit(grid: Case) -> None:
    truth, views = views_of(grid, 8, 128, 10, 0)
    estimated, exact = (measure(credit_of(read_line(text), views), truth)["correlation"].mean() for text in ("gae", "gae:critic=exact"))
    assert exact > estimated + 0.01


def test_intervals_are_students_and_leave_out_what_is_no_number() -> None:
    values = np.random.default_rng(0).normal(size=9)
    found = interval(np.append(values, np.nan))
    assert (found["low"], found["high"]) == pytest.approx(t_interval(values))
    assert interval(np.array([np.nan, 2.0]))["mean"] == 2 and interval(np.array([np.nan]))["mean"] is None


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["oracel"], "Did you mean 'oracle'"),
        (["gigpo:omga=2"], "Did you mean 'omega'"),
        (["gae:critic=exakt"], "Did you mean 'exact'"),
        (["oracle:x=1"], "no options"),
        ([], "no credit algorithm"),
    ],
)
def test_a_line_that_cannot_be_read_says_why(texts: Sequence[str], message: str) -> None:
    with pytest.raises(tw.TurnwiseError, match=message):
        choose(list(texts))


def test_lines_take_options_as_words() -> None:
    line = read_line("gigpo:norm=none:once=true:omega=0.5")
    assert (line.options["norm"], line.options["once"], line.options["omega"]) == ("none", True, 0.5)
    labels = [line.label for line in choose(None)]
    assert {entry.name for entry in tw.credit.algorithms if tw.credit.stands_alone(entry)} <= set(labels)
    assert all(runs_here(tw.credit.algorithms[line.name]) for line in choose(None) if line.name != "oracle")
    assert len(labels) == len(set(labels))


def test_problems_without_anything_to_decide_are_refused() -> None:
    for text in ("corridor:horizon=2", "bifurcation:luck=0.5", "tree:pays=0"):
        with pytest.raises(tw.TurnwiseError, match="no action matters"):
            make_case(text, make(text), SKILL)
    with pytest.raises(tw.TurnwiseError, match="skill is a probability"):
        make_case("grid", make("grid"), 1.2)
    best = make_case("chain", make("chain"), 1.0)
    with pytest.raises(tw.TurnwiseError, match="first policy is the best"):
        train_case(best, choose(["grpo"]), 2, 0, Schedule())
