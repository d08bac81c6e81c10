"""Attempts that start in the middle of another one: they arrive in the same state, take over its turns, and go on from there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from branch_env import Drifting, Kept
from collect_cases import WORDS, WordEngine, numbered, policy
from native_models import make
from toy_env import Corridor

from turnwise import Stop, Task, TurnwiseError
from turnwise.agent.base import Parsed, Prompt
from turnwise.collect.collector import Branch, Collector, Start
from turnwise.collect.hooks import Hooks
from turnwise.collect.model_policy import ModelPolicy
from turnwise.data.rollouts import Trajectory
from turnwise.engines.base import Sampling
from turnwise.engines.native import NativeEngine
from turnwise.envs.base import Observation
from turnwise.envs.pool import Pool
from turnwise.methods.planning import TaskSlots


def told(trajectory: Trajectory) -> list[tuple[Any, ...]]:
    return [(t.prompt_ids, t.response_ids, t.logprobs, t.action, t.reward, t.anchor, t.observation, t.valid) for t in trajectory.turns]


def parents_of(collector: Collector, tasks: int = 4) -> tuple[list[Start], list[Trajectory]]:
    """Starts and their trajectories, the longest first."""
    starts = TaskSlots(numbered(tasks), seed=1, group_size=1).starts(0, tasks)
    pairs = sorted(zip(starts, collector.run(starts), strict=True), key=lambda pair: -len(pair[1].turns))
    return [start for start, _ in pairs], [trajectory for _, trajectory in pairs]


CASES = [(Corridor, False, 0, True), (Kept, False, 0, False), (Kept, True, 0, True), (Kept, True, 2, True), (Kept, False, 2, False)]


@pytest.mark.parametrize(("env", "snapshots", "workers", "ordered"), CASES)
def test_a_branch_with_its_parents_chance_goes_on_as_its_parent_did(env: Any, snapshots: bool, workers: int, ordered: bool) -> None:
    with Pool(env, 3, workers=workers, timeout=20.0) as pool:
        collector = Collector(pool, policy(WordEngine(bias=0)), max_turns=12, snapshots=snapshots, ordered=ordered)
        starts, parents = parents_of(collector)
        assert sum(len(parent.turns) > 2 for parent in parents) > 1
        branches = [
            Start(start.task, start.group, 100 + 10 * start.number + t, 0, start.policy_seed, Branch(parent, t))
            for start, parent in zip(starts, parents, strict=True)
            for t in range(min(3, len(parent.turns)))
        ]
        found = collector.run(branches)
    assert collector.counts["lost_branches"] == 0 and len(found) == len(branches)
    for start, branch in zip(branches, found, strict=True):
        assert start.branch is not None
        parent = start.branch.trajectory
        assert told(branch) == told(parent) and (branch.stop, branch.success) == (parent.stop, parent.success)
        assert (branch.parent, branch.branch_t, branch.seed) == (parent.id, start.branch.t, parent.seed)
        assert branch.goal == parent.goal and branch.final_anchor == parent.final_anchor
        assert all(own is not its for own, its in zip(branch.turns, parent.turns, strict=True))


def test_a_branch_with_its_own_chance_shares_the_turns_before_it_and_no_generation_is_made_for_them() -> None:
    engine = WordEngine(bias=0)
    with Pool(Corridor, 3) as pool:
        collector = Collector(pool, policy(engine), max_turns=12)
        [start, *_], [parent, *_] = parents_of(collector)
        before = len(engine.asked)
        found = collector.run([Start(start.task, start.group, 50 + n, 0, 1000 + n, Branch(parent, 2)) for n in range(6)])
    assert all(told(branch)[:2] == told(parent)[:2] for branch in found)
    assert len({tuple(turn.action for turn in branch.turns) for branch in found}) > 1
    assert len(engine.asked) - before == sum(len(branch.turns) - 2 for branch in found)


def test_snapshots_are_taken_only_when_asked_for_and_then_spare_the_replay() -> None:
    for snapshots in (False, True):
        Kept.asked.clear()
        with Pool(Kept, 2) as pool:
            collector = Collector(pool, policy(WordEngine(bias=0)), max_turns=12, snapshots=snapshots)
            [start, *_], [parent, *_] = parents_of(collector)
            assert ("snapshot" in Kept.asked) == snapshots
            Kept.asked.clear()
            [branch] = collector.run([Start(start.task, start.group, 50, 0, 7, Branch(parent, 2))])
        own = len(branch.turns) - 2
        assert Kept.asked.count("step") == own + (0 if snapshots else 2)
        assert (Kept.asked.count("restore"), Kept.asked.count("reset")) == ((1, 0) if snapshots else (0, 1))


def test_a_branch_of_a_branch_arrives_too() -> None:
    with Pool(Kept, 2) as pool:
        collector = Collector(pool, policy(WordEngine(bias=0)), max_turns=12, snapshots=True)
        [start, *_], [parent, *_] = parents_of(collector)
        [middle] = collector.run([Start(start.task, 0, 50, 0, start.policy_seed, Branch(parent, 1))])
        [last] = collector.run([Start(start.task, 0, 51, 0, start.policy_seed, Branch(middle, 2))])
    assert told(last) == told(parent) and (last.parent, last.branch_t) == (50, 2)


def test_a_branch_that_does_not_arrive_is_dropped_and_counted_and_the_others_go_on() -> None:
    ended: list[Trajectory] = []
    with Pool(Drifting, 4) as pool:
        collector = Collector(pool, policy(WordEngine(bias=0)), max_turns=5, hooks=Hooks(on_end=ended.append))
        starts, parents = parents_of(collector)
        ended.clear()
        found = collector.run([Start(s.task, s.group, 100 + s.number, 0, 3, Branch(p, 2)) for s, p in zip(starts, parents, strict=True)])
    odd = [start for start in starts if int(start.task.id) % 2]
    assert odd and collector.counts["lost_branches"] == len(odd) and len(ended) == len(starts)
    assert sorted(branch.task for branch in found) == sorted(start.task.id for start in starts if start not in odd)
    assert all(branch.stop is Stop.STEP_LIMIT and len(branch.turns) == 5 for branch in found)
    assert "turn 0" in collector.lost and "anchor" in collector.lost


def test_a_context_that_makes_another_prompt_than_the_parent_had_loses_the_branch() -> None:
    with Pool(Corridor, 2) as pool:
        collector = Collector(pool, policy(WordEngine(bias=0)), max_turns=12)
        [start, *_], [parent, *_] = parents_of(collector)
        parent.turns[1].prompt_ids = (1, 2, 3)
        assert collector.run([Start(start.task, 0, 50, 0, 1, Branch(parent, 2))]) == []
    assert collector.counts["lost_branches"] == 1 and "another prompt" in collector.lost


def test_a_turn_that_the_parent_never_reached_is_no_place_to_branch_at() -> None:
    with pytest.raises(TurnwiseError, match="has 0 turns"):
        Branch(Trajectory(0, 7), 1)


class Growing:
    """A dialogue of token ids: each observation is forty tokens long."""

    def start(self, task: Task, observation: Observation) -> None:
        self.ids = self._tokens(observation)

    def prompt(self) -> Prompt:
        return Prompt(list(self.ids))

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        self.ids = [*self.ids, *response_ids, *self._tokens(observation)]

    def _tokens(self, observation: Observation) -> list[int]:
        return [(7 * place + len(observation.text) + ord(observation.text[11])) % 97 for place in range(40)]


def test_the_native_engine_reuses_what_it_computed_of_the_shared_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = NativeEngine(make(num_hidden_layers=1), max_batch=4, max_length=250)
    computed: list[int] = []
    run = engine._runner.run
    monkeypatch.setattr(engine._runner, "run", lambda step: computed.append(step.tokens) or run(step))

    def read(ids: Sequence[int], observation: Observation) -> tuple[str, Parsed]:
        return "text", Parsed(WORDS[ids[0] % 3])

    thinking = ModelPolicy(engine, Growing, read, Sampling(max_tokens=3))
    with Pool(partial(Corridor), 1) as pool:
        collector = Collector(pool, thinking, max_turns=4)
        starts = TaskSlots(numbered(3), seed=1, group_size=1).starts(2, 1)
        [parent] = collector.run(starts)
        assert len(parent.turns) >= 3
        computed.clear()
        [branch] = collector.run([Start(starts[0].task, 0, 50, 0, 99, Branch(parent, 2))])
    assert branch.turns[2].prompt_ids == parent.turns[2].prompt_ids
    assert len(branch.turns[2].prompt_ids) > 120 and computed[0] <= 8, "the prompt at the branch was in the cache already"
    assert branch.turns[2].version == 0 and branch.turns[1].logprobs == parent.turns[1].logprobs
