"""What the regimes look like to a credit: their first batches, from the warm start, on seeds that no run of the arena has.

python docs/results/arena/regimes.py > docs/results/arena/regimes.json
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

import turnwise as tw
from turnwise.arena.plan import Arena
from turnwise.credit.auto import FEATURES, features
from turnwise.runs.folder import Run

HERE = Path(__file__).parent
ARENAS = ("cpu", "houses", "aliased", "further")
FAMILY = {"slippery": "line", "trails": "walks", "house-state": "house", "aliased": "house", "aliased-state": "house"}  # of the same rules
SEEDS = (10, 11, 12, 13)
ONE = {"iterations": 1, "eval.n": 1, "run.keep_rollouts": 1}


def main() -> None:
    environments = {name: one for arena in ARENAS for name, one in Arena.load(HERE / f"{arena}.toml").settings.environments.items()}
    result = {}
    for name, environment in environments.items():
        measured = []
        with tempfile.TemporaryDirectory() as out:
            for seed in SEEDS:
                made = tw.train(HERE / environment.recipe, quiet=True, out=out, name=f"probe-{seed}", seed=seed, trust=True, **ONE)
                rollouts = Run.open(made.folder).columns(1)
                measured.append([*features(rollouts), len(rollouts) / len(rollouts.trajectory_labels)])
        *values, turns = np.mean(measured, 0).tolist()
        rounded = [round(value, 4) for value in values]
        result[name] = {"family": FAMILY.get(name, name), "features": rounded, "turns": round(turns, 1)}
    print(json.dumps({"seeds": SEEDS, "names": FEATURES, "regimes": result}, indent=1))


if __name__ == "__main__":
    main()
