"""Auxiliary models: what they say, how they learn, and what stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from learn_cases import VOCABULARY, equal, plain_logprobs, tiny, trajectories
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from turnwise.data.batch import Batch
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, ValueSettings, pack
from turnwise.learn.auxiliary.model import AuxiliaryModel, Training
from turnwise.learn.auxiliary.models import Headless, Models
from turnwise.learn.auxiliary.predictions import Predictions
from turnwise.learn.forward import PackedModel
from turnwise.methods import model_kinds
from turnwise.methods.kinds_of_models import Heads, Reward
from turnwise.util.errors import TurnwiseError

FAST = Training(OptimiserSettings(lr=0.01, weight_decay=0.0))


def batch_of(context: str = "window", **columns: Any) -> Batch:
    """Two groups of four attempts, of which every other one succeeds."""
    found = trajectories(seed=3, groups=2, size=4, context=context)
    for number, trajectory in enumerate(found):
        trajectory.success = number % 2 == 0
    batch = Batch.of(found)
    return batch.with_columns({"token.ref": np.zeros(int(tokens_of(batch).sum())), **columns})


def tokens_of(batch: Batch) -> Any:
    assert batch.rollouts.tokens is not None
    return batch.rollouts.tokens


def model_of(kind: Any = None, training: Training | None = None, dtype: Any = torch.float32, **more: Any) -> AuxiliaryModel:
    return AuxiliaryModel("mine", PackedModel(tiny(seed=1).to(dtype)), None, kind=kind, training=training, dtype=dtype, **more)


def turns_of(batch: Batch) -> list[Any]:
    return [turn for trajectory in batch.trajectories for turn in trajectory.turns]


def weights_of(model: AuxiliaryModel) -> dict[str, Tensor]:
    inner = {name: weight.detach().clone() for name, weight in model.packed.outer.named_parameters()}
    return inner | {f"heads.{name}": weight.detach().clone() for name, weight in model.heads.named_parameters()}


# -- what a model says ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("context", ["window", "full"])
def test_the_score_of_a_batch_is_what_transformers_says_of_each_turn_alone(context: str, dtype: Any, close: float) -> None:
    batch, model = batch_of(context), model_of(dtype=dtype, temperature=0.7, tokens_per_batch=30)
    with torch.no_grad():
        wanted = [plain_logprobs(model.packed.causal, turn.prompt_ids, turn.response_ids, 0.7) for turn in turns_of(batch)]
    np.testing.assert_allclose(model.score(batch), torch.cat(wanted).numpy(), atol=close, rtol=0)
    with torch.no_grad():
        warm = [plain_logprobs(model.packed.causal, turn.prompt_ids, turn.response_ids, 1.0) for turn in turns_of(batch)]
    np.testing.assert_allclose(model.score(batch, temperature=1.0), torch.cat(warm).numpy(), atol=close, rtol=0)


def test_any_continuation_of_any_prompt_can_be_scored() -> None:
    model = model_of(dtype=torch.float64)
    prompts, continuations = [[1, 2, 3], [1, 2, 3], [7]], [[4, 5], [], [6, 6, 6]]
    found = model.logprobs(prompts, continuations)
    with torch.no_grad():
        for prompt, continuation, own in zip(prompts, continuations, found, strict=True):
            wanted = plain_logprobs(model.packed.causal, prompt, continuation).numpy() if continuation else np.zeros(0)
            np.testing.assert_allclose(own, wanted, atol=1e-12)
    assert model.logprobs([], []) == []
    with pytest.raises(TurnwiseError, match="prompt 1 is empty"):
        model.logprobs([[1], []], [[2], []])
    with pytest.raises(TurnwiseError, match="2 prompts and 1 continuations"):
        model.logprobs([[1], [2]], [[2]])


@pytest.mark.parametrize("context", ["window", "full"])
def test_hidden_states_are_those_of_the_model_itself(context: str) -> None:
    batch, model = batch_of(context), model_of(dtype=torch.float64, tokens_per_batch=30)
    rows = []
    for turn in turns_of(batch):
        with torch.no_grad():
            found = model.packed.backbone(input_ids=torch.tensor([[*turn.prompt_ids, *turn.response_ids]]), output_hidden_states=True)
        states, before, start = found.last_hidden_state[0], found.hidden_states[-2][0], len(turn.prompt_ids) - 1
        rows.append((states[start], states[-1], states[start:-1], before[start:-1]))
    np.testing.assert_allclose(model.hidden(batch), torch.stack([row[0] for row in rows]), atol=1e-12)
    np.testing.assert_allclose(model.hidden(batch, "turn_end"), torch.stack([row[1] for row in rows]), atol=1e-12)
    np.testing.assert_allclose(model.hidden(batch, "token"), torch.cat([row[2] for row in rows]), atol=1e-12)
    np.testing.assert_allclose(model.hidden(batch, "token", layer=-2), torch.cat([row[3] for row in rows]), atol=1e-12)


def test_policy_and_reference_are_asked_in_the_same_way() -> None:
    batch = batch_of()
    learner = Learner(tiny(), LearnerSettings(optimiser=OptimiserSettings(lr=0.01), temperature=0.8))
    models = Models(learner, None, keep_reference=True)
    before = models.policy.score(batch)
    np.testing.assert_allclose(before, learner.logprobs(pack(batch.trajectories)), atol=1e-6)
    np.testing.assert_array_equal(models.reference.score(batch), before)
    learner.update(batch.with_columns({"turn.advantage": np.ones(len(batch))}))
    assert np.abs(models.policy.score(batch) - before).max() > 1e-3
    np.testing.assert_array_equal(models.reference.score(batch), before)
    np.testing.assert_array_equal(models["policy"].score(batch), models.policy.score(batch))


def test_the_critic_of_ppo_is_asked_as_any_model_with_heads() -> None:
    batch, settings = batch_of(), LearnerSettings(value=ValueSettings(level="token"))
    learner = Learner(tiny(), settings)
    assert learner.critic is not None
    torch.nn.init.normal_(learner.critic.heads.value.weight, generator=torch.Generator().manual_seed(0))
    models = Models(learner, None)
    np.testing.assert_allclose(models["value"].outputs(batch)["value"], learner.annotate(batch).column("token.value"), atol=1e-5)
    assert models.update(batch) == {}  # the learner trains it
    with pytest.raises(TurnwiseError, match=r"models.value: the critic of learner.value has this name"):
        Models(learner, None, {"value": model_of()})


def test_a_model_that_is_not_there_is_named_with_the_way_to_get_it() -> None:
    models = Models(Learner(tiny()), None, {"teacher": model_of()})
    assert list(models) == ["policy", "reference", "teacher"] and "teacher" in models and "judge" not in models
    with pytest.raises(TurnwiseError, match=r"unknown model 'techer'.*Did you mean 'teacher'.*\[models.techer\]"):
        models["techer"]
    with pytest.raises(TurnwiseError, match=r"keeps no reference.*model.reference"):
        _ = models.reference


# -- how a model learns -----------------------------------------------------------------------------------------------------------


def outcome(said: Predictions) -> tuple[Tensor, dict[str, Tensor]]:
    """An implicit process reward model: the log-ratio to a reference, summed over a trajectory, predicts success."""
    ratio = 0.5 * said.sum(said.logprob - said["token.ref"], "token", "trajectory")
    return binary_cross_entropy_with_logits(ratio, said["trajectory.success"]), {"ratio": ratio.detach().mean()}


def pairs(said: Predictions) -> Tensor | None:
    """Every success of a group against every failure of it."""
    ratio = 0.1 * said.sum(said.logprob - said["token.ref"], "token", "trajectory")
    won, group = said["trajectory.success"] > 0, torch.as_tensor(said.rows.path("trajectory", "group"))
    couples = won[:, None] & ~won[None] & (group[:, None] == group[None])
    return -logsigmoid((ratio[:, None] - ratio[None])[couples]).mean() if couples.any() else None


READ = ("trajectory.success", "token.ref")


def test_an_implicit_process_reward_model_learns_to_tell_success_and_nothing_else_changes() -> None:
    batch, model, teacher = batch_of(), model_of(training=FAST), model_of()
    learner = Learner(tiny())
    policy, frozen = {name: weight.clone() for name, weight in learner.weights.tensors().items()}, weights_of(teacher)
    batch = batch.with_columns({"token.ref": teacher.score(batch)})
    losses = [model.update(batch, outcome, columns=READ)["loss"] for _ in range(30)]
    assert losses[-1] < 0.2 < 0.5 < losses[0]
    ratio = model.score(batch) - teacher.score(batch)
    rollouts = batch.rollouts
    summed = np.bincount(np.repeat(rollouts.trajectory, tokens_of(batch)), ratio)
    won = batch.column("trajectory.success").astype(bool)
    assert summed[won].min() > summed[~won].max()
    assert equal(frozen, weights_of(teacher))
    assert equal(policy, learner.weights.tensors())


@pytest.mark.parametrize("loss", [outcome, pairs])
@pytest.mark.parametrize("context", ["window", "full"])
def test_how_a_batch_is_cut_never_changes_the_gradient(context: str, loss: Callable[[Predictions], Any]) -> None:
    found = []
    for tokens in (10_000, 25, 1):
        model = model_of(training=FAST, tokens_per_batch=tokens)
        gradients: dict[str, Tensor] = {}
        assert model.optimiser is not None
        model.optimiser.look = lambda weights, into=gradients: into.update({k: m.grad.clone() for k, m in weights.masters.items()})
        metrics = model.update(batch_of(context), loss, columns=READ)
        found.append((gradients, metrics["loss"]))
    for gradients, value in found[1:]:
        assert value == pytest.approx(found[0][1], rel=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, found[0][0][name], atol=1e-6, rtol=1e-3)


def test_a_loss_that_finds_nothing_to_learn_from_leaves_the_model_alone() -> None:
    batch, model = batch_of(), model_of(training=FAST)
    before = weights_of(model)
    lost = {"trajectory.success": np.zeros(8), "token.ref": batch.column("token.ref")}
    assert model.update(batch, pairs, columns=lost) == {"steps": 0.0}
    assert equal(before, weights_of(model))


def test_several_heads_learn_their_own_columns_and_skip_what_has_no_target() -> None:
    batch = batch_of("full")
    rows, tokens = len(batch.rollouts), int(tokens_of(batch).sum())
    rng = np.random.default_rng(0)
    high = rng.normal(size=rows)
    boundary = rng.random(rows) < 0.5
    batch = batch.with_columns(
        {
            "turn.target_high": np.where(boundary, high, np.nan),
            "turn.action": rng.normal(size=rows),
            "token.target_low": rng.normal(size=tokens),
        }
    )
    options = {"heads": {"high": "turn", "q": "turn_end", "low": "token"}, "targets": {"q": "turn.action"}}
    kind: Any = model_kinds["heads"].make(options, model_kinds.kind)
    assert set(kind.needs) == {"turn.target_high", "turn.action", "token.target_low"}
    model = model_of(kind, Training(OptimiserSettings(lr=0.02, weight_decay=0.0)))
    assert all(not value.any() for value in model.outputs(batch).values())
    first = model.update(batch)
    for _ in range(40):
        last = model.update(batch)
    assert all(last[f"loss_{name}"] < 0.5 * first[f"loss_{name}"] for name in ("high", "q", "low"))
    said = model.outputs(batch)
    assert np.square(said["high"] - high)[boundary].mean() < 0.5 * np.square(high)[boundary].mean()
    assert said["high"].shape == said["q"].shape == (rows,) and said["low"].shape == (tokens,)
    pair = model.outputs_of([turns_of(batch)[0].prompt_ids], [turns_of(batch)[0].response_ids])
    np.testing.assert_allclose(pair["q"], said["q"][:1], atol=1e-5)


def test_a_reward_model_of_transformers_is_read_at_the_end_of_each_turn() -> None:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    judge = LlamaForSequenceClassification(LlamaConfig(**sizes, num_labels=1, pad_token_id=0)).eval()
    model, batch = AuxiliaryModel("judge", Headless(judge), None, kind=Reward()), batch_of("full")
    with torch.no_grad():
        states = [judge.model(input_ids=torch.tensor([[*turn.prompt_ids, *turn.response_ids]])) for turn in turns_of(batch)]
        wanted = [judge.score(state.last_hidden_state[0, -1]).item() for state in states]
    np.testing.assert_allclose(model.outputs(batch)["reward"], wanted, atol=1e-5)
    with pytest.raises(TurnwiseError, match="'judge' is a reward model"):
        model.score(batch)


# -- what is refused --------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_done_is_said_in_words() -> None:
    batch, frozen, model = batch_of(), model_of(), model_of(training=FAST)
    with pytest.raises(TurnwiseError, match=r"'mine' is frozen.*models.mine.trained=true"):
        frozen.update(batch, outcome)
    with pytest.raises(TurnwiseError, match="kind Causal has no loss of its own"):
        model.update(batch)
    with pytest.raises(TurnwiseError, match="has no heads"):
        model.outputs(batch)
    with pytest.raises(TurnwiseError, match=r"reads the column 'token.ref', which it was not given \(given: trajectory.success\)"):
        model.update(batch, outcome, columns=("trajectory.success",))
    with pytest.raises(TurnwiseError, match="one number that depends on what the model predicts"):
        model.update(batch, lambda said: said.logprob)
    with pytest.raises(TurnwiseError, match="column 'ref' says no level"):
        model.update(batch, outcome, columns=("ref",))
    with pytest.raises(TurnwiseError, match=r"'token.value'.*another level"):
        Heads(heads={"v": "turn"}, targets={"v": "token.value"})


class Words:
    """As much of a tokenizer as is compared."""

    def __init__(self, words: str):
        self.words = words.split()

    def get_vocab(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [self.words.index(word) for word in text.split()]}


def test_a_model_of_texts_takes_no_token_ids() -> None:
    model = AuxiliaryModel("judge", PackedModel(tiny().double()), Words("go to the hall"), texts=True, dtype=torch.float64)
    with torch.no_grad():
        wanted = plain_logprobs(model.packed.causal, [0, 1], [2, 3]).numpy()
    np.testing.assert_allclose(model.logprobs(["go to"], ["the hall"])[0], wanted, atol=1e-12)
    with pytest.raises(TurnwiseError, match=r"reads texts alone \(models.judge.texts=true\), and was given token ids"):
        model.logprobs([[1]], [[2]])
    with pytest.raises(TurnwiseError, match="reads texts alone"):
        model.score(batch_of())


# -- keeping ----------------------------------------------------------------------------------------------------------------------


def test_frozen_weights_are_kept_only_once_they_have_moved() -> None:
    target, critic = model_of(), model_of(training=FAST)
    assert not target.state()[0]
    critic.update(batch_of(), outcome, columns=READ)
    before, goal = weights_of(target), weights_of(critic)
    target.follow(critic, 0.25)
    after = weights_of(target)
    for name, weight in after.items():
        torch.testing.assert_close(weight, before[name] + 0.25 * (goal[name] - before[name]), atol=1e-6, rtol=1e-5)
    fresh = model_of()
    fresh.load_state(*target.state())
    assert equal(after, weights_of(fresh))


def test_heads_on_the_policys_hidden_states_follow_others_alone() -> None:
    batch, learner = batch_of(), Learner(tiny())
    kind = {"kind": Heads(heads={"value": "turn"}, targets={"value": "turn.reward"}, spread=0.1), "shares": True}
    critic, target = (
        AuxiliaryModel("critic", learner.policy, None, training=FAST, **kind),
        AuxiliaryModel("target", learner.policy, None, **kind),
    )
    before = {name: weight.detach().clone() for name, weight in target.heads.named_parameters()}
    policy = {name: weight.detach().clone() for name, weight in learner.policy.outer.named_parameters()}
    assert sorted(critic.weights.masters) == ["heads.value.bias", "heads.value.weight"]
    critic.update(batch)
    target.follow(critic, 0.25)
    for name, weight in target.heads.named_parameters():
        goal = dict(critic.heads.named_parameters())[name].detach()
        assert not torch.equal(goal, before[name])
        torch.testing.assert_close(weight.detach(), before[name] + 0.25 * (goal - before[name]), atol=1e-6, rtol=1e-5)
    assert all(torch.equal(weight, policy[name]) and weight.grad is None for name, weight in learner.policy.outer.named_parameters())
    fresh = AuxiliaryModel("target", learner.policy, None, **kind)
    fresh.load_state(*target.state())
    np.testing.assert_array_equal(fresh.outputs(batch)["value"], target.outputs(batch)["value"])
    with pytest.raises(TurnwiseError, match="no heads that they could follow"):
        target.follow(model_of())


def test_another_frozen_model_than_the_saved_one_is_refused() -> None:
    other = AuxiliaryModel("mine", PackedModel(tiny(seed=9)), None)
    with pytest.raises(TurnwiseError, match=r"'mine': its frozen weights differ.*models.mine"):
        other.load_state(*model_of().state())


def test_the_state_of_all_models_lies_beside_the_learners() -> None:
    batch, learner = batch_of(), Learner(tiny())
    models = Models(learner, None, {"prm": model_of(training=FAST), "teacher": model_of()}, keep_reference=True)
    models["prm"].update(batch, outcome, columns=READ)
    tensors, numbers = models.state()
    assert {name.partition("/")[0] for name in tensors} == {"model_prm", "model_reference"} and set(numbers) == {"prm", "teacher"}
    fresh = Models(Learner(tiny(seed=4)), None, {"prm": model_of(training=FAST), "teacher": model_of()}, keep_reference=True)
    fresh.load_state(tensors, numbers)
    np.testing.assert_array_equal(fresh["prm"].score(batch), models["prm"].score(batch))
    np.testing.assert_array_equal(fresh.reference.score(batch), models.reference.score(batch))
    with pytest.raises(TurnwiseError, match=r"no state of model 'judge'.*\[models.judge\]"):
        Models(learner, None, {"judge": model_of()}).load_state(tensors, numbers)


def test_a_copy_of_the_policy_begins_anew_after_a_warm_start() -> None:
    batch, learner = batch_of(), Learner(tiny(), LearnerSettings(optimiser=OptimiserSettings(lr=0.01)))
    models = Models(learner, None, {"prm": model_of(training=FAST, starts_from_policy=True), "other": model_of()}, keep_reference=True)
    other = models["other"].score(batch)
    learner.update(batch.with_columns({"turn.advantage": np.ones(len(batch))}))
    models.follow_policy()
    np.testing.assert_array_equal(models["prm"].score(batch), models.policy.score(batch))
    np.testing.assert_array_equal(models.reference.score(batch), models.policy.score(batch))
    np.testing.assert_array_equal(models["other"].score(batch), other)
