"""Players without a model: random, expert and scripted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from turnwise import Task, TurnwiseError
from turnwise.collect.players import ASK_EXPERT, Advised, ExpertPlayer, Player, RandomPlayer, RulePlayer, ScriptedPlayer, Situation
from turnwise.envs.base import Observation, Transition
from turnwise.envs.pool import Pool

TASK = Task("t", data={"goal": 3})


class Steps:
    """Reach the goal from 0 by "up"; the expert says how from anywhere."""

    max_turns = 9

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.goal, self.at = task.data["goal"], 0
        return self._see()

    def step(self, action: str) -> Transition:
        self.at += {"up": 1, "down": -1}.get(action, 0)
        done = self.at == self.goal
        return Transition(self._see(), float(done), done, done, {"at": self.at})

    def _see(self) -> Observation:
        return Observation(str(self.at), actions=("up", "down", "stay"))


class Advising(Steps):
    def expert_action(self) -> str | None:
        return None if self.at > 50 else "up" if self.at < self.goal else "down"


class Planning(Steps):
    def expert(self, task: Task) -> list[str]:
        return ["up"] * task.data["goal"]


def play(player: Player, factory: Callable[[], object], workers: int = 0, seed: int = 0, turns: int = 9) -> list[str]:
    """The actions of one attempt, as a collector would play it."""
    with Pool(factory, 1, workers=workers, timeout=20.0) as pool:
        result, actions = pool.reset(0, TASK, seed), []
        for turn in range(turns):
            action = player.act(result.observation, Situation(TASK, seed, turn))
            if action is None:
                break
            result = pool.step(0, action)
            if result.transition is None:
                return [*actions, result.message]
            actions.append(result.transition.info.get("action", action))
            if result.over:
                break
        return actions


@pytest.mark.parametrize("env", [Advising, Planning])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_expert_plays_wherever_the_environment_runs(env: type, workers: int) -> None:
    assert play(ExpertPlayer(), Advised(env), workers) == ["up", "up", "up"]


def test_an_expert_with_noise_makes_mistakes_and_comes_back() -> None:
    played = [play(ExpertPlayer(noise=0.4), Advised(Advising), seed=seed, turns=60) for seed in range(30)]
    assert all(actions.count("up") - actions.count("down") == 3 for actions in played)
    counts = Counter(action for actions in played for action in actions)
    assert 0.05 < counts["stay"] / counts.total() < 0.25
    assert played[3] == play(ExpertPlayer(noise=0.4), Advised(Advising), seed=3, turns=60)


def test_an_environment_keeps_its_own_members_and_info_beside_its_expert() -> None:
    env = Advised(Advising)()
    env.reset(TASK)
    assert env.max_turns == 9
    assert env.step(ASK_EXPERT).info == {"at": 1, "action": "up"}
    assert env.step("down").info == {"at": 0, "action": "down"}


def test_a_plan_that_was_left_and_an_environment_without_expert_say_so() -> None:
    env = Advised(Planning)()
    env.reset(TASK)
    env.step("down")
    with pytest.raises(TurnwiseError, match="no advice after 1 turns"):
        env.step(ASK_EXPERT)
    assert "Steps has no expert" in Pool(Advised(Steps), 1).reset(0, TASK).message


def test_the_random_player_is_even_and_depends_on_seed_and_turn_alone() -> None:
    seen = Observation("", actions=("up", "down", "stay"))
    player = RandomPlayer()
    chosen = [player.act(seen, Situation(TASK, seed, turn)) for seed in range(60) for turn in range(50)]
    assert all(900 < count < 1100 for count in Counter(chosen).values())
    again = [player.act(seen, Situation(Task("other"), seed, turn)) for seed in range(60) for turn in range(50)]
    assert chosen == again and chosen[:50] != chosen[50:100]
    assert player.act(Observation("", actions=()), Situation(TASK, 0, 0)) is None
    with pytest.raises(TurnwiseError, match="lists its admissible actions"):
        player.act(Observation(""), Situation(TASK, 0, 0))


def test_a_script_is_followed_and_then_the_attempt_ends() -> None:
    assert play(ScriptedPlayer(["up", "stay"]), Steps) == ["up", "stay"]


class Unlisted(Steps):
    """Lists no actions, but can make one, and has a rule."""

    def reset(self, task: Task, seed: int = 0) -> Observation:
        return Observation(super().reset(task, seed).text)

    def step(self, action: str) -> Transition:
        found = super().step(action)
        return replace(found, observation=Observation(found.observation.text))

    def random_action(self, number: int) -> str:
        return ("up", "down")[number % 2]

    def scripted_action(self) -> str:
        return "stay"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_makes_random_and_scripted_actions_itself(workers: int) -> None:
    random = play(RandomPlayer(asks=True), Advised(Unlisted, required=False), workers, turns=30)
    assert set(random) == {"up", "down"}
    assert random == play(RandomPlayer(asks=True), Advised(Unlisted, required=False), turns=30)
    assert play(RulePlayer(), Advised(Unlisted, required=False), workers, turns=3) == ["stay"] * 3


class AdvisingUnlisted(Unlisted):
    """Its expert stays."""

    def expert_action(self) -> str:
        return "stay"


def test_a_noisy_expert_asks_for_random_actions_where_none_are_listed_and_only_if_it_may() -> None:
    played = play(ExpertPlayer(noise=0.4, asks=True), Advised(AdvisingUnlisted), turns=60)
    assert set(played) == {"stay", "up", "down"}
    assert played == play(ExpertPlayer(noise=0.4, asks=True), Advised(AdvisingUnlisted), turns=60)
    assert play(ExpertPlayer(noise=0.4), Advised(AdvisingUnlisted), turns=60) == ["stay"] * 60
