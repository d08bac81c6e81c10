"""OpenEnv's own rubric and environment: the credit of steps is that of `tw.credit.compute`, by methods that need no other attempts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Attempt, random_attempts, rollouts_of

import turnwise as tw
from turnwise.util.errors import TurnwiseError

SEEDS = (0, 1, 2)


def test_another_version_of_openenv_is_one_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.hosts.versions.metadata.version", lambda package: "0.11.2")
    monkeypatch.delitem(sys.modules, "turnwise.hosts.openenv", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "0.11.2")
    with pytest.raises(TurnwiseError, match=r"written for openenv 0\.10, and 0\.11\.2 is installed: pip install 'openenv==0\.10\.\*'"):
        importlib.import_module("turnwise.hosts.openenv")


@pytest.fixture(scope="module")
def host() -> Any:
    pytest.importorskip("openenv.core.rubrics", reason="OpenEnv is not installed here: make test-hosts ONLY=openenv")
    return importlib.import_module("turnwise.hosts.openenv")


def rubric_of(host: Any, credit: str, **options: Any) -> Any:
    """A rubric for the steps of an attempt. An observation holds its turn's reward, and the value of the state that it leads to."""

    class Rubric(host.CreditRubric):
        first_value = 0.0

        def score_trajectory(self, trajectory: list[Any]) -> float:
            return float(trajectory[-1][1].metadata["earned"])

        def step_reward(self, action: Any, observation: Any) -> float:
            return float(observation.metadata["earned"])

        def value_of(self, observation: Any) -> float:
            return self.first_value if observation is None else float(observation.metadata["next_value"])

    return Rubric(credit, **options)


def environment_of(attempt: Attempt, rubric: Any) -> Any:
    """An environment of OpenEnv that plays an attempt back, and calls its rubric as OpenEnv's environments do."""
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Observation

    class Playback(Environment):
        def reset(self, *arguments: Any, **options: Any) -> Any:
            self._reset_rubric()
            self.t = 0
            return Observation()

        def step(self, action: Any, timeout_s: float | None = None, **options: Any) -> Any:
            turn = attempt.turns[self.t]
            self.t += 1
            done = self.t == len(attempt.turns)
            following = 0.0 if done else attempt.turns[self.t].value
            observation = Observation(done=done, metadata={"earned": turn.reward, "next_value": following})
            observation.reward = self._apply_rubric(action, observation)
            return observation

        @property
        def state(self) -> Any:
            return None

    return Playback(rubric=rubric)


def played(attempt: Attempt, rubric: Any) -> list[float]:
    """What the rubric says of each step of an attempt, after its last one."""
    from openenv.core.env_server.types import Action

    rubric.first_value = attempt.turns[0].value
    environment = environment_of(attempt, rubric)
    environment.reset()
    reported = [environment.step(Action()).reward for _ in attempt.turns]
    assert reported == [turn.reward for turn in attempt.turns]
    credit: list[float] = environment.rubric.compute_step_rewards()
    return credit


@pytest.mark.parametrize("seed", SEEDS)
def test_the_credit_of_steps_is_that_of_a_whole_batch(host: Any, seed: int) -> None:
    """Every method that the registry has for one trajectory, on attempts one by one and on all of them at once."""
    attempts = random_attempts(seed)
    for name in host.methods(alone=True):
        options = {"norm": "none"} if "norm" in tw.credit.algorithms.of(name).options else {}
        rubric = rubric_of(host, name)
        found = [credit for attempt in attempts for credit in played(attempt, rubric)]
        np.testing.assert_allclose(found, tw.credit.compute(name, rollouts_of(attempts), **options), atol=1e-6)


def test_options_reach_the_method(host: Any) -> None:
    attempt = random_attempts(4)[0]
    rubrics = [rubric_of(host, "gae", gamma=gamma, lam=0.5) for gamma in (0.5, 1.0)]
    wanted = [tw.credit.compute("gae", rollouts_of([attempt]), gamma=gamma, lam=0.5, norm="none") for gamma in (0.5, 1.0)]
    for rubric, credit in zip(rubrics, wanted, strict=True):
        np.testing.assert_allclose(played(attempt, rubric), credit, atol=1e-6)


