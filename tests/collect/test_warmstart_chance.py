"""An environment without an expert: what a model that starts from nothing learns first, and what is said where nothing would help."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from train_cases import TINY
from typer.testing import CliRunner

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.agent import Agent, AgentSettings
from turnwise.cli.app import app
from turnwise.collect.warmstart import expert_trajectories, random_trajectories
from turnwise.envs import Observation, Transition
from turnwise.envs.check import check
from turnwise.envs.registry import numbered
from turnwise.envs.scripts import Limits
from turnwise.learn.tiny import build_tokenizer
from turnwise.runs.folder import Run

HERE = f"{Path(__file__)}:"


class Stairs:
    """Up three times wins; down ends the attempt. A step up pays, so that attempts differ."""

    max_turns, shows = 3, "terminal"

    def reset(self, task: Any, seed: int = 0) -> Observation:
        self.height = 0
        return self._see()

    def step(self, action: str) -> Transition:
        self.height += action == "go up"
        done = self.height == 3 or action == "go down"
        return Transition(self._see(), float(action == "go up"), done, self.height == 3)

    def _see(self) -> Observation:
        return Observation(f"You are on step {self.height}.", actions=("go up", "go down", "wait"))


class Silent(Stairs):
    """The same without a list of what can be done."""

    def _see(self) -> Observation:
        return Observation(f"You are on step {self.height}.")


def start(out: Path, env: str, **changes: Any) -> Any:
    own = {"env.name": HERE + env, "out": str(out), "name": "try", "sft.required": False, "sft.tasks": 24, "iterations": 1}
    return tw.train(**{**TINY, **own, **changes})


@pytest.fixture(scope="module")
def agent() -> Agent:
    words = ["You are on step 0 1 2 3.", "go up", "go down", "wait"]
    return Agent(build_tokenizer(words), AgentSettings(prompt="action", max_prompt_tokens=200))


def test_examples_by_chance_are_listed_actions_and_the_best_of_several_attempts(agent: Agent) -> None:
    def played(tries: int) -> list[Any]:
        return random_trajectories(HERE + "Stairs", {}, numbered("x", "train")[:40], agent, max_turns=3, tries=tries, seed=5)

    once, best = played(1), played(12)
    assert all(turn.action in ("go up", "go down", "wait") for trajectory in [*once, *best] for turn in trajectory.turns)
    won_once, won_best = (sum(trajectory.success for trajectory in played) / 40 for played in (once, best))
    assert won_once < 0.3 < won_best  # one attempt in 27 is won: of twelve, one in three
    assert all(turn.prompt_ids and turn.response_ids for trajectory in best for turn in trajectory.turns)


def test_examples_by_chance_are_the_same_for_any_number_of_workers(agent: Agent) -> None:
    tasks = numbered("x", "train")[:10]
    options: dict[str, Any] = {"max_turns": 3, "tries": 3, "seed": 1}
    one, two = (
        random_trajectories(f"{ROOT / 'tests' / 'support' / 'bandit_env.py'}:Bandit", {}, tasks, agent, limits=Limits(workers), **options)
        for workers in (0, 2)
    )
    assert one == two and one


def test_a_model_that_starts_from_nothing_learns_to_say_what_can_be_done(tmp_path: Path) -> None:
    more = {"sft.lr": 5e-3, "sft.epochs": 20, "sft.batch_tokens": 256, "engine.max_tokens": 4, "eval.n": 1}
    result = start(tmp_path, "Stairs", **more)
    assert result.metrics[0]["sft/turns"] > 24
    run = Run.open(result.folder)
    said = [turn["action"] for row in run.trajectories(1) for turn in row["turns"]]
    assert sum(action in ("go up", "go down", "wait") for action in said) > 0.8 * len(said)  # random bytes say none of these
    assert run.environment() == {"name": run.environment()["name"], "shows": "terminal"}, "for the pages"


def test_where_nothing_would_help_it_is_said_what_does(tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match=r"has no expert and lists no actions.*expert_action\(\).*actions=.*sft.file.*model.path"):
        start(tmp_path, "Silent")
    assert list(tmp_path.iterdir()) == []


def test_the_example_without_an_expert_works_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "environments.md").read_text()
    found = re.search(r"```python\n(\"\"\"Carry a parcel.*?)```", page, re.DOTALL)
    assert found, "docs/guides/environments.md has lost its example"
    assert len([line for line in found[1].splitlines() if line.strip()]) <= 40
    file = tmp_path / "parcel.py"
    file.write_text(found[1])
    assert check(str(file)).problems == []
    played = CliRunner().invoke(app, ["eval", "--agent", "random", "--env", f"{file}:Parcel", "--n", "200", "--json"])
    assert played.exit_code == 0 and '"successes"' in played.output


class Taught(Stairs):
    """The same with somebody who knows the way."""

    def expert_action(self) -> str:
        return "go up"


@pytest.mark.parametrize("learn_all", [False, True])
def test_a_clumsy_player_is_imitated_where_that_is_asked_for_and_chance_never_does_what_is_hidden(learn_all: bool) -> None:
    words = ["You are on step 0 1 2 3.", "go up", "go down", "wait"]
    hiding = Agent(build_tokenizer(words), AgentSettings(prompt="action", max_prompt_tokens=200, hide_actions=("go d*",)))
    tasks = numbered("x", "train")[:100]
    found = expert_trajectories(HERE + "Taught", {}, tasks, hiding, max_turns=6, noise=0.5, learn_all=learn_all, seed=1)
    actions = {turn.action for trajectory in found for turn in trajectory.turns}
    assert actions == ({"go up", "wait"} if learn_all else {"go up"})
    assert any(turn.info.get("chance") for trajectory in found for turn in trajectory.turns) != learn_all


def test_a_warm_start_that_is_not_good_enough_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(tmp_path, "Taught", **{"sft.steps": 1, "sft.until": 1.0, "sft.look_tasks": 4})
    heard = "".join(capsys.readouterr())
    assert "the warm start ended after 1 steps at 0% of 4 training tasks, below the 100% that the recipe asks for" in heard


def test_a_warm_start_goes_on_until_it_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shares = iter([0.1, 0.2, 0.5])
    monkeypatch.setattr("turnwise.setup.warmstart.WarmStart._measurement", lambda warm_start, sft: lambda: next(shares))
    result = start(tmp_path, "Taught", **{"sft.steps": 4, "sft.at_least": 0.5})
    assert (result.metrics[0]["sft/steps"], result.metrics[0]["sft/success"]) == (8, 0.5)
    heard = "".join(capsys.readouterr())
    assert heard.count("2 more steps") == 2 and "asks for" not in heard


def test_a_warm_start_that_never_gets_there_ends_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = start(tmp_path, "Taught", **{"sft.steps": 2, "sft.at_least": 1.0, "sft.look_tasks": 4, "sft.lr": 1e-9})
    assert result.metrics[0]["sft/steps"] == 2 + 4 and result.metrics[0]["sft/success"] < 1
    assert "below the 100% that the recipe asks for" in "".join(capsys.readouterr())


def test_prompts_that_do_not_fit_are_said_before_anything_is_learned(tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match=r"no prompt fits into agent\.max_prompt_tokens=2"):
        start(tmp_path, "Stairs", **{"agent.max_prompt_tokens": 2})
