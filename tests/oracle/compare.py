"""Plays new games live against TextWorld and counts equal answers: `make test-oracle N=300 SEED=0`.

An answer is the text, the admissible commands in their order, the reward, won and done. Games are drawn from the `train` split, leaving out
those of the recorded transcripts; every fifth further game is varied (see vary.py). Prints one line a game, and at the end
`equal answers / all answers`; `--write` puts the result into tests/oracle/result.json.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from commands import Player
from play import ROOT, Oracle
from vary import vary

from turnwise.data.tasks import Task
from turnwise.envs.household.alfworld import AlfworldEnv

RESULT = ROOT / "tests" / "oracle" / "result.json"


def main() -> None:
    options = _options()
    data = Path(os.environ.get("TURNWISE_DATA", ROOT.parent / "shared" / "data")) / "alfworld"
    env = AlfworldEnv(data)
    recorded = _recorded(data)
    tasks = [task for task in env.tasks("train") if task.id not in recorded]
    rng = random.Random(options.seed)
    chosen = rng.sample(tasks, options.games + options.varied)
    oracle, counts, differences = Oracle(), Counter(), []
    started = time.time()
    for number, task in enumerate(chosen):
        kind = "varied" if number >= options.games else "published"
        equal, all_answers, difference = _game(env, oracle, task, f"{options.seed}/{task.id}", options.steps, varied=kind == "varied")
        counts.update({f"{kind} games": 1, f"{kind} equal": equal, f"{kind} answers": all_answers})
        if difference:
            differences.append(difference)
            print(json.dumps(difference, indent=1), flush=True)
        print(f"{number + 1}/{len(chosen)} {kind} {task.id}: {equal} / {all_answers}", flush=True)
    oracle.close()
    equal = counts["published equal"] + counts["varied equal"]
    answers = counts["published answers"] + counts["varied answers"]
    result = {
        "equal": equal, "answers": answers, "percent": round(100 * equal / answers, 2), **counts,
        "seed": options.seed, "steps a game": options.steps, "oracle": "textworld 1.7.0, alfworld 0.4.2",
        "command": f"make test-oracle N={options.games} SEED={options.seed} VARIED={options.varied}",
        "seconds": round(time.time() - started), "differences": differences,
    }  # fmt: skip
    print(json.dumps({key: value for key, value in result.items() if key != "differences"}, indent=2))
    print(f"equal answers / all answers: {equal} / {answers} ({100 * equal / answers:.2f} %)")
    if options.write:
        temporary = RESULT.with_suffix(".tmp")
        temporary.write_text(json.dumps(result, indent=2) + "\n")
        temporary.replace(RESULT)
    sys.exit(equal != answers)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=300)
    parser.add_argument("--varied", type=int, default=None, help="further games with a changed house or changed rules (default: a fifth)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.varied = options.games // 5 if options.varied is None else options.varied
    return options


def _recorded(data: Path) -> set[str]:
    with lzma.open(data / "transcripts" / "train.jsonl.xz", "rt", encoding="utf-8") as lines:
        return {json.loads(line)["id"] for line in lines}


def _game(env: AlfworldEnv, oracle: Oracle, task: Task, seed: str, steps: int, *, varied: bool) -> tuple[int, int, dict[str, Any] | None]:
    """Play one game on both sides: equal answers, all answers, and the first difference (which ends the game)."""
    rng = random.Random(seed)
    game = env.library.read(env.library.entry(task.id))
    content = {"pddl_problem": game.problem, "pddl_domain": game.domain, "grammar": game.grammar}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "json_2.1.1", *task.id.split("/"), "game.tw-pddl")
        path.parent.mkdir(parents=True)
        content = vary(content, rng) if varied else content
        path.write_text(json.dumps(content | {"solvable": True, "walkthrough": list(game.walkthrough)}))
        theirs = oracle.load(path)
        if varied:
            env = AlfworldEnv(folder)
            task = env.tasks("train")[0]
        seen = env.reset(task)
        ours: dict[str, Any] = {"text": seen.text, "actions": list(seen.actions or ()), "won": env.play.won}
    player = Player(rng, game.walkthrough)
    equal, command = 0, None
    for step in range(steps + 1):
        if any(ours[key] != theirs[key] for key in ours):
            parts = {key: [ours[key], theirs[key]] for key in ours if ours[key] != theirs[key]}
            return equal, step + 1, {"game": task.id, "varied": varied, "step": step, "command": command, "ours, theirs": parts}
        equal += 1
        if step == steps or theirs.get("done"):
            break
        command = player.next(theirs["actions"])
        theirs = oracle.step(command)
        move = env.step(command)
        actions = list(move.observation.actions or ())
        ours = {"text": move.observation.text, "actions": actions, "score": move.reward, "won": move.success, "done": move.done}
    return equal, equal, None


if __name__ == "__main__":
    main()
