"""TRL trains a tiny model on a number line through `CreditTrainer`, in one process or in two. The model has first seen attempts in which
six moves of ten lead to the target.

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

from turnwise.envs.base import Transition
from turnwise.envs.cards.numberline import NumberLineEnv
from turnwise.hosts.trl import OVER, CreditTrainer, environment

HIGHEST = 4
RIGHT = 0.6  # moves of the warm start that lead to the target


class Line(NumberLineEnv):
    """Reach the target. Only that has a reward: if wrong steps cost something, a model that may stop learns to stop at once."""

    instructions = ""

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
        move = attempt._env.expert_action() if rng.random() < RIGHT else {"+": "-", "-": "+"}.get(attempt._env.expert_action())
        ids += tokenizer(text)["input_ids"] + tokenizer.convert_tokens_to_ids(["<eos>" if over else move])
        answers.append(len(ids) - 1)
        if over:
            return ids, answers
        text = f"<tool>{attempt.act(move)}<assistant>"


def warm_start(model: Any, tokenizer: Any, line: Any, rows: list[dict[str, Any]], steps: int = 150, batch: int = 16) -> None:
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


def train(credit: str, seed: int, steps: int, batch: int = 32, lr: float = 1e-3) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    line, tokenizer = environment(Line, highest=HIGHEST), tiny_tokenizer(HIGHEST + 1)
    rows, model = line.rows("train"), tiny_model(tokenizer, hidden=64, layers=2)
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
                per_device_train_batch_size=batch // int(os.environ.get("WORLD_SIZE", 1)),
                num_generations=8,
                max_completion_length=200,
                max_tool_calling_iterations=2 * HIGHEST + 1,
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
    parser.add_argument("--steps", type=int, default=40)
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
