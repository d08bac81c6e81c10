"""The audit: it finds biases that are known, none where there is none, and no placebo looks good."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.data.rollouts import Floats
from turnwise.lab.audit import (
    Scene,
    Settings,
    audit,
    cosine,
    direction,
    examine,
    gradient_noise,
    gradients,
    make_scene,
    right_signs,
    square_of_mean,
    turn_index,
)
from turnwise.lab.audit_tables import many, one, verdict
from turnwise.lab.lines import read_line
from turnwise.lab.study import credit_of
from turnwise.lab.values import occupancy
from turnwise.util.console import Console

SMALL = {"batches": 40, "budget": 16}
SEARCH, LUCK = "search:pay=0.4", "bifurcation:branching=3:delay=2:luck=0.2"


@pytest.fixture(scope="module")
def search() -> Scene:
    return make_scene(SEARCH, Settings(batches=64, budget=64))


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return audit(["gigpo", "vineppo", "igpo", "gae", "hgpo"], Settings([SEARCH, LUCK, "corridor:length=4:recurrence=0.0"], **SMALL))


def numbers(credit: Floats, scene: Scene) -> dict[str, Any]:
    return examine(credit, scene, gradient_noise(gradients(credit_of(read_line("grpo"), scene.views), scene)))


def of(name: str, scene: Scene) -> dict[str, Any]:
    return numbers(credit_of(read_line(name), scene.views), scene)


def test_the_true_advantage_reads_perfect_whatever_its_scale(search: Scene) -> None:
    for scale in (1.0, 7.5):
        found = numbers(scale * search.truth, search)
        assert found["correlation"]["mean"] == found["pairs"] == found["turns"] == pytest.approx(1)
        assert found["scale"]["low"] < scale < found["scale"]["high"]
        assert found["p"] > 0.05 and found["bias"] < 0.05 and found["against"] == 0 and found["variance"] < 0.3
        assert found["cosine"]["mean"] == pytest.approx(1, abs=0.002)


def hidden_price(scene: Scene) -> Floats:
    """The expected gradient of `turn_index` for large groups, by dynamic programming: every turn but an attempt's last is charged the mean
    reward of such turns with its number."""
    problem, policy = scene.case.problem, scene.case.policy
    share, probability = occupancy(problem, policy), problem.probability
    value, advantage = np.zeros(problem.states), np.zeros((problem.horizon, problem.states, problem.actions))
    for t in reversed(range(problem.horizon)):
        goes_on = ~problem.terminal[problem.next_state] & (t < problem.horizon - 1)
        weight = (share[t][:, None] * policy)[:, :, None] * probability * goes_on
        price = (weight * problem.reward).sum() / max(weight.sum(), 1e-300)
        q = (probability * (problem.reward - price * goes_on + value[problem.next_state])).sum(axis=-1)
        q[problem.terminal] = 0.0
        value = (policy * q).sum(axis=1)
        advantage[t] = q - value[:, None]
    return np.asarray((np.einsum("ts,tsa->sa", share, advantage) * policy).ravel())


def test_a_baseline_by_turn_number_has_the_hidden_price_that_theory_gives_it(search: Scene) -> None:
    credit = np.concatenate([turn_index(view.rollouts()) for view in search.views])
    found, expected = numbers(credit, search), hidden_price(search)
    assert found["p"] < 0.001 and found["bias"] > 0.5 and found["cosine"]["high"] < 0.9 and found["against"] > 0.2
    assert cosine(gradients(credit, search), expected)["mean"] > 0.98 > 0.9 > cosine(np.tile(expected, (64, 1)), search.gradient)["mean"]
    free = make_scene("search:pay=0.0", Settings(**SMALL))  # turns that pay nothing have no price
    assert numbers(np.concatenate([turn_index(view.rollouts()) for view in free.views]), free)["p"] > 0.05


@pytest.mark.parametrize("name", ["rloo", "dr_grpo", "grpo", "vineppo", "gae:lam=1"])
def test_credit_without_a_hidden_price_shows_no_bias_where_the_policy_decides_when_to_stop(name: str, search: Scene) -> None:
    found = of(name, search)
    assert found["p"] > 0.05 and found["against"] == 0 and found["cosine"]["low"] > 0.98


def test_a_price_of_a_turn_is_found_and_a_price_of_a_state_is_no_bias(search: Scene) -> None:
    """Planted: less credit for every turn that goes on is bias; less credit for all actions of a state is a poor baseline."""
    goes_on = search.batch.action != 0
    found = numbers(search.truth - 0.3 * goes_on, search)
    # the price changes A by −0.3 (1 − share of going on), so its size relative to A is known
    share = search.case.policy[0, 1:].sum()
    price = np.where(np.arange(len(search.visits)) % 3 != 0, -0.3 * (1 - share), 0.3 * share)
    credit, truth = search.advantage + price, search.advantage
    scale = np.average(credit * truth, weights=search.visits) / np.average(truth**2, weights=search.visits)
    error = np.average((credit / scale - truth) ** 2, weights=search.visits) / np.average(truth**2, weights=search.visits)
    assert found["p"] < 0.001 and found["bias"] == pytest.approx(np.sqrt(error), rel=0.1)
    assert numbers(search.truth - 0.3 * search.batch.state, search)["p"] > 0.05


def test_false_alarms_are_as_rare_as_they_say_and_p_is_uniform() -> None:
    """Binomial bounds: 5 % of 300 is 15; more than 7 % were 21."""
    found: list[Any] = []
    for seed in range(100):
        scene = make_scene(LUCK, Settings(seed=seed, batches=24, budget=16))
        noise = np.random.default_rng(seed).normal(size=len(scene.truth))
        credits = (scene.truth, credit_of(read_line("rloo"), scene.views), scene.truth + noise)
        found += [direction(gradients(credit, scene), scene)["p"] for credit in credits]
    p = np.sort(np.array(found))
    assert (p < 0.05).mean() <= 0.07
    assert np.abs(p - np.arange(1, len(p) + 1) / len(p)).max() < 0.12  # Kolmogorov's distance; three p of a seed are related


def test_noise_makes_an_expected_gradient_neither_longer_nor_less_true() -> None:
    rng, truth = np.random.default_rng(0), np.array([3.0, -1.0, 0.0, 0.0, 2.0])
    g = truth + 5 * rng.normal(size=(2000, 24, 5))  # the square of each mean is 14, and 19 with its noise
    assert np.mean([square_of_mean(one) for one in g]) == pytest.approx(14, abs=0.6)
    angles = [cosine(one, np.array([1.0, 2.0, 0.0, 1.0, 2.0])) for one in truth + 2 * rng.normal(size=(300, 24, 5))]
    exact = 5 / np.sqrt(14 * 10)
    assert np.mean([one["mean"] for one in angles if one["mean"] is not None]) == pytest.approx(exact, abs=0.02)
    assert 0.9 < np.mean([(one["low"] or 0) < exact < (one["high"] or 0) for one in angles]) <= 1


def test_placebos_do_not_look_good(result: dict[str, Any]) -> None:
    for label, found in result["methods"].items():
        for problem, own in found["problems"].items():
            shuffled, flipped = found["controls"]["shuffled between turns"][problem], found["controls"]["sign flipped"][problem]
            assert abs(shuffled["correlation"]["mean"]) < 0.06 and shuffled["cosine"]["mean"] is None, (label, problem)
            assert abs(shuffled["turns"] - 0.5) < 0.05
            assert flipped["correlation"]["mean"] == pytest.approx(-own["correlation"]["mean"])
            assert flipped["cosine"]["mean"] == pytest.approx(-own["cosine"]["mean"]) if own["cosine"]["mean"] else True
    for constant in result["references"]["constant"].values():
        assert constant["correlation"]["mean"] == 0 and constant["pairs"] == constant["turns"] == 0.5 and constant["cosine"]["mean"] is None


def test_anchors_and_step_credit_are_taken_away_only_from_credit_that_has_them(result: dict[str, Any]) -> None:
    controls = {label: set(found["controls"]) for label, found in result["methods"].items()}
    assert "random anchors" in controls["gigpo"] and "random anchors" not in controls["gae"] | controls["vineppo"]
    assert "omega = 0" in controls["gigpo"] and "omega = 0" not in controls["hgpo"]
    assert result["methods"]["gigpo"]["controls"]["omega = 0"] == result["references"]["grpo"]
    real, random = (
        numbers[LUCK]["correlation"]["mean"]
        for numbers in (result["methods"]["gigpo"]["problems"], result["methods"]["gigpo"]["controls"]["random anchors"])
    )
    assert real > random + 0.03


def test_a_credit_without_any_signal_has_no_direction_and_says_so(result: dict[str, Any]) -> None:
    silent = result["methods"]["hgpo"]["problems"]["corridor:length=4:recurrence=0.0"]  # no state repeats, so nothing is compared
    assert silent["cosine"]["mean"] is silent["bias"] is silent["p"] is silent["variance"] is None and silent["pairs"] == 0.5
    assert "not above 0 on 1 of 3" in verdict(result, "hgpo")


def test_verdicts_name_the_bias_the_noise_and_the_cost(result: dict[str, Any]) -> None:
    assert f"most on {SEARCH}" in verdict(result, "igpo") and "moved the wrong way" in verdict(result, "igpo")
    assert "no bias was found on any of 3 problems" in verdict(result, "vineppo")
    cost = result["methods"]["vineppo"]["problems"][LUCK]["samples"]
    assert cost > 3 and "turns of the environment per turn" in verdict(result, "vineppo")
    assert result["methods"]["gae"]["problems"][LUCK]["samples"] == 2 and result["methods"]["gigpo"]["problems"][LUCK]["samples"] == 1


def test_a_flipped_sign_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tw.credit.algorithms, "_entries", dict(tw.credit.algorithms._ready()))

    @tw.credit.register("flipped")
    def flipped(r: tw.Rollouts) -> Any:
        """RLOO, with the sign of a loss."""
        return -tw.credit.compute("rloo", r)

    assert "is its sign right?" in verdict(audit(["flipped"], Settings([LUCK], **SMALL)), "flipped")


def test_right_signs_count_both_sides_equally() -> None:
    truth = np.array([1.0, 1.0, 1.0, -1.0, 0.0])
    assert right_signs(np.ones(5), truth, np.ones(5)) == 0.5
    assert right_signs(np.array([1.0, -1.0, 0.0, -2.0, 5.0]), truth, np.ones(5)) == pytest.approx((0.5 + 1) / 2)


def test_tables_fit_into_80_columns_and_the_same_seed_gives_the_same_numbers(result: dict[str, Any]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    for label in result["methods"]:
        console.print(one(result, label))
    console.print(many(result))
    text = console.export_text()
    assert all(len(line) <= 80 for line in text.splitlines()) and "…" not in text
    again = audit(["gigpo"], Settings([LUCK], **SMALL))
    assert json.dumps(again["methods"]["gigpo"]["problems"][LUCK]) == json.dumps(result["methods"]["gigpo"]["problems"][LUCK])
    assert audit(["gigpo"], Settings([LUCK], seed=1, **SMALL))["methods"] != again["methods"]


def test_the_command_prints_a_table_or_all_numbers_as_json() -> None:
    arguments = ["lab", "audit", "grpo", "--problems", "bifurcation:branching=2:delay=1"]
    shown, asked = (CliRunner().invoke(app, [*arguments, *more]) for more in ([], ["--json"]))
    assert shown.exit_code == 0 and "no bias was found on any of 1 problems" in " ".join(shown.stdout.split())
    assert json.loads(asked.stdout)["methods"]["grpo"]["biased"] == []


@pytest.mark.parametrize(
    ("arguments", "message"), [([], "name a credit algorithm"), (["gigop"], "Did you mean 'gigpo'"), (["gigpo", "--all"], "or all of them")]
)
def test_wrong_choices_are_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["lab", "audit", *arguments])
    assert isinstance(done.exception, tw.TurnwiseError) and message in str(done.exception)
