"""The moving picture of README.md: `python docs/images/credit.py` writes docs/images/credit.svg.

Four attempts at one task of a small household are played by an expert that acts at random half of the time. The numbers are those of
`turnwise.credit` for these attempts; the first group that shows enough of both levels is taken.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import turnwise as tw

ATTEMPTS, MOST_TURNS, NOISE = 4, 6, 0.5
SECONDS = 18
WIDTH, LEFT, TOP, BOX, HIGH, STEP_X, STEP_Y = 900, 96, 84, 108, 46, 120, 64
DULL = ("help", "inventory", "look", "examine")  # actions that change nothing
STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2933 }
.small { font-size: 11px; fill: #52606d } .number { font-size: 12px; font-weight: 600; text-anchor: end; fill: #1f2933 }
.caption { font-size: 16px; font-weight: 600 } .badge { font-size: 11px; font-weight: 700; fill: #fff; text-anchor: middle }
.panel { fill: #fdfdfc; stroke: #d5dae0 } .turn { fill: #eceff2; stroke: #c3cad2 }
.link { fill: none; stroke-width: 2.5; stroke-opacity: .55 }
@media (prefers-color-scheme: dark) { .panel { fill: #1b2027; stroke: #3a434e } .caption, .outer { fill: #e6e9ed } .small { fill: #a7b1bc }
 .in { fill: #52606d } }
@media (prefers-reduced-motion: reduce) { * { animation: none !important } }
"""
STATES = ("#7048a8", "#3b7a3b", "#a83a6b", "#2f6f9f", "#8a6d1b", "#5f5f5f")
CAPTIONS = (
    (0.0, 0.20, "Four attempts at one task"),
    (0.20, 0.38, "Turns with the same letter start from the same state"),
    (0.38, 0.58, "Episode credit: the attempt, compared with the other attempts"),
    (0.58, 0.78, "Step credit: the action, compared with others from the same state"),
    (0.78, 1.0, "GiGPO adds both: every turn has its own credit"),
)


@dataclass(frozen=True)
class Group:
    goal: str
    rows: dict[str, list[Any]]
    wins: list[bool]
    episode: np.ndarray
    step: np.ndarray
    credit: np.ndarray
    states: np.ndarray  # of each turn: the number of its state, -1 where no other turn starts from it


def played(task: Any, seed: int) -> Group:
    """A group of attempts at a task, with its credit."""
    rows: dict[str, list[Any]] = {name: [] for name in ("group", "trajectory", "t", "reward", "anchor", "action")}
    goal, wins, env, chance = "", [], tw.make("household", size="tiny"), random.Random(seed)
    for attempt in range(ATTEMPTS):
        seen, won = env.reset(task), False
        goal = seen.text.rpartition("Your task is to: ")[2].strip().rstrip(".") or goal
        for t in range(MOST_TURNS):
            useful = [action for action in seen.actions if action.split()[0] not in DULL]
            action = chance.choice(useful) if chance.random() < NOISE else env.expert_action()
            after = env.step(action)
            anchor = seen.text if seen.anchor is None else seen.anchor
            for name, value in zip(rows, (0, attempt, t, after.reward, anchor, action), strict=True):
                rows[name].append(value)
            seen, won = after.observation, after.success
            if after.done:
                break
        wins.append(won)
    rollouts = tw.Rollouts.from_columns(**{name: column for name, column in rows.items() if name != "action"})
    levels = tw.credit.explain(rollouts)
    shared = np.where(levels["anchor_size"] > 1, levels["anchor_group"], -1)
    names = {number: place for place, number in enumerate(dict.fromkeys(shared[shared >= 0].tolist()))}
    states = np.array([names.get(int(number), -1) for number in shared])
    return Group(goal, rows, wins, levels["episode"], levels["step"], tw.credit.compute("gigpo", rollouts), states)


def found() -> Group:
    """The first group that shows both levels: two of four attempts win, and a turn of them is worse than others from its state."""
    tasks = tw.tasks("household", "train", size="tiny")
    for seed in range(2_000):
        group = played(tasks[seed % 40], seed)
        won = np.array(group.wins)[group.rows["trajectory"]]
        if sum(group.wins) == 2 and 3 <= group.states.max() + 1 <= len(STATES) and (group.step[won] < -0.3).any():
            return group
    raise RuntimeError("no group was found")


def colour(value: float, most: float) -> str:
    """From orange (below the others) over grey to blue (above them)."""
    share = min(abs(value) / most, 1.0)
    ends = (90, 166, 222) if value > 0 else (240, 150, 70)
    return "#" + "".join(f"{round(236 + (end - 236) * share):02x}" for end in ends)


