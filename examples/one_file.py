"""GiGPO on one page: from tasks to loss, with torch, numpy and an environment, and nothing else.

    python examples/one_file.py                # a tiny GPT learns to walk along a number line, in a minute or two on a laptop

Turnwise trains the same weights, bit by bit (examples/one_file.toml; tests/docs/test_one_file.py compares all tensors after three
iterations).
Whatever this file leaves out is engineering: speed, other models and environments, checkpoints, clusters. The method is all here:

    tasks ─► rollouts ─► GiGPO advantages ─► clipped loss ─► AdamW step

Group-in-Group Policy Optimization (arXiv 2505.10978) needs no critic. It asks two questions about a turn and adds the answers:

    episode level   Did this attempt do better than the other attempts at the same task?
    step level      Did this action do better than other actions that were taken in the same state?

Names end in their shape:  B sequences · L tokens of a prompt · D width of the model · V vocabulary · N turns of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

import turnwise  # for the environment only: turnwise.make and turnwise.tasks

SEED = 0
GROUPS, GROUP_SIZE, MAX_TURNS = 8, 8, 9  # an iteration plays 8 tasks, 8 attempts each, of at most 9 turns
GAMMA, OMEGA = 0.9, 1.0  # the discount per turn, and the weight of the step level
CLIP, MINIBATCHES, LEARNING_RATE = 0.2, 2, 1e-3
LAYERS, HEADS, WIDTH, CONTEXT = 2, 4, 64, 64

Weights = dict[str, Tensor]
Floats = NDArray[np.float64]


# -- Tasks ------------------------------------------------------------------------------------------------------------------------------
# A task fixes where an attempt starts and what it has to reach: "from 1 to 4". The agent says one token per turn, + or -. It gets 1 at
# the target, -1 for a step that leads no nearer (anything but + and - is such a step), and 0 otherwise.

LINE = {"highest": 5}  # numbers of one digit: all prompts are equally long, and no padding is needed
TASKS = turnwise.tasks("numberline", "train", **LINE)


# -- Tokens -----------------------------------------------------------------------------------------------------------------------------
# One token per character, and three that mark who speaks.

USER, AGENT, END = "<|user|>", "<|agent|>", "<|end|>"
VOCABULARY = [USER, AGENT, END, *"+-\n .:0123456789CRTaceghnrtu"]
ID_OF = {token: number for number, token in enumerate(VOCABULARY)}


def prompt_ids(goal: str, observation: str) -> list[int]:
    """The window context without history: the prompt shows the goal and the current observation, nothing of the past. Turns that start
    from the same state then have the same prompt, which is what the step level compares."""
    return [ID_OF[USER], *(ID_OF[character] for character in f"{goal}\n{observation}"), ID_OF[AGENT]]


# -- Randomness -------------------------------------------------------------------------------------------------------------------------
# A random number is a pure function of its purpose: no generator has a state that would depend on the order of events. A run that is
# killed and resumed, or that plays its attempts in another order, draws the same numbers.


def derive(seed: int, *purpose: int | str) -> int:
    """A number of 63 bits from a seed and the names of its purpose."""
    text = "\x00".join(map(str, (seed, *purpose)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def uniform(seed: int) -> float:
    """A number in [0, 1): the finaliser of SplitMix64, as for the first token of a response."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return z ^ z >> 31

    return (mix((mix((seed + golden) & mask) + golden) & mask) >> 12) * 2.0**-52


# -- The policy: a GPT-2 of two layers --------------------------------------------------------------------------------------------------
# Weights have the names of a Hugging Face folder, so that any other program can load them.


