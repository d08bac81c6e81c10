"""What small runs learn, as hashes: a net under changes that must not change behaviour.

    python tests/net/net.py                 run all cases and compare with hashes.json
    python tests/net/net.py --write         take these hashes as the right ones, for this kind of machine
    python tests/net/net.py --only critic   some of the cases

Each case trains three iterations on the CPU and gives two hashes: one of the weights, one of the metrics without times. Floats depend on
the processor's instructions and on torch, so `hashes.json` has one set for each kind of machine; on another kind, write a set before a
change and compare after it. A change of arithmetic that is intended renews the hash of the cases concerned.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HASHES = HERE / "hashes.json"
ROOT = HERE.parent.parent
SUPPORT, RECIPES = HERE.parent / "support", ROOT / "recipes"

TINY: dict[str, Any] = {
    "iterations": 3,
    "threads": 1,
    "model.tiny.layers": 1,
    "model.tiny.hidden": 32,
    "model.tiny.heads": 2,
    "collect.groups": 3,
    "collect.group_size": 4,
    "eval.n": 3,
    "eval.every": 2,
    "run.checkpoint_every": 1,
}
# A warm start that is long enough for some attempts to succeed: without any difference nothing is learned, and nothing is compared.
HOUSEHOLD = TINY | {
    "model.tiny.hidden": 64,
    "collect.group_size": 6,
    "sft.tasks": 300,
    "sft.steps": 300,
    "sft.noise": 0.0,
    "sft.imitate": "expert",
    "sft.at_least": "none",
}
BABBLING = TINY | {  # no warm start: what the model says wins or loses
    "env.name": f"{SUPPORT / 'bandit_env.py'}:Bandit",
    "agent.max_prompt_tokens": 80,
    "model.tiny.max_length": 100,
    "engine.max_tokens": 6,
    "sft": None,
    "learner.lr": 1e-2,
}
PROMPTS = [{"prompt": f"say {number}", "split": "valid" if number < 4 else "train"} for number in range(16)]
PROGRAM = TINY | {
    # one program at a time: which calls share a batch would depend on the clock, and floats on the batch
    "env": {"name": "program", "options": {"function": f"{SUPPORT / 'program_cases.py'}:said_length", "file": PROMPTS, "at_once": 1}},
    "agent.max_prompt_tokens": 400,
    "model.tiny.max_length": 512,
    "engine.max_tokens": 6,
    "sft": None,
    "learner.lr": 1e-2,
}

CASES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "quickstart": ("quickstart.toml", HOUSEHOLD),
    "window": ("numberline-tiny.toml", TINY),
    "branching": ("numberline-tiny.toml", TINY | {"method.name": "vineppo"}),
    "critic": ("quickstart.toml", HOUSEHOLD | {"method.name": "ppo", "learner.old_logprobs": "learner"}),
    "auxiliary model": ("quickstart.toml", HOUSEHOLD | {"method.name": "istar"}),
    "program": (None, PROGRAM),
    "two players": ("own-env.toml", BABBLING | {"env.name": f"{SUPPORT / 'seats_env.py'}:Guesses", "env.options": {"goal": 4}}),
    "cluster": ("own-env.toml", BABBLING | {"cluster.engines": 1, "cluster.staleness": 0}),
}


def machine() -> str:
    """What floats depend on."""
    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__.partition('+')[0]}"


def learned(name: str) -> dict[str, str]:
    """The hashes of one case."""
    import turnwise as tw

    recipe, changes = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        run = tw.train(RECIPES / recipe if recipe else None, quiet=True, **(changes | {"out": folder, "name": "net"})).folder
        check_learning(run / "metrics.jsonl")
        return {"weights": weights_hash(run / "model" / "model.safetensors"), "metrics": metrics_hash(run / "metrics.jsonl")}


def check_learning(path: Path) -> None:
    """A case in which nothing is learned would compare nothing."""
    norms = [json.loads(line).get("learner/grad_norm", 0.0) for line in path.read_text().splitlines()]
    if sum(norm > 0.01 for norm in norms) < 2:
        sys.exit(f"this case learns nothing (gradient norms {norms}): a net needs one that does")


def weights_hash(path: Path) -> str:
    """SHA-256 of all weights with their names, types and shapes."""
    import torch
    from safetensors.torch import load_file

    digest = hashlib.sha256()
    for name, weight in sorted(load_file(path).items()):
        digest.update(f"{name} {weight.dtype} {list(weight.shape)}\n".encode())
        digest.update(weight.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def metrics_hash(path: Path) -> str:
    """SHA-256 of all metrics but times."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if not timed(key)} for line in lines]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def timed(metric: str) -> bool:
    """Whether a metric depends on the clock or on the machine's memory."""
    return metric.startswith(("time/", "cluster/")) or "second" in metric or metric.endswith(("memory", "_mb", "_gb"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the hashes of this kind of machine")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), help="some of the cases")
    asked = parser.parse_args()
    sys.path.insert(0, str(SUPPORT))
    known = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    right = known.setdefault(machine(), {})
    wrong = []
    for name in asked.only:
        print(f"{name} …", end=" ", flush=True)
        hashes = learned(name)
        differing = [what for what in hashes if right.get(name, {}).get(what) != hashes[what]]
        print("as before" if not differing else "new" if name not in right else f"other {' and '.join(differing)}")
        wrong += [name] if differing else []
        right[name] = hashes
    if asked.write:
        HASHES.write_text(json.dumps(known, indent=1) + "\n")
    elif wrong:
        sys.exit(f"not as before: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
