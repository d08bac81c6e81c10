"""MiniWoB++ as an environment: the pages of the package `miniwob` in a real Chromium."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.miniwob.actions import USAGE, Malformed, Move, Spot, read_action
from turnwise_envs.miniwob.browser import MISSING, find_chromium
from turnwise_envs.miniwob.experts import advise, known
from turnwise_envs.miniwob.kinds import LEFT_OUT, REMEMBERED, SEEN_ONLY, TIMED, folder, kinds
from turnwise_envs.miniwob.page import Page, Point
from turnwise_envs.miniwob.rule import simple_rule
from turnwise_envs.miniwob.screenshots import kept_screenshot, seen_screenshot
from turnwise_envs.miniwob.view import Look, describe, plausible
from turnwise_envs.shared.task_cycle import in_turn

FULL = 0.95  # of the reward: pages give partial marks, and those about angles and distances rarely give exactly 1
View = Literal["text", "screenshot"]


class MiniWobEnv:
    """Tasks on web pages. All environments of a process share one browser, in which each has its own page.

    `kinds` chooses kinds of tasks: a name, a list, "expert" for those that have an expert, none for all. `view`: "text" lists what is on
    the page, "screenshot" shows it as an image with numbers. `shown` limits the characters of the list. `screenshots` keeps a small
    picture with every turn for people who look at the run; the agent does not see it. The reward is the page's raw reward, from -1 to 1.
    """

    max_turns = 15
    instructions = (
        f"You use a web page to do a task. Each line is a thing on the page; those with a number can be acted on. Actions: {USAGE}."
    )

    def __init__(self, kinds: Sequence[str] | str | None = None, view: View = "text", shown: int = 4000, screenshots: bool = False):
        if find_chromium() is None:
            raise TurnwiseError(MISSING)
        if view not in ("text", "screenshot"):
            raise unknown_name("view of miniwob:", str(view), ("text", "screenshot"))
        self.kinds = _chosen(kinds)
        self.view, self.shown, self.screenshots = view, shown, screenshots
        self._page: Page | None = None
        self._task: Task | None = None
        self._look: Look | None = None
        self._shot = ""
        self._over = "step() was called before reset(): call reset(task) first"

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The kinds in turn, each with its own seeds: a seed belongs to one split."""
        return in_turn("miniwob", self.kinds, split, n, "kind")

    def reset(self, task: Task, seed: int = 0) -> Observation:
        kind, number = _problem(task)
        self._over = "the attempt has not begun: call reset(task) again"
        if self._page is None or not self._page.browser.alive:
            self.close()
            self._page = Page(painted=self.screenshots or self.view == "screenshot")
        mode = "train" if task.split == "train" else "test"  # a few pages draw other words for tests
        look = self._page.load((folder() / f"{kind}.html").as_uri(), f"{kind} {number}", mode, f"{kind} {number} {seed}")
        self._task, self._over = task, ""
        return self._see(self._page, look)

    def step(self, action: str) -> Transition:
        if self._page is None or self._task is None or self._over:
            raise EpisodeOver(self._over)
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        try:
            note, understood = self._do(self._page, read_action(action)), True
        except Malformed as error:
            note, understood = str(error), False
        look, before = self._page.look(), self._shot
        if not look.page.endswith(f"/{self._task.data['kind']}.html"):
            raise TurnwiseError(f"task {self._task.id!r}: the page was left for {look.page}")
        seen = self._see(self._page, look, note)
        if look.done:
            self._over = "the attempt is over: call reset(task) before the next step"
        info: dict[str, Any] = {"understood": understood} | ({"reason": look.reason} if look.done and look.reason else {})
        info |= {"screenshot": before} if before else {}
        info |= {"screenshot_after": self._shot} if look.done and self._shot else {}
        return Transition(seen, look.reward if look.done else 0.0, look.done, look.done and look.reward >= FULL, info)

    def _do(self, page: Page, move: Move) -> str:
        """Play a move. The result is what to tell the agent if nothing happened."""
        if move.verb == "press":
            page.press(move.words)
        elif move.verb == "scroll":
            return "" if page.run("scroll", move.at, 1 if move.words == "down" else -1) else "Nothing there can be scrolled further."
        elif move.verb in ("click", "hover"):
            (page.click if move.verb == "click" else page.hover)(self._point(page, move.at))
        elif move.verb == "drag":
            for spot in (move.at, move.to):  # both in sight first: the second may scroll the first away from where it was
                self._point(page, spot)
            page.drag(self._point(page, move.at), self._point(page, move.to))
        elif move.verb == "type":
            return self._type(page, move)
        elif move.verb == "select":
            self._point(page, move.at)
            done = page.run("choose", move.at, move.words)
            return "" if done == "done" else "There is no such option or text."
        return ""

    def _type(self, page: Page, move: Move) -> str:
        *at, kind = self._found(page, move.at)
        if kind in ("text", "other"):
            page.click((at[0], at[1]))
        if kind == "none" or (kind == "other" and not page.run("typing")):
            return "Nothing can be typed there."
        if kind != "other":
            page.run("focus", move.at)
        if move.words:
            page.type("".join(c for c in move.words if c.isalnum()) if kind == "parts" else move.words)
        else:
            page.press("delete")
        return ""

    def _point(self, page: Page, spot: Spot) -> Point:
        if isinstance(spot, tuple):
            return spot
        x, y, _ = self._found(page, spot)
        return x, y

    def _found(self, page: Page, spot: Spot) -> tuple[float, float, str]:
        """Where an element is, after it was scrolled into sight, and what typing means there."""
        known = {item.n for item in self._look.items if item.n} if self._look is not None else set()
        at = page.run("at", spot) if spot in known else None
        if at is None:
            raise Malformed(f"There is no element {spot} on the page.")
        return float(at[0]), float(at[1]), str(at[2])

    def _see(self, page: Page, look: Look, note: str = "") -> Observation:
        assert self._task is not None
        self._look = look
        kind = self._task.data["kind"]
        remembers, clock = kind in REMEMBERED, f"The clock shows {look.clock // 1000} seconds." if kind in TIMED else ""
        listed = describe(look, remembers, self.shown) if self.view == "text" else "The picture shows the page."
        text = "\n".join(part for part in (f"Your task is: {look.utterance}", note, clock, listed) if part)
        state = [kind, look.utterance, look.whole, clock, *([str(sorted(look.clicked))] if remembers else [])]
        anchor = blake2b("\0".join(state).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if self.screenshots:
            self._shot = kept_screenshot(page)
        images = (seen_screenshot(page, look),) if self.view == "screenshot" else ()
        return Observation(text, images, plausible(look), anchor)

    def scripted_action(self) -> str | None:
        """A rule for all kinds that reads what an agent reads: fill fields with quoted words, choose what the task names, submit."""
        return None if self._look is None or self._over else simple_rule(self._look)

    def expert_action(self) -> str | None:
        """The action of the script for this kind of task; None if there is no script, or if it does not know what to do."""
        if self._look is None or self._task is None or self._over:
            return None
        try:
            return advise(str(self._task.data["kind"]), self._look)
        except (LookupError, ValueError, StopIteration):  # a page in a state that the script does not expect
            return None

    def close(self) -> None:
        """Close the page. The browser ends with its last page."""
        if self._page is not None:
            self._page.close()
        self._page, self._look = None, None
        self._over = "the environment was closed: call reset(task) first"


def _chosen(names: Sequence[str] | str | None) -> tuple[str, ...]:
    everything = kinds()
    if names is None:
        return tuple(name for name in everything if name not in SEEN_ONLY)
    if names == "expert":
        return tuple(name for name in everything if name in known())
    found = tuple([names] if isinstance(names, str) else names)
    for name in found:
        if name in LEFT_OUT:
            raise TurnwiseError(f"miniwob: {name!r} is not offered: {LEFT_OUT[name]}")
        if name not in everything:
            raise unknown_name("kind of miniwob task", str(name), everything)
    if not found:
        raise TurnwiseError("miniwob: give at least one kind, or leave `kinds` out for all of them")
    return found


def _problem(task: Task) -> tuple[str, int]:
    kind, number = task.data.get("kind"), task.data.get("seed")
    if kind not in kinds() or not isinstance(number, int):
        raise TurnwiseError(
            f"task {task.id!r} is not one of miniwob: its data has no known `kind` and `seed`. Take tasks from tasks(split)"
        )
    return str(kind), number
