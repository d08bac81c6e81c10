"""What several processes of one learner do in the tests: each case is run by two of them together and by one alone, and both results are
compared by the test. Three processes start once for all cases, as forks of one that has loaded torch and never used it: the first two form
one learner, and the third is the one that is alone."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from learn_cases import VOCABULARY, changed, credited, tiny, trajectories
from native_models import FAMILIES, make

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.learn import checkpoint
from turnwise.learn.auxiliary.model import AuxiliaryModel, Training
from turnwise.learn.auxiliary.models import Models
from turnwise.learn.forward import PackedModel
from turnwise.learn.learner import Learner
from turnwise.learn.lora import add_lora
from turnwise.learn.ranks.group import Ranks, join, whole
from turnwise.learn.ranks.sharding import Sharded
from turnwise.learn.sections import OptimiserSettings, SftSettings, ValueSettings
from turnwise.learn.settings import LearnerSettings
from turnwise.learn.sft import warm_start
from turnwise.methods.kinds_of_models import Causal
from turnwise.objectives import Loss

Found = dict[str, Any]
CASES: dict[str, Callable[[Ranks | None, Path], Found]] = {}
# A gradient that should be 0 (of the bias of keys, for example) is rounding noise, which AdamW would turn into whole steps: eps is large.
ADAM = OptimiserSettings(lr=1e-2, clip=0.5, eps=1e-2)
SETTINGS = LearnerSettings(tokens_per_batch=24, optimiser=ADAM, epochs=2, minibatches=2)
KL = Loss(kl_coef=0.1)
KEPT = changed(SETTINGS, loss=KL, value=ValueSettings(), tokens_per_batch=96)  # a checkpoint does not depend on the size of passes


def case(function: Callable[[Ranks | None, Path], Found]) -> Callable[[Ranks | None, Path], Found]:
    """Run by all."""
    CASES[function.__name__] = function
    return function


def unfused(model: Any, settings: LearnerSettings, ranks: Ranks | None) -> Learner:
    """A learner whose model is not made with our layers."""
    with mock.patch("turnwise.learn.learner.PackedModel", lambda model, fused: PackedModel(model, fused=False)):
        return Learner(model, settings, ranks=ranks)


def own_layers(model: Any, settings: LearnerSettings, ranks: Ranks | None) -> Learner:
    """A learner with the layers of transformers: several processes on CPUs have them, and one is compared with those."""
    learner = unfused(model, settings, ranks)
    assert learner.policy.fused is None and (learner.reference is None or learner.reference.policy.fused is None)
    return learner


def weights(learner: Learner) -> Found:
    return {name: whole(tensor).clone() for name, tensor in learner.weights.tensors().items()}


def updated(learner: Learner, batch: Batch, seed: int = 0) -> Found:
    """The gradients of the first step, the weights after all steps, and the metrics of the update."""
    first: Found = {}

    def look(own: Any) -> None:
        if not first:
            first.update(
                {f"gradient of {name}": whole(master.grad).clone() for name, master in own.masters.items() if master.grad is not None}
            )

    learner.optimiser.look = look
    metrics = learner.update(batch, seed)
    own = {f"metric {name}": value for name, value in metrics.items() if not name.startswith("seconds")}
    return first | weights(learner) | own


@case
def full_weights_with_a_reference(ranks: Ranks | None, folder: Path) -> Found:
    learner = own_layers(tiny(), changed(SETTINGS, loss=KL), ranks=ranks)
    found = updated(learner, credited(trajectories(groups=3)))
    learner.reset_reference()
    return found | updated(learner, credited(trajectories(1)))


def small(family: str, **changes: Any) -> Any:
    """Two layers, with weights that make gradients of at most 1 or so: their rounding is part of the bound."""
    return make(family, num_hidden_layers=2, layer_types=None, initializer_range=0.06, **changes)


@case
def adapters_with_a_reference(ranks: Ranks | None, folder: Path) -> Found:
    model = add_lora(tiny(), rank=4, seed=1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(len(name)))
    learner = own_layers(model, changed(SETTINGS, loss=KL), ranks=ranks)
    found = updated(learner, credited(trajectories(groups=3)))
    found |= {f"merged {name}": tensor.clone() for name, tensor in learner.full_weights()}
    found |= {f"trained {name}": tensor.clone() for name, tensor in learner.full_weights(merged=False)}
    learner.save_model(folder / "adapters", merged=False)
    return found


def critic(ranks: Ranks | None, folder: Path, level: Any) -> Found:
    learner = own_layers(tiny(), changed(SETTINGS, value=ValueSettings(level=level), kl_reward_coef=0.05), ranks=ranks)
    batch = learner.annotate(Batch.of(trajectories(groups=3)))
    values = batch.column(f"{level}.value")
    targets = np.linspace(-1, 1, len(values))
    found = updated(learner, credited(batch, np.linspace(-1, 1, len(batch)), targets, level))
    again = learner.annotate(Batch.of(trajectories(groups=3)))
    columns = ("token.old_logprob", "token.ref_logprob", "turn.reward", f"{level}.value")
    return found | {f"column {name}": torch.as_tensor(again.column(name)) for name in columns}


CASES |= {f"a_critic_of_{level}s": partial(critic, level=level) for level in ("turn", "token")}


@case
def one_long_sequence_and_few_short_ones(ranks: Ranks | None, folder: Path) -> Found:
    found = updated(own_layers(tiny(), SETTINGS, ranks=ranks), uneven())
    alone = [Trajectory(0, "a", turns=[Turn(anchor="s", prompt_ids=[1, 2, 3], response_ids=[4, 5], reward=1.0)])]
    return found | updated(own_layers(tiny(), SETTINGS, ranks=ranks), credited(alone, [1.0]))  # one process has nothing to do


def uneven() -> Batch:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, VOCABULARY, size).tolist() for size in (90, 4, 3, 2, 4)]
    turns = [Turn(anchor="s", prompt_ids=own, response_ids=own[:2], reward=float(len(own))) for own in ids]
    return credited([Trajectory(0, f"t{number}", turns=[turn]) for number, turn in enumerate(turns)], [1.0, -1.0, 0.5, 2.0, -0.5])


@case
def whole_trajectories(ranks: Ranks | None, folder: Path) -> Found:
    settings = changed(SETTINGS, loss=Loss("gspo", {"level": "trajectory"}), tokens_per_batch=40)
    return updated(own_layers(tiny(), settings, ranks=ranks), credited(trajectories(groups=3)))


@case
def activations_computed_twice(ranks: Ranks | None, folder: Path) -> Found:
    return updated(own_layers(tiny(), changed(SETTINGS, gradient_checkpointing=True), ranks=ranks), credited(trajectories(2)))


def fused(model: Any, settings: LearnerSettings, ranks: Ranks | None) -> Learner:
    """A learner with our layers, which several processes on CPUs use only on request."""
    with mock.patch("turnwise.learn.learner.Sharded", partial(Sharded, fused=True)):
        learner = unfused(model, settings, ranks)
    for policy in (learner.policy, *([learner.reference.policy] if learner.reference is not None else [])):
        if ranks is None:
            policy._fuse(True)
        assert policy.fused is not None and (policy.fused.sharded is None) == (ranks is None)
    return learner


@case
def fused_layers(ranks: Ranks | None, folder: Path) -> Found:
    """First they keep what they computed for the backward pass, then they compute it again."""
    found: Found = {}
    for again in (False, True):
        settings = changed(SETTINGS, loss=KL, value=ValueSettings(), gradient_checkpointing=again)
        learner = fused(tiny(tie_word_embeddings=again), settings, ranks)
        own = updated(learner, critic_batch())
        hidden = Models(learner, None).policy.hidden(Batch.of(trajectories(5)), "turn_end", layer=-2)  # by the model's own layers
        found |= {f"{again} {name}": value for name, value in (own | {"hidden": torch.as_tensor(hidden)}).items()}
    return found


@case
def fused_layers_of_every_family(ranks: Ranks | None, folder: Path) -> Found:
    found: Found = {}
    for number, family in enumerate(FAMILIES):
        settings = changed(SETTINGS, epochs=1, minibatches=1, gradient_checkpointing=number % 2 == 1)
        learner = fused(small(family, **({"sliding_window": 5} if family == "gemma3" else {})), settings, ranks)
        found |= {f"{family}: {name}": value for name, value in updated(learner, credited(trajectories(2))).items()}
    return found


@case
def imitation(ranks: Ranks | None, folder: Path) -> Found:
    learner = own_layers(tiny(), SETTINGS, ranks=ranks)
    own = SftSettings(epochs=2, batch_tokens=60, prompt_weight=0.2, lr=ADAM.lr)
    metrics = warm_start(learner, trajectories(3), own)
    return weights(learner) | {f"metric {name}": metrics[name] for name in ("loss_first", "loss_last", "steps")}


@case
def in_half_precision(ranks: Ranks | None, folder: Path) -> Found:
    found: Found = {}
    for make_learner in (own_layers, fused):
        learner = make_learner(tiny(), changed(SETTINGS, dtype="bfloat16", loss=KL, epochs=1, minibatches=1), ranks=ranks)
        own = updated(learner, credited(trajectories(groups=3)))
        assert all(master.dtype == torch.float32 for master in learner.weights.masters.values())
        assert all(tensor.dtype == torch.bfloat16 for _, tensor in learner.full_weights())
        found |= {f"{make_learner.__name__} {name}": tensor for name, tensor in own.items() if name.startswith("gradient")}
    return found


@case
def exported_and_copied(ranks: Ranks | None, folder: Path) -> Found:
    learner = own_layers(tiny(tie_word_embeddings=True), SETTINGS, ranks=ranks)
    learner.update(credited(trajectories(4)))
    exported = {f"exported {name}": tensor.clone() for name, tensor in learner.full_weights()}
    learner.save_model(folder / "model")
    kept = Models(learner, None, keep_reference=True)
    before = kept.reference.score(Batch.of(trajectories(5)))
    learner.update(credited(trajectories(4)), 1)
    after = kept.reference.score(Batch.of(trajectories(5)))
    assert np.array_equal(before, after)
    own = kept.policy.score(Batch.of(trajectories(5)))
    hidden = kept.policy.hidden(Batch.of(trajectories(5)), "turn_end", layer=-2)
    arrays = {"reference": before, "policy": own, "hidden": hidden}
    return {name: torch.as_tensor(array) for name, array in arrays.items()} | exported


@case
def an_auxiliary_model_learns(ranks: Ranks | None, folder: Path) -> Found:
    learner = own_layers(tiny(), SETTINGS, ranks=ranks)
    model = AuxiliaryModel(
        "prm", PackedModel(tiny(3)), None, kind=Causal(), training=Training(ADAM), tokens_per_batch=30,
        ranks=learner.ranks, decisions=learner.decisions,
    )  # fmt: skip

    def loss(said: Any) -> Any:
        return -(said.logprob.mean() ** 2), {"mean": said.logprob.detach().mean()}

    metrics = model.update(Batch.of(trajectories(6)), loss, logprobs=True)
    model.follow(Models(learner, None).policy, 0.5)
    found = {name: tensor.clone() for name, tensor in model.weights.tensors().items()}
    scores = torch.as_tensor(model.score(Batch.of(trajectories(7))))
    return found | {f"metric {name}": value for name, value in metrics.items()} | {"score": scores}


# -- what only several processes can do -------------------------------------------------------------------------------------------------


def state_of(learner: Learner, folder: Path, ranks: Ranks | None) -> None:
    tensors, numbers = learner.state()
    if ranks is None:
        checkpoint.save(folder, 1, tensors, numbers)
    else:
        checkpoint.save_together(ranks, folder, 1, tensors, numbers, score=0.5)


def resumed(folder: Path, ranks: Ranks | None) -> Learner:
    learner = own_layers(tiny(9), KEPT, ranks=ranks)
    found = checkpoint.read(checkpoint.newest_intact(folder), learner.like, ranks)  # type: ignore[arg-type]
    assert found is not None
    learner.load_state(found.tensors, found.state)
    return learner


def critic_batch() -> Batch:
    batch = Batch.of(trajectories(groups=3))
    values = np.linspace(-1, 1, len(batch))
    batch = batch.with_columns({"turn.value": np.zeros(len(batch))})
    return credited(batch, values, values)


def resumes(pair: Ranks | None, trio: Ranks, folder: Path) -> dict[str, Found]:
    """A checkpoint of two continues on two, one and three; one of one process continues on one and two."""
    learner = own_layers(tiny(), KEPT, ranks=pair)
    learner.update(critic_batch())
    state_of(learner, folder / ("pair" if pair is not None else "single"), pair)
    trio.gather(None)
    found = {}
    for start in ("pair", "single"):
        for how, ranks in (("pair" if pair is not None else "single", pair), ("trio", trio)):
            own = resumed(folder / start, ranks)
            own.update(critic_batch(), 5)
            found[f"{start} on {how}"] = weights(own) | {"steps": own.optimiser.steps_taken}
    return found


def everyone(size: int, folder: Path) -> None:
    """All processes: start them, and wait for them."""
    children = []
    for rank in range(size):
        children.append(os.fork())
        if children[-1] == 0:
            work(rank, size, folder)
    for child in children:
        os.waitpid(child, 0)


def work(rank: int, size: int, folder: Path) -> None:
    """One of three processes. It does not return."""
    torch.set_num_threads(1)
    found: dict[str, Found] = {}
    try:
        trio = join(rank, size, f"file://{folder}/meet", timeout=600)  # who is done early waits for the others on a busy machine
        pair_group = dist.new_group([0, 1])
        pair = Ranks(rank, 2, pair_group) if rank < 2 else None
        for name, function in CASES.items():
            own = folder / f"{name} {'pair' if pair is not None else 'single'}"
            own.mkdir(exist_ok=True)
            found[name] = function(pair, own)
        found |= resumes(pair, trio, folder)
        trio.gather(None)
    except BaseException:
        (folder / f"error {rank}").write_text(traceback.format_exc())
        os._exit(1)
    torch.save(found, folder / f"found {rank}")
    os._exit(0)  # without the threads of the process group, which may outlive the interpreter
