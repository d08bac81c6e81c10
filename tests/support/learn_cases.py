"""What the learner's tests share: tiny models, and trajectories with window or full context."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from turnwise import credit
from turnwise.config.section import Section
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Rollouts, Trajectory, Turn
from turnwise.learn.forward import PackedModel
from turnwise.learn.learner import Learner

S = TypeVar("S", bound=Section)
VOCABULARY = 48


def tiny(seed: int = 0, kind: str = "qwen2", spread: float = 0.15, **more: Any) -> Any:
    """A model of a few thousand weights, with logits wide enough that its choices matter."""
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": spread}
    sizes |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
    config, model = (Qwen2Config, Qwen2ForCausalLM) if kind == "qwen2" else (LlamaConfig, LlamaForCausalLM)
    torch.manual_seed(seed)
    return model(config(**(sizes | more))).eval()


def trajectories(seed: int = 0, groups: int = 2, size: int = 3, context: str = "window", logprobs: bool = True) -> list[Trajectory]:
    """Groups of attempts with 1 to 4 turns. With "full" context a prompt is all that came before plus a new observation."""
    rng = np.random.default_rng(seed)
    found = []
    for group in range(groups):
        for member in range(size):
            turns: list[Turn] = []
            past: list[int] = []
            for t in range(int(rng.integers(1, 5))):
                fresh = rng.integers(0, VOCABULARY, rng.integers(2, 9)).tolist()
                response = rng.integers(0, VOCABULARY, rng.integers(1, 6)).tolist()
                prompt = past + fresh if context == "full" else fresh
                past = prompt + response
                turns.append(
                    Turn(
                        anchor=f"state {rng.integers(3) if t else 'start'}",
                        reward=float(rng.normal()),
                        prompt_ids=prompt,
                        response_ids=response,
                        logprobs=(-rng.random(len(response)) * 3).tolist() if logprobs else (),
                    )
                )
            found.append(Trajectory(group, f"{group}-{member}", turns=turns))
    return found


def rollouts_of(found: list[Trajectory]) -> Rollouts:
    return Rollouts.from_trajectories(found)


def credited(found: list[Trajectory] | Batch, values: Any = None, targets: Any = None, level: str = "turn") -> Batch:
    """A batch with advantages: GiGPO's, numbers per turn, or what `credit.assign` gave. `targets` are for a critic of this level."""
    batch = found if isinstance(found, Batch) else Batch.of(found)
    given = credit.assign("gigpo", batch.rollouts) if values is None else values
    given = given if isinstance(given, credit.Credit) else credit.Credit(np.asarray(given))
    columns = {f"{given.level}.advantage": given.values}
    if targets is not None or given.targets is not None:
        columns[f"{level if targets is not None else given.level}.target"] = given.targets if targets is None else targets
    return batch.with_columns(columns)


def plain_logprobs(model: Any, prompt: list[int], response: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of a response by the model's own forward on this one sequence, full logits."""
    ids = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=ids).logits[0] / temperature
    logp = logits.log_softmax(-1)
    places = range(len(prompt) - 1, len(prompt) + len(response) - 1)
    return torch.stack([logp[place, token] for place, token in zip(places, response, strict=True)])


def changed(settings: S, **changes: Any) -> S:
    """Other settings, checked again."""
    return type(settings)(**{name: getattr(settings, name) for name in type(settings).model_fields} | changes)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def with_layers(learner: Learner, fused: bool) -> Learner:
    """The same learner with our layers, or with those of transformers."""
    learner.policy = learner.memory.policy = PackedModel(learner.model, fused=fused)
    if learner.critic is not None:
        learner.critic.packed = learner.policy
    assert (learner.policy.fused is not None) == fused
    return learner


def weights_of(learner: Learner) -> dict[str, torch.Tensor]:
    """A copy of a learner's weights."""
    return {name: tensor.clone() for name, tensor in learner.weights.tensors().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of weights are the same, bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
