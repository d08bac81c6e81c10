"""SERL: a copy of the policy that knows the feedback weights the tokens of an action."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formulas import serl as slow_serl
from method_cases import Letters, ids, resumes_alike, train
from method_tokens import tokens_of

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.objectives import algorithms as objectives
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch
from turnwise_experiments.serl import hindsight


class Teacher(Letters):
    """Remembers what it was asked, and how often it was renewed."""

    renewed = 0

    def follow(self, other: Any) -> None:
        self.renewed += 1

    def logprobs(self, prompts: Any, continuations: Any) -> list[np.ndarray]:
        self.prompts = [self.decode(prompt) for prompt in prompts]
        return [np.full(len(c), -float(len(p))) for p, c in zip(prompts, continuations, strict=True)]


def looking_back(version: int) -> tuple[Teacher, dict[str, Any]]:
    seen = [("a door", "<x>open</x>", "open"), ("it is shut", "hm", "")]
    turns = [
        tw.Turn("s", observation=o, prompt_ids=ids(f"{o} now:"), response_ids=ids(r), response=r, action=a, version=version)
        for o, r, a in seen
    ]
    teacher = Teacher()
    batch = Batch.of([tw.Trajectory(0, 0, turns=turns, final_anchor="dark")])
    return teacher, dict(hindsight(batch, Both(teacher), form="[{}]"))


class Both(dict[str, Any]):
    policy = None

    def __init__(self, teacher: Teacher):
        super().__init__(hindsight=teacher)


def test_the_copy_reads_the_feedback_after_the_observation_and_scores_the_response() -> None:
    teacher, found = looking_back(0)
    assert teacher.prompts == ["a door[it is shut] now:", "it is shut[dark] now:"]
    assert found["token.action"].tolist() == [3 <= place < 7 for place in range(11)] + [False] * 2
    assert found["token.hindsight_logprob"].tolist() == [-23.0] * 11 + [-21.0] * 2


@pytest.mark.parametrize(("version", "share", "renewed"), [(0, 0.5, 0), (10, 0.4, 1), (15, 0.35, 0), (60, 0.0, 1)])
def test_the_share_of_hindsight_falls_and_the_copy_is_renewed(version: int, share: float, renewed: int) -> None:
    teacher, found = looking_back(version)
    np.testing.assert_allclose(found["turn.hindsight_share"], share)
    assert teacher.renewed == renewed


@pytest.mark.parametrize("seed", range(4))
def test_the_objective_of_serl_is_its_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    now, teacher = [(-rng.random(20) * 3).tolist()], (-rng.random(20) * 3)
    advantage = rng.normal(size=20) * (rng.random(20) > 0.2)  # some are 0
    action, share = rng.random(20) > 0.4, slow_serl.mixing(20)
    columns = {"hindsight_logprob": teacher, "action": action, "hindsight_share": np.full(20, share)}
    loss = objectives["serl"].make({"distil": 0.0}, "objective")(tokens_of(now, now, advantage, **columns)).loss
    slow = slow_serl.advantages(advantage.tolist(), teacher.tolist(), now[0], action.tolist(), share)
    np.testing.assert_allclose(-loss.detach(), slow, rtol=1e-6, atol=1e-6)  # the ratio is 1
    idle = tokens_of(now, now, np.zeros(20), **columns)
    objectives["serl"].make({"distil": 0.5, "most": 1.5}, "objective")(idle).loss.sum().backward()
    pull = -0.5 * share * np.exp(teacher - now[0]).clip(max=1.5)  # without credit, only the distillation of actions is left
    np.testing.assert_allclose(idle.logprob.grad, np.where(action, pull, 0.0), rtol=1e-6, atol=1e-6)


def test_serl_weighs_tokens_of_actions_and_goes_on_after_a_stop_with_the_same_copy(tmp_path: Path) -> None:
    changes = {"method.name": "serl", "method.every": 2, "method.horizon": 8}
    whole = train(tmp_path / "whole", **changes)
    batches = [stored_batch(Run.open(whole.folder), n) for n in (1, 2)]
    np.testing.assert_allclose([batch.column("turn.hindsight_share")[0] for batch in batches], [0.5, 0.4375])
    assert batches[1].column("token.action").any()
    assert all(0.8 <= line["learner/hindsight_weight"] <= 1.2 and line["learner/hindsight_gap"] != 0 for line in whole.metrics[1:])
    resumes_alike(tmp_path / "stopped", whole, 2, **changes)