def initial_weights(seed: int = SEED) -> Weights:
    """Normal random numbers for matrices, 1 for the scales of layer norms, 0 for biases."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"wte": (len(VOCABULARY), WIDTH), "wpe": (CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        shapes |= {f"h.{layer}.ln_1": (WIDTH,), f"h.{layer}.attn.c_attn": (WIDTH, 3 * WIDTH), f"h.{layer}.attn.c_proj": (WIDTH, WIDTH)}
        shapes |= {f"h.{layer}.ln_2": (WIDTH,), f"h.{layer}.mlp.c_fc": (WIDTH, 4 * WIDTH), f"h.{layer}.mlp.c_proj": (4 * WIDTH, WIDTH)}
    weights: Weights = {}
    for name, shape in {**shapes, "ln_f": (WIDTH,)}.items():
        norm = len(shape) == 1
        weights[f"transformer.{name}.weight"] = torch.ones(shape) if norm else 0.08 * torch.randn(shape, generator=generator)
        if name not in ("wte", "wpe"):
            weights[f"transformer.{name}.bias"] = torch.zeros(shape[-1])
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def hidden_states(weights: Weights, ids_BL: Tensor) -> Tensor:
    """The state after the last layer at every token [B, L, D]. The next token's logits are its products with the token embeddings."""
    B, L = ids_BL.shape

    def weight(name: str) -> Tensor:
        return weights[f"transformer.{name}"]

    def norm(x_BLD: Tensor, name: str) -> Tensor:
        return F.layer_norm(x_BLD, (WIDTH,), weight(f"{name}.weight"), weight(f"{name}.bias"))

    def linear(x_BLD: Tensor, name: str) -> Tensor:
        return torch.addmm(weight(f"{name}.bias"), x_BLD.reshape(B * L, -1), weight(f"{name}.weight")).view(B, L, -1)

    positions_BL = torch.arange(L).expand(B, L)
    x_BLD = F.embedding(ids_BL, weight("wte.weight")) + F.embedding(positions_BL, weight("wpe.weight"))
    for layer in range(LAYERS):
        projected = linear(norm(x_BLD, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn").split(WIDTH, dim=2)
        query, key, value = (part.view(B, L, HEADS, -1).transpose(1, 2) for part in projected)  # [B, heads, L, D / heads]
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BLD = x_BLD + linear(attended.transpose(1, 2).reshape(B, L, WIDTH), f"h.{layer}.attn.c_proj")
        widened = F.gelu(linear(norm(x_BLD, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc"), approximate="tanh")
        x_BLD = x_BLD + linear(widened, f"h.{layer}.mlp.c_proj")
    return norm(x_BLD, "ln_f")


def next_token_logits(weights: Weights, ids_BL: Tensor, position: int) -> Tensor:
    """The logits of the token after this position [B, V]."""
    return hidden_states(weights, ids_BL)[:, position] @ weights["transformer.wte.weight"].T


# -- Rollouts ---------------------------------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    """One prompt, one token, one reward. The anchor names the state that the turn started from: here, what was observed."""

    anchor: str
    prompt: list[int]
    token: int
    logprob: float  # of the token when it was sampled: the old policy of the clipped ratio
    reward: float = 0.0


@dataclass
class Attempt:
    """One attempt at one task: an environment of its own, and the turns so far."""

    group: int
    goal: str
    seed: int
    env: Any
    observation: str
    turns: list[Turn] = field(default_factory=list)
    done: bool = False


def start_attempts(iteration: int) -> list[Attempt]:
    """The groups of an iteration: the next tasks in order, and GROUP_SIZE attempts at each, which differ in their seeds only."""
    attempts = []
    for group in range(iteration * GROUPS, (iteration + 1) * GROUPS):
        task = TASKS[group % len(TASKS)]
        for member in range(GROUP_SIZE):
            env = turnwise.make("numberline", **LINE)
            observation = env.reset(task, seed=derive(SEED, "environment", group)).text
            attempts.append(Attempt(group, task.data["goal"], derive(SEED, "policy", group, member), env, observation))
    return attempts


@torch.no_grad()
def play(weights: Weights, attempts: list[Attempt]) -> None:
    """Play all attempts to their ends, one turn of each at a time."""
    while playing := [attempt for attempt in attempts if not attempt.done and len(attempt.turns) < MAX_TURNS]:
        prompts = [prompt_ids(attempt.goal, attempt.observation) for attempt in playing]
        tokens, logprobs = sample(
            next_token_logits(weights, torch.tensor(prompts), -1),
            [derive(attempt.seed, len(attempt.turns)) for attempt in playing],
        )
        for attempt, prompt, token, logprob in zip(playing, prompts, tokens, logprobs, strict=True):
            transition = attempt.env.step(VOCABULARY[token])
            attempt.turns.append(Turn(attempt.observation, prompt, token, logprob, transition.reward))
            attempt.observation, attempt.done = transition.observation.text, transition.done


def sample(logits_BV: Tensor, seeds: list[int]) -> tuple[list[int], list[float]]:
    """One token per row and its log-prob: the token at which the cumulative distribution passes the row's uniform number."""
    logprob_BV = torch.log_softmax(logits_BV, dim=-1)
    cumulative_BV = logprob_BV.exp().cumsum(dim=-1, dtype=torch.float64)
    number_B1 = torch.tensor([[uniform(seed)] for seed in seeds], dtype=torch.float64)
    token_B1 = torch.searchsorted(cumulative_BV, number_B1 * cumulative_BV[:, -1:], right=True)
    return token_B1[:, 0].tolist(), logprob_BV.gather(1, token_B1)[:, 0].tolist()


# -- GiGPO advantages -------------------------------------------------------------------------------------------------------------------


def advantages(attempts: list[Attempt]) -> list[Floats]:
    """One advantage per turn, for each attempt: A = A_episode + ω · A_step."""
    groups = [attempt.group for attempt in attempts]
    episode = compare([sum(turn.reward for turn in attempt.turns) for attempt in attempts], groups)  # one number per attempt
    returns_N = np.concatenate([discounted_returns(attempt) for attempt in attempts])
    # The anchor group: turns of the same task that started from the same state. Nobody has to visit a state on purpose: attempts at one
    # task meet in the same states by themselves, and each meeting is a comparison for free.
    states_N = [(attempt.group, turn.anchor) for attempt in attempts for turn in attempt.turns]
    step_N = compare(returns_N, states_N)
    lengths = [len(attempt.turns) for attempt in attempts]
    return np.split(np.repeat(episode, lengths) + OMEGA * step_N, np.cumsum(lengths)[:-1])


def discounted_returns(attempt: Attempt) -> Floats:
    """What followed each turn: Σ γ^k · reward k turns later. An action is not to blame for what happened before it."""
    returns, following = [], 0.0
    for turn in reversed(attempt.turns):
        following = turn.reward + GAMMA * following
        returns.append(following)
    return np.array(returns[::-1])


def compare(scores: Any, labels: list[Any]) -> Floats:
    """Each score minus the mean of those with the same label, divided by their standard deviation. A label with one score, or with equal
    scores, teaches nothing: exactly 0."""
    members: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        members.setdefault(label, []).append(row)
    result = np.zeros(len(labels))
    for rows in members.values():
        difference = np.asarray(scores, np.float64)[rows] - scores[rows[0]]
        if np.abs(difference).max() > 1e-12:  # otherwise they differ by rounding, if at all
            centred = difference - difference.mean()
            result[rows] = centred / (np.sqrt((centred**2).sum() / (len(rows) - 1)) + 1e-6)
    return result


# -- Clipped loss and AdamW step --------------------------------------------------------------------------------------------------------


def clipped_loss(weights: Weights, turns: list[Turn], advantage: Floats) -> Tensor:
    """PPO's surrogate: each turn counts the same, and moving the ratio beyond 1 ± CLIP gains nothing."""
    ids_BL = torch.tensor([[*turn.prompt, turn.token] for turn in turns])
    old_B = torch.tensor([turn.logprob for turn in turns], dtype=torch.float32)
    advantage_B = torch.tensor(advantage, dtype=torch.float32)
    logits_BV = next_token_logits(weights, ids_BL, -2)  # the last token of the prompt predicts the response
    logprob_B = logits_BV.gather(1, ids_BL[:, -1:])[:, 0] - logits_BV.logsumexp(dim=-1)
    ratio_B = (logprob_B - old_B).exp()
    loss_B = torch.maximum(-advantage_B * ratio_B, -advantage_B * ratio_B.clamp(1 - CLIP, 1 + CLIP))
    return (loss_B * (1 / len(turns))).sum()


def update(weights: Weights, optimiser: torch.optim.Optimizer, attempts: list[Attempt], iteration: int) -> None:
    """One pass over the attempts in random order, in MINIBATCHES optimiser steps."""
    advantage = advantages(attempts)
    order = np.random.default_rng((derive(SEED, "update", iteration), 0)).permutation(len(attempts))
    for part in np.split(order, MINIBATCHES):
        turns = [turn for k in part for turn in attempts[k].turns]
        clipped_loss(weights, turns, np.concatenate([advantage[k] for k in part])).backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
        optimiser.zero_grad()


def make_optimiser(weights: Weights) -> torch.optim.Optimizer:
    """AdamW; only matrices decay."""
    matrices = [weight for weight in weights.values() if weight.dim() > 1]
    vectors = [weight for weight in weights.values() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE)


def train(iterations: int) -> Weights:
    """The loop."""
    weights = initial_weights()
    optimiser = make_optimiser(weights)
    for iteration in range(iterations):
        attempts = start_attempts(iteration)
        play(weights, attempts)
        update(weights, optimiser, attempts, iteration + 1)
        reached = sum(attempt.done for attempt in attempts) / len(attempts)
        print(f"iteration {iteration + 1:3d}: {reached:4.0%} of {len(attempts)} attempts reach the target")
    return weights


if __name__ == "__main__":
    train(100)
