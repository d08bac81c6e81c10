"""What a plan can say about an attempt: how long it may take, what the agent is told, and where the expert has brought it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from collect_cases import WordEngine, numbered, play
from conftest import ROOT
from small_runs import UNTAUGHT

from turnwise import Observation, Stop, Task, TurnwiseError
from turnwise.agent import Agent
from turnwise.data.attempts import ChangingHint
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.methods.planning import Plan, TaskSlots
from turnwise.recipe.schema import Config
from turnwise.setup.needs import check_needs
from turnwise.setup.parts import Training
from turnwise.setup.training import build_training

SMALL = UNTAUGHT | {
    "env.max_turns": 4,
    "model.tiny.max_length": 256,
    "agent.max_prompt_tokens": 200,
    "collect.group_size": 2,
    "eval.n": 2,
}


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    built = build_training(Config.load(ROOT / "recipes" / "numberline-tiny.toml", SMALL))
    yield built
    built.close()


def first_prompts(training: Training, trajectory: Trajectory) -> list[str]:
    return [training.tokenizer.decode(turn.prompt_ids) for turn in trajectory.turns]


def collector(training: Training) -> Any:
    return training.evaluate.collectors.evaluation()


def test_an_attempt_ends_at_its_own_limit_and_never_after_the_runs() -> None:
    starts = TaskSlots(numbered(3), seed=1, group_size=1).starts(0, 3)
    found = play(WordEngine(bias=0), [replace(start, max_turns=n) for start, n in zip(starts, (1, 2, 50), strict=True)], max_turns=5)
    assert [len(t.turns) for t in found[:2]] == [1, 2] and all(t.stop is Stop.STEP_LIMIT for t in found[:2]) and len(found[2].turns) <= 5


@pytest.mark.parametrize("context", ["window", "full"])
def test_a_hint_is_shown_and_a_function_is_asked_on_every_turn(training: Training, context: str) -> None:
    settings = training.evaluate.collectors.agent.settings  # type: ignore[attr-defined]
    agent = Agent(training.tokenizer, settings.model_copy(update={"context": context}))
    asked: list[str] = []

    def by_observation(text: str) -> str:
        asked.append(text)
        return f"+ {len(set(asked))}"

    def prompts(hint: Any) -> list[str]:
        talk = agent.context(hint)
        talk.start(Task("t", data={"goal": "go"}), system_observation("Current: 1"))
        found = [list(talk.prompt().ids)]
        talk.record(agent.write("+"), agent.read(agent.write("+"), system_observation("Current: 1"))[1], system_observation("Current: 2"))
        found.append(list(talk.prompt().ids))
        return [agent.chat.tokenizer.decode(ids) for ids in found]

    plain, told, changing = prompts(""), prompts("- - -"), prompts(by_observation)
    assert "- - -" not in "".join(plain)
    assert told[0].index("- - -") < told[0].index("Current")
    assert told[1].count("- - -") == 1  # once per sequence: each prompt of a window, the opening of a dialogue
    assert "+ 1" in changing[0] and "+ 2" in changing[1] and {*asked} == {"Current: 1", "Current: 2"}


def system_observation(text: str) -> Any:
    return Observation(text, actions=("+", "-"))


@dataclass
class NextPart(ChangingHint):
    """Shows one part after another, the next one after each response."""

    parts: tuple[str, ...]
    at: int = 0

    def __call__(self, observation: str) -> str:
        return f"{len(self.parts)} {self.parts[self.at]}"

    def on_response(self, response: str) -> None:
        self.at = min(self.at + 1, len(self.parts) - 1)


def test_a_hint_that_hears_responses_changes_with_them_in_each_attempt_alone(training: Training) -> None:
    hint = NextPart(("- -", "+ +", "- + -"))
    starts = [replace(start, hint=hint) for start in training.slots.starts(0, 2)[:3]]
    found = collector(training).run(starts)
    for one in found:
        shown = [next(text for text in hint.parts if f"3 {text}" in prompt) for prompt in first_prompts(training, one)]
        assert shown == [*hint.parts, hint.parts[-1]][: len(shown)]
    assert max(len(one.turns) for one in found) > 1 and hint.at == 0


def test_what_a_policy_is_told_and_has_to_forget_is_not_in_the_prompts_that_it_learns_with(training: Training) -> None:
    [start, *_] = training.slots.starts(0, 1)
    told = replace(start, hint="- - - - -")
    forgotten = replace(told, forget=True)
    seen, learned = collector(training).run([told])[0], collector(training).run([forgotten])[0]
    assert [turn.response_ids for turn in seen.turns] == [turn.response_ids for turn in learned.turns]  # the policy saw the same
    assert np.allclose([p for t in seen.turns for p in t.logprobs], [p for t in learned.turns for p in t.logprobs])
    assert all("- - - - -" in text for text in first_prompts(training, seen))
    assert not any("- - - - -" in text for text in first_prompts(training, learned)) and learned.turns[0].info["hint"] == "- - - - -"


def test_a_branch_from_the_expert_begins_where_it_was_and_learns_from_its_own_turns_alone(training: Training) -> None:
    slots = training.slots
    task = next(task for task in slots.tasks if abs(task.data["target"] - task.data["start"]) == 4)
    [shown] = slots.demonstrations([task])
    assert shown.success and len(shown.turns) == 4
    slots.begin()
    [group, *_] = slots.group(task)
    made = collector(training)
    found = made.run(slots.branch(shown, 3, 2, group=group.group, task=task))
    assert not made.counts["lost_branches"] and [len(t.turns) for t in found] == [4, 4]
    assert all([turn.action for turn in t.turns[:3]] == [turn.action for turn in shown.turns[:3]] for t in found)
    batch = Batch.of(found, [task])
    assert batch.column("turn.mask").tolist() == [False, False, False, True] * 2
    assert batch.part([1]).column("turn.mask").tolist() == [False, False, False, True]


def test_a_batch_of_sampled_turns_has_no_mask() -> None:
    assert not Batch.of([Trajectory(0, 0, turns=[Turn("a")])]).has("turn.mask")


def test_the_policy_answers_a_message_of_the_plan_the_same_way_for_the_same_seed(training: Training) -> None:
    one, two = (training.slots.answers(["say + or -", "again"], 5) for _ in range(2))
    assert one == two and len(one) == 2 and any(one)


def test_the_policy_answers_with_turns_that_hold_what_was_sampled(training: Training) -> None:
    texts = ["say + or -", "again"]
    turns = training.slots.generated(texts, 5)
    assert [turn.response.strip() for turn in turns] == training.slots.answers(texts, 5)
    assert all(len(turn.response_ids) == len(turn.logprobs) > 0 and len(turn.prompt_ids) for turn in turns)
    assert [turn.observation for turn in turns] == texts


def test_a_plan_learns_how_attempts_begin(training: Training) -> None:
    starts = training.slots.starts(0, 3)[:: training.slots.group_size]
    played = collector(training).run(starts)
    assert training.slots.openings(starts) == [f"{t.goal}\n{t.turns[0].observation}" for t in played] and played[0].goal


def test_an_attempt_can_have_a_temperature_of_its_own(training: Training) -> None:
    starts = [replace(start, temperature=0) for start in training.slots.starts(0, 1)]
    greedy = [[turn.response for turn in t.turns] for t in collector(training).run(starts)]
    assert all(said == greedy[0] for said in greedy)


def test_without_a_run_there_is_no_expert_and_nobody_to_ask() -> None:
    slots = TaskSlots(numbered(2), 0, 2)
    with pytest.raises(TurnwiseError, match=r"env\.expert"):
        slots.demonstrations([Task("t")])
    with pytest.raises(TurnwiseError, match="training run"):
        slots.answers(["?"], 0)


def test_an_expert_is_one_who_plans_or_one_who_advises() -> None:
    from turnwise import methods

    @methods.plan("follows an expert", needs=("env.expert",))
    class Follows(Plan):
        """Needs an expert."""

    config = Config.load(ROOT / "recipes" / "numberline-tiny.toml", {**SMALL, "plan.name": "follows an expert"})
    for name in ("expert", "expert_action"):
        check_needs(config, environment=type("Env", (), {name: lambda self: None}))
    with pytest.raises(TurnwiseError, match=r"no expert\(\) or expert_action\(\)"):
        check_needs(config, environment=type("Env", (), {}))


def test_a_plan_may_tell_the_attempts_of_an_evaluation_something(training: Training) -> None:
    class Tells(Plan):
        def evaluated(self, start: Any) -> Any:
            return replace(start, hint="- - -")

    def shown(plan: Plan) -> int:
        played = replace(training.evaluate, plan=plan)().trajectories
        return sum("- - -" in text for trajectory in played for text in first_prompts(training, trajectory))

    assert shown(Plan()) == 0 < shown(Tells())
