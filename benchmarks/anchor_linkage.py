"""Which texts does `anchors=similar` put together, and are they one state? `python benchmarks/anchor_linkage.py [--write]`.

Real texts: groups of attempts at the same ALFWorld game and at the same WebShop task (official data in `$TURNWISE_DATA`), by a player
that makes mistakes. The environment knows the true state behind every observation, so each pair of turns that a rule joins *beyond equal
texts* is right (one state) or wrong. For every linkage and threshold: how many pairs are joined, the share of them that is right, how
many of the pairs that it should join are, and the share of turns in the largest group of their task.

The lab: problems whose true advantages are known, with states described by texts that differ slightly at each visit (a clock).
Correlation of GiGPO's credit with the true advantage, if states have different wordings, and if all share one template.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from results import publish

from turnwise import credit
from turnwise.credit.similar import linked
from turnwise.data.rollouts import Rollouts
from turnwise.envs.household.alfworld import AlfworldEnv
from turnwise.envs.webshop.env import WebShopEnv
from turnwise.lab.metrics import correlation, interval
from turnwise.lab.problems import problems
from turnwise.lab.study import make_case, views_of

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TURNWISE_DATA", ROOT.parent / "shared" / "data"))
LINKAGES, THRESHOLDS = ("complete", "greedy", "components"), (0.8, 0.9, 0.95)
Start = tuple[str, Any]  # text and state at the start of a turn


def play_group(env: Any, task: Any, group: int, turns: int, seed: int) -> list[Start]:
    """The text and the true state at the start of every turn of a group: an expert, a third of whose actions are random."""
    starts: list[Start] = []
    for number in range(group):
        rng = random.Random(f"{seed}/{task.id}/{number}")
        seen = env.reset(task)
        for _ in range(turns):
            starts.append((seen.text, seen.key))
            advice = env.expert_action() if rng.random() > 1 / 3 else None
            move = env.step(advice if advice is not None else rng.choice(seen.actions))
            if move.done:
                break
            seen = move.observation
    return starts


def pairs(counts: Iterable[int]) -> int:
    return sum(n * (n - 1) // 2 for n in counts)


def count(groups: Sequence[Sequence[Start]], linkage: str, threshold: float) -> dict[str, float]:
    """How the pairs of turns that a rule joins beyond equal texts compare with the true states."""
    joined = right = wanted = turns = largest = 0
    for starts in groups:
        texts = list(dict.fromkeys(text for text, _ in starts))
        label = dict(zip(texts, linked(texts, threshold, linkage).tolist(), strict=True))
        by_group, by_text = Counter(label[text] for text, _ in starts), Counter(text for text, _ in starts)
        joined += pairs(by_group.values()) - pairs(by_text.values())
        right += pairs(Counter((label[text], state) for text, state in starts).values()) - pairs(Counter(starts).values())
        wanted += pairs(Counter(state for _, state in starts).values()) - pairs(Counter(starts).values())
        turns, largest = turns + len(starts), largest + max(by_group.values())
    return {
        "pairs joined": joined,
        "of them one state, %": round(100 * right / joined, 1) if joined else 0.0,
        "of what should be joined, %": round(100 * right / wanted, 1) if wanted else 0.0,
        "turns in the largest group, %": round(100 * largest / turns, 1),
    }


def real_texts(env: Any, split: str, tasks: int, group: int, turns: int, seed: int) -> dict[str, Any]:
    groups = [play_group(env, task, group, turns, seed) for task in env.tasks(split).panel(tasks, seed)]
    rows = {f"{name} {at}": count(groups, name, at) for at in THRESHOLDS for name in LINKAGES}
    equal = sum(max(Counter(text for text, _ in starts).values()) for starts in groups)
    total = sum(map(len, groups))
    return {"tasks": tasks, "turns": total, "turns in the largest group of equal texts, %": round(100 * equal / total, 1), "rules": rows}


def told(states: Iterable[int], rng: random.Random, style: str) -> list[str]:
    """A text for every visit. "words": each state has its own wording; "template": states differ only in their number."""
    words: dict[int, str] = defaultdict(str)
    found = []
    for state in states:
        if not words[state]:
            own = random.Random(state)
            words[state] = " ".join("".join(own.choices("abcdefghijklmnopqrstuvwxyz", k=own.randint(3, 8))) for _ in range(14))
        place = (
            f"You are at cell {state}. On the cell {state} you see nothing, and all around you are walls, doors and other cells to go to."
        )
        found.append(f"{words[state] if style == 'words' else place} It is {rng.randrange(24):02}:{rng.randrange(60):02}.")
    return found


def lab(seeds: int, budget: int) -> list[dict[str, Any]]:
    """Correlation with the true advantage, mean and 95 % interval over seeds."""
    rows: list[dict[str, Any]] = []
    for name in ("grid", "corridor"):
        case = make_case(name, problems[name].function(), 0.5)
        truth, views = views_of(case, 8, budget, seeds, 0)
        for style in ("words", "template"):
            rules = {"exact": {"anchors": "exact"}, "true states": {"anchors": "exact"}, "episode alone": {"omega": 0.0}}
            rules |= {f"{one} {at}": {"anchors": "similar", "linkage": one, "threshold": at} for at in (0.9, 0.95) for one in LINKAGES}
            for rule, options in rules.items():
                parts = []
                for number, view in enumerate(views):
                    r = view.rollouts()
                    state = r.extra["state"].tolist()
                    anchor = state if rule == "true states" else told(state, random.Random(number), style)
                    parts.append(credit.compute("gigpo", texts_of(r, anchor), **options))
                found = interval(correlation(np.concatenate(parts).astype(np.float64), truth.advantage, truth.batch.run, truth.runs))
                rows.append({"problem": name, "texts": style, "rule": rule} | {key: round(float(x or 0), 3) for key, x in found.items()})
    return rows


def texts_of(r: Rollouts, anchor: Sequence[Any]) -> Rollouts:
    return Rollouts.from_columns(group=r.group, trajectory=r.trajectory, t=r.t, reward=r.reward, anchor=anchor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    result: dict[str, Any] = {
        "alfworld": real_texts(AlfworldEnv(DATA / "alfworld", anchor="state"), "valid_seen", asked.tasks, 8, 50, 0),
        "webshop": real_texts(WebShopEnv(DATA / "webshop", anchor="state"), "train", asked.tasks, 8, 15, 0),
        "lab": lab(asked.seeds, 32),
    }
    publish(result, Path(__file__).with_suffix(".json") if asked.write else None)


if __name__ == "__main__":
    main()
