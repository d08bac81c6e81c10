"""The supervised warm start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from learn_cases import changed, plain_logprobs, tiny, trajectories

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.learn import Learner, LearnerSettings, SftSettings, as_trajectories, pack, sft, warm_start
from turnwise.objectives import Loss
from turnwise.util.errors import TurnwiseError

FAST = SftSettings(epochs=12, batch_tokens=60, lr=5e-3)


def test_imitation_lowers_the_loss_on_its_own_data() -> None:
    found = trajectories(1, context="full")
    learner = Learner(tiny())
    before = -learner.logprobs(pack(found)).mean()
    metrics = warm_start(learner, found, FAST)
    after = -learner.logprobs(pack(found)).mean()
    assert after < 0.5 * before
    assert metrics["loss_last"] < 0.6 * metrics["loss_first"] and metrics["epochs"] == 12 and metrics["steps"] > 12


def test_the_loss_is_the_mean_of_the_response_tokens() -> None:
    pairs = [([1, 2, 3], [4, 5]), ([6], [7, 8, 9])]
    model = tiny()
    with torch.no_grad():
        wanted = -torch.cat([plain_logprobs(model, prompt, response) for prompt, response in pairs]).mean().item()
    learner = Learner(model, LearnerSettings(tokens_per_batch=5, temperature=0.3))  # parts, and a sampler's temperature that is not used
    metrics = warm_start(learner, as_trajectories(pairs), SftSettings(epochs=1, batch_tokens=100))
    assert metrics["loss"] == pytest.approx(wanted, rel=1e-5) and metrics["steps"] == 1 and metrics["tokens"] == 5


def test_steps_bound_the_training_and_the_seed_decides_it() -> None:
    def trained(seed: int) -> tuple[float, torch.Tensor]:
        learner = Learner(tiny())
        metrics = warm_start(learner, trajectories(2), SftSettings(steps=7, batch_tokens=40, lr=1e-3), seed)
        return metrics["steps"], learner.model.lm_head.weight.detach().clone()

    (steps, one), (_, same), (_, other) = trained(1), trained(1), trained(2)
    assert steps == 7 and torch.equal(one, same) and not torch.equal(one, other)


def test_imitation_goes_on_until_it_measures_what_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sft, "LOOK_EVERY", 4)
    settings = changed(FAST, until=0.5)
    measured = [0.1, 0.49, 0.5, 1.0]

    def trained(settings: SftSettings) -> tuple[dict[str, float], torch.Tensor]:
        learner, shares = Learner(tiny()), iter(measured)
        return warm_start(learner, trajectories(2), settings, look=lambda: next(shares)), learner.model.lm_head.weight.detach().clone()

    (metrics, weights), (_, same) = trained(settings), trained(settings)
    assert (metrics["steps"], metrics["looks"], metrics["success"]) == (12, 3, 0.5) and torch.equal(weights, same)
    metrics, _ = trained(changed(settings, steps=8))
    assert (metrics["steps"], metrics["looks"], metrics["success"]) == (8, 2, 0.49)
    assert "success" not in warm_start(Learner(tiny()), trajectories(2), changed(settings, steps=2))


def test_what_follows_starts_with_a_fresh_optimiser_and_the_learnt_masters() -> None:
    learner = Learner(tiny(), LearnerSettings(loss=Loss(kl_coef=0.1), dtype="bfloat16"))
    found = trajectories(3)
    before = learner.reference_logprobs(pack(found))
    warm_start(learner, found, changed(FAST, epochs=2))
    assert not learner.optimiser.state()[0] and learner.optimiser.steps_taken == 0
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, learner.weights.masters[name].bfloat16())
    assert np.array_equal(before, learner.reference_logprobs(pack(found)))
    learner.reset_reference()
    assert np.allclose(learner.reference_logprobs(pack(found)), learner.logprobs(pack(found)), atol=1e-5)


def test_nothing_to_imitate_is_refused() -> None:
    with pytest.raises(TurnwiseError, match="no response token"):
        warm_start(Learner(tiny()), [Trajectory(0, 0, turns=[Turn(anchor="x", prompt_ids=[1])])])
    with pytest.raises(TurnwiseError, match="at least 1"):
        SftSettings(epochs=0)


NOISY = """
from turnwise import Observation, Transition


