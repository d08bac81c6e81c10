"""TRL trains a tiny model on a number line through `CreditTrainer`, in one process or in two. The model has first seen
attempts in which six moves of ten are right.

    python tests/hosts/learn_trl.py --credit gigpo --seed 0
    torchrun --nproc-per-node 2 tests/hosts/learn_trl.py --credit gigpo --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from datasets import Dataset
from tiny_trl import tiny_model, tiny_tokenizer
from trl import GRPOConfig

from turnwise.envs.base import Observation, Transition
from turnwise.envs.cards.numberline import NumberLineEnv
from turnwise.hosts.trl import OVER, CreditTrainer, environment

HIGHEST, TARGET, LONGEST = 8, 4, 6
RIGHT = 0.6  # share of right moves in the warm start


class Line(NumberLineEnv):
    """Reach the target in six turns; the agent sees its number. Only the target has a reward: if wrong steps cost something, a model that
    may stop learns to stop."""

    instructions = ""

    def __init__(self, highest: int = HIGHEST):
        super().__init__(highest)
        self.max_turns = LONGEST

    def _see(self) -> Observation:
        return Observation(f" {self.position} ")

    def step(self, action: str) -> Transition:
        transition = super().step(action)
        return replace(transition, reward=float(transition.success))


def solved(environments: list[Any], **_: Any) -> list[float]:
    return [float(attempt.success) for attempt in environments]


def example(tokenizer: Any, attempt: Any, row: dict[str, Any], rng: random.Random) -> tuple[list[int], list[int]]:
    """The tokens of an attempt of the warm start, and where the answers in it are."""
    text, ids, answers = "<user>" + attempt.reset(**row) + "<assistant>", [], []
    while True:
        over = text.endswith(f"{OVER}<assistant>")
        right, wrong = ("+", "-") if attempt._env.position < TARGET else ("-", "+")
        move = right if rng.random() < RIGHT else wrong
        ids += tokenizer(text)["input_ids"] + tokenizer.convert_tokens_to_ids(["<eos>" if over else move])
        answers.append(len(ids) - 1)
        if over:
            return ids, answers
        text = f"<tool>{attempt.act(move)}<assistant>"


def warm_start(model: Any, tokenizer: Any, line: Any, rows: list[dict[str, Any]], steps: int = 100, batch: int = 32) -> None:
    rng, attempt = random.Random(0), line()
    examples = [example(tokenizer, attempt, rng.choice(rows), rng) for _ in range(8 * batch)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        chosen = rng.sample(examples, batch)
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids, _ in chosen], batch_first=True)
        labels = torch.full_like(ids, -100)
        for row, (_, answers) in enumerate(chosen):
            labels[row, answers] = ids[row, answers]
        loss = model(ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def train(credit: str, seed: int, steps: int, batch: int = 56, lr: float = 1e-3) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    line, tokenizer = environment(Line), tiny_tokenizer(HIGHEST + 1)
    every = [row for split in ("train", "valid", "test") for row in line.rows(split)]
    rows = [row for row in every if json.loads(row["task"])["data"]["target"] == TARGET]
    model = tiny_model(tokenizer, hidden=64)
    warm_start(model, tokenizer, line, rows)
    with tempfile.TemporaryDirectory() as folder:
        trainer = CreditTrainer(
            credit=credit,
            model=model,
            processing_class=tokenizer,
            environment_factory=line,
            reward_funcs=[solved],  # only logged: its weight is 0
            train_dataset=Dataset.from_list(rows),
            args=GRPOConfig(
                folder,
                reward_weights=[0.0],
                seed=seed,
                max_steps=steps,
                # Seven groups of eight: of two processes, each has half of the fourth group.
                per_device_train_batch_size=batch // int(os.environ.get("WORLD_SIZE", 1)),
                num_generations=8,
                max_completion_length=200,
                max_tool_calling_iterations=LONGEST,
                generation_kwargs={"max_new_tokens": 1},  # an answer is one token
                learning_rate=lr,
                lr_scheduler_type="constant",
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                activation_checkpointing=False,
            ),
        )
        trainer.train()
    return [line for line in trainer.state.log_history if "reward" in line]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--credit", default="gigpo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    start = time.time()
    logged = train(options.credit, options.seed, options.steps, lr=options.lr)
    if int(os.environ.get("RANK", 0)) == 0:
        facts = {"credit": options.credit, "seed": options.seed, "processes": int(os.environ.get("WORLD_SIZE", 1))}
        curve = [round(line["rewards/solved/mean"], 4) for line in logged]
        print(json.dumps(facts | {"seconds": round(time.time() - start), "success": curve}))


if __name__ == "__main__":
    main()
