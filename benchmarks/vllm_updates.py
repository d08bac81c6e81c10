"""Weights that are replaced while responses are under way, in real vLLM: the ways to do it next to each other.

    python benchmarks/vllm_updates.py --out benchmarks/vllm_updates.json     random weights in the shape of a 0.5B model
    python benchmarks/vllm_updates.py MODEL …                                a model's folder
    python benchmarks/vllm_updates.py --stand-in                             no GPU: a tiny model on the stand-in for vLLM of the tests

For each way (keep, keep with the cache, abort), in a process of its own:

plain      responses without an update: tokens per second
same       the same requests, with updates to the same weights on the way: responses whose tokens stay the same, seconds of an update
others     updates between two sets of weights: how far each token's log-prob is from that of a plain forward of the version that drew it
           (`gap`), and from that of the other version (`gap_to_the_other`), which must be larger. With the cache kept, a token's
           distribution depends on keys and values of old weights, so `gap` is larger there too

Rounding in bfloat16 depends on which rows share a step, so some responses differ even without updates: `plain_again` counts them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import publish
from vllm_training import machine

ROOT = Path(__file__).resolve().parent.parent
WAYS: dict[str, dict[str, Any]] = {
    "keep": {"update": "keep"},
    "keep_cache": {"update": "keep", "keep_cache": True},
    "abort": {"update": "abort"},
}
SHAPE = {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
TINY = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def load(options: argparse.Namespace) -> Any:
    """The model: from a folder, or random and peaked enough that tokens mean something."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    device, dtype = ("cpu", torch.float32) if options.stand_in else ("cuda", torch.bfloat16)
    if options.model is not None:
        return AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).to(device).eval()
    shape = TINY if options.stand_in else SHAPE
    config = Qwen2Config(**shape, num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True, initializer_range=0.05)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).to(device).eval()


def answers(engine: Any, requests: list[Any], every: int = 0, publish_next: Any = None) -> tuple[list[Any], float]:
    """All responses, with an update after every so many steps."""
    start, steps, found = time.perf_counter(), 0, []
    engine.submit(requests)
    while engine.pending:
        found += engine.poll(wait=False)
        steps += 1
        if every and steps % every == 0 and engine.pending:
            publish_next()
    return sorted(found, key=lambda response: response.key), time.perf_counter() - start


def scores(model: Any, weights: dict[str, Any], requests: list[Any], found: list[Any]) -> list[list[float]]:
    """Log-probs of all tokens under these weights, by a plain forward, one response at a time."""
    import torch

    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    result = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
        for request, response in zip(requests, found, strict=True):
            prompt = list(request.prompt_ids)
            ids = torch.tensor([prompt + list(response.token_ids)], device=next(model.parameters()).device)
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
            result.append(torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0].cpu().tolist())
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    return result


def differ(one: list[Any], other: list[Any]) -> int:
    return sum(a.token_ids != b.token_ids for a, b in zip(one, other, strict=True))


def measure(options: argparse.Namespace, way: str) -> dict[str, Any]:
    import torch

    from turnwise.engines.base import Request, Sampling
    from turnwise.engines.vllm import VllmEngine

    model = load(options)
    start = time.perf_counter()
    engine = VllmEngine(
        model, None, options.rows, options.prompt + options.tokens, memory=0.3, eager=options.eager, stop_token_ids=(), **WAYS[way]
    )
    result: dict[str, Any] = {"start_s": time.perf_counter() - start}
    chance = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, model.config.vocab_size, (options.rows, options.prompt), generator=chance).tolist()
    requests = [Request(key, prompt, Sampling(max_tokens=options.tokens), seed=key + 1) for key, prompt in enumerate(prompts)]
    plain, seconds = answers(engine, requests)
    tokens = sum(len(response.token_ids) for response in plain)
    result |= {"responses": len(plain), "tokens": tokens, "plain": {"seconds": seconds, "tokens_per_s": tokens / seconds}}
    engine.forget()
    again, _ = answers(engine, requests)
    result["plain_again"] = differ(plain, again)

    del engine.transfer_seconds[:]
    same, seconds = answers(engine, requests, options.every, lambda: engine.publish(engine.version + 1))
    result["same"] = {
        "updates": len(engine.transfer_seconds),
        "seconds": seconds,
        "update_median_s": statistics.median(engine.transfer_seconds),
        "responses_that_differ": differ(plain, same),
        "spans_add_up": all(sum(count for _, count in one.spans) == len(one.token_ids) for one in same),
        "responses_of_several_versions": sum(len(one.spans) > 1 for one in same),
    }

    result["others"] = others(options, engine, model, requests)
    engine.close()
    return result


def others(options: argparse.Namespace, engine: Any, model: Any, requests: list[Any]) -> dict[str, Any]:
    """Updates between two sets of weights, and each token's log-prob under both."""
    import torch

    own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    noise = torch.Generator(device=next(model.parameters()).device).manual_seed(2)
    moved = {
        name: weight + 0.1 * weight.float().std() * torch.randn(weight.shape, generator=noise, device=weight.device).to(weight.dtype)
        if weight.dim() > 1
        else weight
        for name, weight in own.items()
    }
    sets = [own, moved]
    engine.publish(0, own)
    mixed, _ = answers(engine, requests, options.every, lambda: engine.publish(engine.version + 1, sets[(engine.version + 1) % 2]))
    scored = [scores(model, weights, requests, mixed) for weights in sets]
    right: list[float] = []
    wrong: list[float] = []
    for row, response in enumerate(mixed):
        drew = [version % 2 for version, count in response.spans for _ in range(count)]
        for place, (logprob, version) in enumerate(zip(response.logprobs, drew, strict=True)):
            right.append(abs(logprob - scored[version][row][place]))
            wrong.append(abs(logprob - scored[1 - version][row][place]))
    return {
        "gap": statistics.fmean(right),
        "gap_largest": max(right),
        "gap_to_the_other": statistics.fmean(wrong),
        "versions": engine.version,
        "responses_of_several_versions": sum(len(one.spans) > 1 for one in mixed),
    }


def alone(words: list[str], way: str) -> dict[str, Any]:
    """A way in a process of its own: vLLM does not give all memory of the GPU back."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = subprocess.run([sys.executable, __file__, *words, "--way", way, "--way-out", file.name], check=False)
        text = Path(file.name).read_text(encoding="utf-8")
    return json.loads(text) if done.returncode == 0 and text else {"failed": done.returncode}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--prompt", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--every", type=int, help="steps between two updates")
    parser.add_argument("--eager", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--way", choices=list(WAYS))
    parser.add_argument("--way-out", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    small, large = {"rows": 4, "prompt": 6, "tokens": 12, "every": 4}, {"rows": 64, "prompt": 128, "tokens": 256, "every": 32}
    usual = small if options.stand_in else large
    for name, value in usual.items():
        setattr(options, name, getattr(options, name) or value)
    if options.way is not None:
        if options.stand_in:
            import pytest

            sys.path.insert(0, str(ROOT / "tests"))
            import fake_vllm

            fake_vllm.install(pytest.MonkeyPatch(), "0.32.0")
        options.way_out.write_text(json.dumps(measure(options, options.way)), encoding="utf-8")
        return
    result: dict[str, Any] = {"machine": machine(), "settings": {name: getattr(options, name) for name in (*usual, "eager")}, "ways": {}}
    for way in options.ways:
        result["ways"][way] = alone(sys.argv[1:], way)
        print(f"{way}: {json.dumps(result['ways'][way])}", flush=True)
    publish(result, options.out)


if __name__ == "__main__":
    main()