def shows(name: str, begin: float, end: float) -> str:
    """The style of a class that is visible for a part of the time. What lasts to the end is what a still picture shows."""
    fade = 0.02
    rise = [(0.0, 0), (begin, 0), (begin + fade, 1)] if begin else [(0.0, 1)]
    stops = rise + ([(end - fade, 1), (end, 0)] if end < 1 else [(1.0, 1)])
    frames = " ".join(f"{place:.1%} {{ opacity: {value} }}" for place, value in stops)
    return f".{name} {{ opacity: {float(end >= 1):g}; animation: {name} {SECONDS}s infinite }} @keyframes {name} {{ {frames} }}\n"


def text(x: float, y: float, words: str, classes: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{classes}">{words.replace("&", "&amp;").replace("<", "&lt;")}</text>'


def short(action: str) -> str:
    """An action without the numbers of its things and without places: go to sofa 1 → go to sofa, take box 1 from sofa 1 → take box."""
    words = [word for word in action.split() if not word.isdigit()]
    return " ".join(words if words[0] == "go" else words[:2])


def drawn(group: Group) -> str:
    style = STYLE
    body, links, texts = list[str](), list[str](), list[str]()  # from the ground up
    for number, (begin, end, words) in enumerate(CAPTIONS):
        style += shows(f"c{number}", begin, end)
        body.append(text(LEFT, 40, words, f"caption c{number}"))
    episodes, steps, sums = CAPTIONS[2], CAPTIONS[3], CAPTIONS[4]
    style += shows("letters", 0.20, 1.0) + shows("links", 0.20, 0.40) + shows("again", 0.58, 0.78)
    style += shows("e", episodes[0], episodes[1]) + shows("s", steps[0], steps[1]) + shows("g", sums[0], sums[1])
    body.append(text(LEFT, 62, f"The task: {group.goal}", "small"))
    most = float(np.abs(group.credit).max())
    at, last = [], dict[int, tuple[float, float]]()
    for row, (attempt, t, action) in enumerate(zip(*(group.rows[name] for name in ("trajectory", "t", "action")), strict=True)):
        x, y = LEFT + t * STEP_X, TOP + attempt * STEP_Y
        at.append((x, y))
        box = f'x="{x}" y="{y}" width="{BOX}" height="{HIGH}" rx="7"'
        body.append(f'<g class="t{t}"><rect {box} class="turn"/>')
        for name, values in (("e", group.episode), ("s", group.step), ("g", group.credit)):
            if name != "s" or group.states[row] >= 0:
                body.append(f'<rect {box} class="{name}" fill="{colour(values[row], most)}" stroke="#8b96a3"/>')
        texts.append(text(x + 9, y + 18, short(action), f"t{t}"))
        for name, values in (("e", group.episode), ("s", group.step), ("g", group.credit)):
            if name != "s" or group.states[row] >= 0:
                texts.append(text(x + BOX - 9, y + 37, f"{values[row]:+.2f}".replace("-", "−"), f"number {name}"))
        body.append("</g>")
        last[attempt] = (x + BOX + 14, y + 29)
    for t in range(MOST_TURNS):
        style += shows(f"t{t}", 0.01 + 0.02 * t, 1.0)
    for state in range(group.states.max() + 1):
        tint = STATES[state]
        places = [at[row] for row in np.flatnonzero(group.states == state)]
        for (x, y), (right, below) in pairwise(places):
            high, low = y + HIGH - 12, below + HIGH - 12
            path = f"M{x + 12},{high} C{x - 8},{high + 24} {right + 32},{low - 24} {right + 12},{low}"
            links += [f'<path class="link {name}" stroke="{tint}" d="{path}"/>' for name in ("links", "again")]
        for x, y in places:
            letter = text(x + 12, y + HIGH - 8, "ABCDEFGH"[state], "badge")
            texts.append(f'<g class="letters"><circle cx="{x + 12}" cy="{y + HIGH - 12}" r="8.5" fill="{tint}"/>{letter}</g>')
    for attempt, won in enumerate(group.wins):
        body.append(text(20, TOP + attempt * STEP_Y + 28, f"attempt {attempt + 1}", "outer"))
        x, y = last[attempt]
        body.append(f'<g class="outcome">{text(x, y, "done ✓" if won else "not done ✗", "outer")}</g>')
    style += shows("outcome", 0.15, 1.0)
    height = TOP + ATTEMPTS * STEP_Y + 14
    words = f"Four attempts at a task. {' '.join(f'{words}.' for _, _, words in CAPTIONS[1:])}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{words}">'
    panel = f'<rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="12"/>'
    return "\n".join([head, f"<style>{style}</style>", panel, *body, *links, *texts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawn(found()), encoding="utf-8")