def test_the_discounting_rubric_of_openenv_is_the_same_number_for_one_final_score(host: Any) -> None:
    """IPA's credit of a single score at the end is OpenEnv's own exponential discounting."""
    from openenv.core.rubrics import ExponentialDiscountingTrajectoryRubric

    class Own(ExponentialDiscountingTrajectoryRubric):
        def score_trajectory(self, trajectory: list[Any]) -> float:
            return float(trajectory[-1][1].metadata["earned"])

    class Ours(host.CreditRubric):
        score_trajectory = Own.score_trajectory

    attempt = random_attempts(1, outcome_only=True)[0]
    attempt.turns[-1].reward = 1.0
    rubrics = Own(gamma=0.8), Ours("ipa", gamma=0.8)
    own, ours = (played(attempt, rubric) for rubric in rubrics)
    np.testing.assert_allclose(ours, own, atol=1e-6)


def test_methods_that_compare_are_refused_with_a_list_of_both_kinds(host: Any) -> None:
    alone, comparing = host.methods(alone=True), host.methods(alone=False)
    assert {"gae", "ipa"} <= set(alone) and {"gigpo", "grpo", "rloo", "hgpo", "reinforce_pp"} <= set(comparing)
    with pytest.raises(TurnwiseError) as error:
        rubric_of(host, "gigpo")
    assert all(name in str(error.value) for name in (*alone, *comparing))
    with pytest.raises(TurnwiseError, match="reinforce_pp compares trajectories"):
        rubric_of(host, "reinforce_pp")


def test_a_method_registered_by_a_user_is_judged_by_what_it_does(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tw.credit.algorithms, "_entries", dict(tw.credit.algorithms._entries))

    @tw.credit.register("half_reward")
    def half_reward(r: tw.Rollouts) -> Any:
        """Half of the reward."""
        return r.reward / 2

    @tw.credit.register("minus_mean")
    def minus_mean(r: tw.Rollouts) -> Any:
        """The reward minus the mean of all."""
        return r.reward - r.reward.mean()

    assert "half_reward" in host.methods(alone=True) and "minus_mean" in host.methods(alone=False)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bi_level_gae", {}, "needs token.value, which an environment does not have"),
        ("gae", {"level": "token"}, "needs token.value"),
        ("vineppo", {}, "needs turn.mc_value"),
        ("gae", {"norm": "std"}, "normalise in the trainer"),
        ("ipa", {"gama": 0.9}, "gama"),
    ],
)
def test_what_an_environment_cannot_have_is_a_clear_message(host: Any, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        rubric_of(host, name, **options)


def test_values_must_come_from_somewhere(host: Any) -> None:
    class Rubric(host.CreditRubric):
        def score_trajectory(self, trajectory: list[Any]) -> float:
            return 1.0

    rubric = Rubric("gae")
    assert rubric.compute_step_rewards() == []
    with pytest.raises(TurnwiseError, match="override value_of"):
        played(random_attempts(0)[0], type("Rubric", (Rubric,), {"step_reward": lambda *_: 0.0})("gae"))


def test_the_code_of_the_page_runs_and_names_these_methods(host: Any) -> None:
    from openenv.core.env_server.types import Action, Observation

    page = (Path(__file__).parents[2] / "docs" / "trainers" / "openenv.md").read_text(encoding="utf-8")
    first, second = (block.split("```")[0] for block in page.split("```python\n")[1:])
    scope: dict[str, Any] = {}
    exec(first, scope)
    steps = [Observation(), Observation(done=True, metadata={"won": True})]
    assert [scope["rubric"](Action(), observation) for observation in steps] == [0.0, 1.0]
    assert scope["rubric"].compute_step_rewards() == pytest.approx([0.9, 1.0])
    shown = second.split("methods(alone=True)")[1].split("# ")[1].split("\n")[0]
    assert shown == str(host.methods(alone=True))


def test_its_settings_survive_a_checkpoint(host: Any) -> None:
    first, second = rubric_of(host, "gae", gamma=0.5), rubric_of(host, "ipa")
    second.load_state_dict(first.state_dict())
    attempt = random_attempts(2)[3]
    assert played(attempt, first) == played(attempt, second)
