"""The cost of keeping exact tokens: size compared with the rollouts, and seconds of one core.

    turnwise train recipes/quickstart.toml iterations=12 run.keep_rollouts=20 out=runs
    turnwise train recipes/quickstart.toml iterations=2 name=window agent.context=window agent.history=4 sft.tasks=64 sft.until=none
    python benchmarks/tokens.py runs/quickstart runs/window --write

Prints JSON. All figures are sums over the iterations that the run keeps. `plain_bytes` is what the same tokens take as 32-bit numbers,
every prompt in full; `compressed_bytes` the same compressed by numpy.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from results import publish

from turnwise.data.tokenfile import read_tokens, write_tokens
from turnwise.recipe.schema import Config
from turnwise.runs.folder import CONFIG, Run
from turnwise.runs.reading import stored_trajectories

RESULT = Path(__file__).with_suffix(".json")


def measure(run: Run) -> dict[str, Any]:
    config, found = Config.load(run.folder / CONFIG), dict.fromkeys(("turns", "prompt_tokens", "response_tokens"), 0)
    sizes = dict.fromkeys(("tokens_bytes", "columns_bytes", "texts_bytes", "plain_bytes", "compressed_bytes"), 0)
    seconds = {"write_cpu_seconds": 0.0, "read_cpu_seconds": 0.0}
    kept = run.iterations_of("rollouts")
    for iteration in kept:
        trajectories = stored_trajectories(run, iteration, tokens=True)
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            path = write_tokens(Path(folder) / "x.npz", trajectories)
            seconds["write_cpu_seconds"] += time.process_time() - start
            start = time.process_time()
            back = read_tokens(path)
            seconds["read_cpu_seconds"] += time.process_time() - start
            sizes["tokens_bytes"] += path.stat().st_size
        assert [(tuple(p), tuple(r)) for p, r in back] == [(turn.prompt_ids, turn.response_ids) for turn in turns]
        flat = np.concatenate([np.asarray([*turn.prompt_ids, *turn.response_ids], np.int32) for turn in turns])
        buffer = io.BytesIO()
        np.savez_compressed(buffer, ids=flat)
        sizes["plain_bytes"] += flat.nbytes
        sizes["compressed_bytes"] += len(buffer.getvalue())
        base = run.folder / "rollouts" / f"{iteration:06d}"
        sizes["columns_bytes"] += base.with_suffix(".npz").stat().st_size
        sizes["texts_bytes"] += base.with_suffix(".jsonl.gz").stat().st_size
        found["turns"] += len(turns)
        found["prompt_tokens"] += sum(len(turn.prompt_ids) for turn in turns)
        found["response_tokens"] += sum(len(turn.response_ids) for turn in turns)
    return {
        "recipe": config.name,
        "context": config.agent.context,
        "iterations": len(kept),
        **found,
        **sizes,
        **{name: round(value, 4) for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.name}")
    options = parser.parse_args()
    publish([measure(Run.open(folder)) for folder in options.runs], RESULT if options.write else None, indent=2)


if __name__ == "__main__":
    main()
