"""How fast the engines play dialogues with a small model on a CPU: the shape of the quickstart.

    OMP_NUM_THREADS=1 python benchmarks/engine_cpu.py --out benchmarks/engine_cpu.json

64 dialogues in groups of 8 that share their first prompt; every turn adds 30 tokens and is answered with 4 to 9. Three ways, one after
another in each round, the same dialogues: the native engine, the transformers engine (both keep a dialogue's cache), and transformers'
generate over all rows of a turn at once, which reads every prompt again. Time is the CPU time of the process, the median of the rounds,
so that a busy machine does not matter.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from results import publish
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.engines.base import Engine, Request, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.transformers import TransformersEngine

WORDS, ROWS, GROUP, FIRST, NEW = 500, 64, 8, 100, 30


def make_model() -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=WORDS, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


class Dialogues:
    """Prompts that grow; lengths of answers and observations are the same in every round and for every engine."""

    def __init__(self) -> None:
        first = [[random.Random(g).randrange(WORDS) for _ in range(FIRST)] for g in range(ROWS // GROUP)]
        self.prompts = [list(first[row // GROUP]) for row in range(ROWS)]

    def answer_length(self, row: int, turn: int) -> int:
        return random.Random(row * 1000 + turn).randrange(4, 10)

    def record(self, row: int, turn: int, answer: list[int]) -> None:
        rng = random.Random(-row * 1000 - turn - 1)
        self.prompts[row] = [*self.prompts[row], *answer, *(rng.randrange(WORDS) for _ in range(NEW))]


def with_engine(engine: Engine, turns: int) -> int:
    """Every dialogue continues as soon as its answer is ready. Returns the number of tokens sampled."""
    engine.refresh()
    dialogues, turn, tokens = Dialogues(), [0] * ROWS, 0

    def ask(row: int) -> None:
        sampling = Sampling(max_tokens=dialogues.answer_length(row, turn[row]))
        engine.submit([Request(row, dialogues.prompts[row], sampling, seed=row * 100 + turn[row], sequence=row)])

    for row in range(ROWS):
        ask(row)
    while engine.pending:
        for response in engine.poll():
            row = response.key
            tokens += len(response.token_ids)
            dialogues.record(row, turn[row], list(response.token_ids))
            turn[row] += 1
            if turn[row] < turns:
                ask(row)
            else:
                engine.release(row)
    return tokens


def with_generate(model: Any, turns: int) -> int:
    dialogues, tokens = Dialogues(), 0
    for turn in range(turns):
        width = max(map(len, dialogues.prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in dialogues.prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in dialogues.prompts])
        longest = max(dialogues.answer_length(row, turn) for row in range(ROWS))
        out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=True, top_k=0, pad_token_id=0)[:, width:]
        for row in range(ROWS):
            answer = out[row, : dialogues.answer_length(row, turn)].tolist()
            tokens += len(answer)
            dialogues.record(row, turn, answer)
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = make_model()
    settings: dict[str, Any] = {"max_batch": ROWS, "max_length": 1024, "stop_token_ids": ()}
    native, general = NativeEngine(model, **settings), TransformersEngine(model, **settings)
    ways = {
        "native": lambda turns: with_engine(native, turns),
        "transformers_engine": lambda turns: with_engine(general, turns),
        "transformers_generate": lambda turns: with_generate(model, turns),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    tokens = 0
    for number in range(options.rounds + 1):
        for name, way in ways.items():
            start = time.process_time()
            tokens = way(1 if number == 0 else options.turns)
            if number:
                took[name].append(time.process_time() - start)
    result = {
        "parameters": sum(p.numel() for p in model.parameters()), "threads": torch.get_num_threads(), "torch": torch.__version__,
        "dialogues": ROWS, "turns": options.turns, "sampled_tokens": tokens,
        "cpu_s": {name: round(statistics.median(times), 3) for name, times in took.items()},
        "tokens_per_cpu_s": {name: round(tokens / statistics.median(times), 1) for name, times in took.items()},
    }  # fmt: skip
    publish(result, options.out)


if __name__ == "__main__":
    main()