class Noisy:
    max_turns = 12

    def reset(self, task, seed=0):
        self.left = 4
        return self._seen()

    def step(self, action):
        self.left -= action == "forward"
        return Transition(self._seen(), 0.0, self.left == 0, self.left == 0)

    def expert_action(self):
        return "forward"

    def _seen(self):
        return Observation(f"{self.left} steps to go", actions=("stumble",))
"""


@pytest.mark.parametrize("context", ["full", "window"])
def test_what_chance_did_is_seen_and_never_learned_even_where_prompts_are(context: str, tmp_path: Path) -> None:
    from turnwise.agent import Agent, AgentSettings
    from turnwise.collect.vocabulary import environment_texts
    from turnwise.collect.warmstart import expert_trajectories
    from turnwise.data.tasks import Task
    from turnwise.learn.sft import _prompt_places
    from turnwise.learn.tiny import build_tiny

    (tmp_path / "noisy.py").write_text(NOISY)
    name = f"{tmp_path / 'noisy.py'}:Noisy"
    model, tokenizer = build_tiny([*environment_texts(name, n=2), "stumble forward"], layers=1, hidden=16, heads=2, max_length=512)
    agent = Agent(tokenizer, AgentSettings(prompt="action", context=context, history=2, show_actions=False))
    tasks = [Task(f"t{i}") for i in range(12)]
    found = expert_trajectories(name, {}, tasks, agent, max_turns=12, noise=0.4)
    stumble = [i for i in range(len(tokenizer)) if "stumble" in tokenizer.decode([i])]  # with and without a space before it
    packed = pack(found)
    shown = np.flatnonzero(np.isin(packed.ids, stumble))
    assert len(shown) > 5, "the prompts do show what chance did"
    learned = 1 + np.flatnonzero(_prompt_places(packed, ()))
    assert not np.isin(shown, learned).any() and not np.isin(packed.source + 1, shown).any()
    plain = pack(expert_trajectories(name, {}, tasks, agent, max_turns=12))
    assert plain.unlearned is None and _prompt_places(plain, ()).sum() == len(plain.ids) - len(plain) - len(plain.source)
    if context == "full":  # only what chance said is left out: all other words of the dialogue are learned
        assert packed.unlearned is not None and packed.unlearned.sum() == len(agent.write("stumble")) * len(shown)
    learner = Learner(model, LearnerSettings(tokens_per_batch=4096))
    before = learner.model.lm_head.weight.detach().clone()
    settings = SftSettings(steps=1, batch_tokens=10**6, prompt_weight=1.0, lr=1e-2)
    warm_start(learner, found, settings)
    assert not torch.equal(before, learner.model.lm_head.weight)


def test_unlearned_tokens_are_taken_along_with_their_sequences() -> None:
    turns = [
        Turn("a", prompt_ids=[1, 2, 3], response_ids=[4]),
        Turn("a", prompt_ids=[1, 2, 3, 4, 5, 6, 7, 8], response_ids=[9], info={"chance": [(1, 2), (5, 7)]}),
        Turn("a", prompt_ids=[5, 6], response_ids=[7], info={"chance": [(0, 2)]}),
    ]
    packed = pack([Trajectory("g", "x", turns=turns)])
    assert len(packed) == 2 and packed.unlearned is not None
    marked = packed.ids[packed.unlearned].tolist()
    assert marked == [6, 7, 5, 6], "what the turn before held already is not marked again"
    taken = packed.take([1])
    assert taken.unlearned is not None and taken.unlearned.tolist() == [True, True, False]
