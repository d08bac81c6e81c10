"""The gain from keeping a trajectory's keys and values: the transformers engine on growing dialogues, with and without reuse.

    python benchmarks/engine_prefix.py [--write]

A model of about one million parameters plays `TRAJECTORIES` dialogues of `TURNS` turns side by side: each turn adds an observation and a
response. Both ways run in turn, several times, in one process; the medians are compared. Tokens drawn must be the same.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from results import publish
from transformers import AutoConfig, AutoModelForCausalLM

from turnwise.engines.base import Request, Sampling
from turnwise.engines.transformers import TransformersEngine
from turnwise.util.seeds import derive

TRAJECTORIES, TURNS, FIRST, OBSERVATION, RESPONSE, ROUNDS = 16, 12, 80, 40, 8, 3


def dialogues(model: Any, reuse: bool) -> tuple[float, list[list[int]]]:
    engine = TransformersEngine(model, max_batch=TRAJECTORIES, stop_token_ids=[], reuse_prefixes=reuse)
    said = [[derive(n, "first", place) % 1000 for place in range(FIRST)] for n in range(TRAJECTORIES)]
    start = time.perf_counter()
    turn = [0] * TRAJECTORIES
    engine.submit([Request(n, said[n], Sampling(max_tokens=RESPONSE), derive(n, 0), n) for n in range(TRAJECTORIES)])
    while engine.pending:
        for response in engine.poll():
            n = response.key
            turn[n] += 1
            said[n] = [*said[n], *response.token_ids, *(derive(n, turn[n], place) % 1000 for place in range(OBSERVATION))]
            if turn[n] < TURNS:
                engine.submit([Request(n, said[n], Sampling(max_tokens=RESPONSE), derive(n, turn[n]), n)])
            else:
                engine.release(n)
    return time.perf_counter() - start, said


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 384}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **sizes, **heads)).eval()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    dialogues(model, True)
    for _ in range(ROUNDS):
        texts = {}
        for reuse in (True, False):
            spent, texts[reuse] = dialogues(model, reuse)
            seconds[reuse].append(spent)
    with_reuse, without = statistics.median(seconds[True]), statistics.median(seconds[False])
    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trajectories": TRAJECTORIES,
        "turns": TURNS,
        "last_prompt_tokens": FIRST + (TURNS - 1) * (OBSERVATION + RESPONSE),
        "seconds_with_reuse": round(with_reuse, 3),
        "seconds_without": round(without, 3),
        "ratio": round(without / with_reuse, 2),
        "all_rounds": {"with_reuse": [round(s, 3) for s in seconds[True]], "without": [round(s, 3) for s in seconds[False]]},
        "same_tokens": texts[True] == texts[False],
        "machine": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
    }
    publish(result, Path(__file__).with_suffix(".json") if "--write" in sys.argv[1:] else None, indent=2)


if __name__ == "__main__":
    main()
