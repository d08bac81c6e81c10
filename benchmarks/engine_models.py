"""Greedy answers of real chat models: the native engine compared with transformers' generate, and every difference explained.

    python benchmarks/engine_models.py FOLDER [FOLDER …] --dtype bfloat16 --out benchmarks/engine_models.json
    python benchmarks/engine_models.py --random --out benchmarks/model_families.json

In float32 the two give the same tokens. In bfloat16 both round, in different orders, so if two tokens are almost equally likely they may
diverge; from there on the texts differ and are no longer compared. For each first difference the table has the gap between the two
tokens' logits in a float32 forward over the common beginning: it should be about bfloat16's rounding.

With --random there are no folders: every family that the engine knows, in a published shape and with random weights, is timed beside
transformers: 64 requests of 1,024 + 128 tokens, and a forward and a backward pass over 8 sequences of 2,048 tokens. --small shrinks all
of it to something that a CPU can do.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from random_families import SHAPES, measure
from results import publish
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.engines.base import Request, Response, Sampling
from turnwise.engines.native import NativeEngine

QUESTIONS = (
    "Name three things that are found in a kitchen and say what each is for.",
    "Write a Python function that reverses a linked list, and explain it.",
    "You are in a room. You see a cabinet 1, a drawer 1 and a desk 1. Your task is to: put a pen in the drawer. What do you do?",
    "Continue the story: The lighthouse keeper had not spoken to anyone for a year when",
    "What is 17 times 23? Think step by step.",
    "Explain to a child why the sky is blue.",
    "Write a SQL query that finds the three customers with the most orders.",
    "Describe a walk through a forest in autumn.",
)


def chats(tokenizer: Any) -> list[list[int]]:
    messages = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [tokenizer.apply_chat_template(m, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"] for m in messages]


def generate(model: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """One prompt at a time: no padding."""
    found = []
    for ids in prompts:
        row = torch.tensor([ids], device=model.device)
        with torch.no_grad():
            out = model.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=tokens, do_sample=False)
        found.append(out[0, len(ids) :].tolist())
    return found


def logprobs(model: Any, ids: list[int], sampled: list[int]) -> torch.Tensor:
    """All log-probs after each prefix that ends before a sampled token, in float32 (float64 where the model is)."""
    row = torch.tensor([[*ids, *sampled]], device=model.device)
    with torch.no_grad():
        hidden = model.model(row).last_hidden_state[0, len(ids) - 1 : -1]
        kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        return (hidden.to(kind) @ model.lm_head.weight.to(kind).t()).log_softmax(-1)


def difference(exact: Any, ids: list[int], mine: list[int], theirs: list[int]) -> dict[str, Any] | None:
    """The first position where two answers differ, and the distance of the two tokens' logits in the exact model."""
    place = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if place is None:
        return None
    last = logprobs(exact, ids, [*mine[:place], mine[place]])[-1]
    best = last.topk(2)
    return {
        "place": place,
        "logit_gap_of_the_two": (last[mine[place]] - last[theirs[place]]).item(),
        "top2_gap": (best.values[0] - best.values[1]).item(),
        "both_are_the_top_two": {mine[place], theirs[place]} == set(best.indices.tolist()),
    }


def compare(folder: Path, dtype: torch.dtype, device: str, tokens: int) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    if device == "cpu":
        exact = exact.double()
    prompts = chats(tokenizer)
    engine = NativeEngine(model, tokenizer, max_batch=len(prompts), max_length=1024, cache_memory=None if device == "cpu" else 2e9)
    engine.submit([Request(n, ids, Sampling(temperature=0.0, max_tokens=tokens), sequence=n) for n, ids in enumerate(prompts)])
    answers: dict[int, Response] = {}
    while engine.pending:
        answers |= {response.key: response for response in engine.poll()}
    theirs = generate(model, prompts, tokens)
    rows: list[dict[str, Any]] = []
    for n, ids in enumerate(prompts):
        mine = list(answers[n].token_ids)
        own = torch.tensor(answers[n].logprobs, device=device, dtype=torch.float64)
        index = torch.tensor(mine, device=device)[:, None]
        errors = {
            name: (own - logprobs(other, ids, mine).gather(1, index)[:, 0]).abs().max().item()
            for name, other in (("exact", exact), ("own_dtype", model))
        }
        rows.append(
            {"prompt_tokens": len(ids), "tokens": len(mine), "first_difference": difference(exact, ids, mine, theirs[n]), "worst": errors}
        )
    engine.close()
    same = sum(row["first_difference"] is None for row in rows)
    print(f"{folder.name}: {same} of {len(rows)} answers are the same tokens", flush=True)
    return {"model": folder.name, "dtype": str(dtype).removeprefix("torch."), "same": same, "answers": len(rows), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--random", nargs="*", choices=list(SHAPES), help="families with random weights; none named: all")
    parser.add_argument("--small", action="store_true", help="with --random: tiny shapes")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    families = list(SHAPES) if options.random == [] else options.random or []
    kinds = [getattr(torch, kind) for kind in options.dtype]
    timed = [measure(name, kind, options.device, options.small) for name in families for kind in kinds]
    found = timed + [compare(f, getattr(torch, kind), options.device, options.tokens) for f in options.folders for kind in options.dtype]
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    publish({"device": name, "torch": torch.__version__, "tokens": options.tokens, "models": found}, options.out)


if __name__ == "__main__":
    main()
