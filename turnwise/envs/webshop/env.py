"""The `webshop` environment: find the product that an instruction describes, choose its options, buy it."""

from __future__ import annotations

import os
from dataclasses import astuple
from pathlib import Path
from typing import Any, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.envs.webshop.catalogue import Catalogue
from turnwise.envs.webshop.expert import Expert, by_rule
from turnwise.envs.webshop.files import SMALL, Files, choose_files, find_data
from turnwise.envs.webshop.goals import Goal, GoalBook, Kind
from turnwise.envs.webshop.score import Colours, Score, Wish, score
from turnwise.envs.webshop.shop_pages import Shop, ShopPage, read_page
from turnwise.util.errors import TurnwiseError, unknown_name

Anchor = Literal["observation", "state"]
Reward = Literal["score", "success"]

_catalogues: dict[tuple[Files, int | None, int], Catalogue] = {}
_books: dict[tuple[int, str], GoalBook] = {}


def open_catalogue(data: str | os.PathLike[str] | None = None, products: int | None = SMALL) -> Catalogue:
    """The catalogue of a folder, read once per process."""
    if products is not None and (isinstance(products, bool) or not isinstance(products, int) or products < 1):
        raise TurnwiseError(f"webshop: products must be a positive integer, or None for all, got {products!r}")
    files = choose_files(find_data() if data is None else Path(data).expanduser(), products)
    key = (files, products, files.products.stat().st_mtime_ns)
    if key not in _catalogues:
        _catalogues[key] = Catalogue(files, products)
    return _catalogues[key]


def open_goals(catalogue: Catalogue, kind: Kind) -> GoalBook:
    """The goals of a catalogue, split once per process."""
    key = (id(catalogue), kind)
    if key not in _books:
        _books[key] = GoalBook(catalogue, kind)
    return _books[key]


class WebShopEnv:
    """WebShop in this process: no server, no Java.

    `data`: the folder with the official files; by default `$TURNWISE_DATA/webshop`, `$WEBSHOP_DATA` or `~/.cache/webshop`. `products`:
    how many of them (None: all). `goals`: "synthetic" or "human". `reward`: the "score" (0 to 1) or only "success" (1 for a perfect
    purchase). `colours`: the "corrected" rule or the "reference" one. `show_attributes`: items have a page with their attributes.
    `anchor`: the "observation", or the "state" (16 bytes: also the results to return to and, on sub-pages, the chosen options).

    A visit ends with `click[buy now]`. The shop is deterministic, so `seed` has no effect.
    """

    max_turns = 15
    instructions = (
        "You shop on the web. Actions are search[words] and click[label], where the label is that of a button, a product or an option "
        "value on the present page. Find the product that the task describes, choose the wanted options on its page, then click[buy now]."
    )

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        products: int | None = SMALL,
        goals: Kind = "synthetic",
        reward: Reward = "score",
        colours: Colours = "corrected",
        show_attributes: bool = False,
        anchor: Anchor = "observation",
    ):
        for name, value, known in (
            ("anchor", anchor, ("observation", "state")),
            ("reward", reward, ("score", "success")),
            ("rule for colours", colours, ("corrected", "reference")),
        ):
            if value not in known:
                raise unknown_name(name, str(value), known)
        self.catalogue = open_catalogue(data, products)
        self.book = open_goals(self.catalogue, goals)
        self.shop = Shop(self.catalogue, show_attributes)
        self.anchor, self.reward, self.colours = anchor, reward, colours
        self._task: Task | None = None
        self._goal: Goal | None = None
        self._wish: Wish | None = None
        self._over = "step() was called before reset(): call reset(task) first"
        self.page = ShopPage()

    def tasks(self, split: str = "train") -> TaskSet:
        """`valid`: the 500 goals that are held out; `train`: all others. The order is a fixed shuffle."""
        return self.book.tasks(split)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        goal = Goal.of(task)
        self._wish = goal.wish(self.catalogue)
        self._task, self._goal, self.page, self._over = task, goal, ShopPage(), ""
        return self._observation(self.page, goal)

    def step(self, action: str) -> Transition:
        goal, wish = self._goal, self._wish
        if goal is None or wish is None or self._over:
            raise EpisodeOver(self._over)
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        self.page = self.shop.follow(self.page, action)
        if self.page.kind != "done":
            return Transition(self._observation(self.page, goal))
        self._over = "the episode is over (something was bought): call reset(task) before the next step"
        result = score(wish, self.catalogue.find(self.page.product), dict(self.page.options), self.colours)
        reward = result.total if self.reward == "score" else float(result.success)
        return Transition(self._observation(self.page, goal), reward, True, result.success, _info(result))

    def _observation(self, page: ShopPage, goal: Goal) -> Observation:
        return Observation(
            self.shop.text(page, goal.instruction), (), self.shop.actions(page), page.key if self.anchor == "state" else None
        )

    def snapshot(self) -> bytes:
        """The task and the page: a visit has no further state."""
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        return pack("webshop", {"task": self._task.to_json(), "page": astuple(self.page)}, self._options())

    def restore(self, state: bytes) -> Observation:
        """Continue from the page where a snapshot was taken."""
        kept = unpack(state, "webshop", self._options())
        with restoring("webshop"):
            task = Task.from_json(kept["task"])
            goal, page = Goal.of(task), read_page(kept["page"])
            wish, seen = goal.wish(self.catalogue), self._observation(page, goal)
        self._task, self._goal, self._wish, self.page, self._over = task, goal, wish, page, ""
        return seen

    def _options(self) -> dict[str, Any]:
        """What a visit depends on in addition to its task."""
        own = {name: getattr(self, name) for name in ("anchor", "reward", "colours")}
        return {**own, "details": list(self.shop.details), "catalogue": self.catalogue.mark}

    def search(self, query: str) -> list[str]:
        """The ids of the products that a query finds, best first, at most 50. Possible at any time; it does not count as an action."""
        return list(self.catalogue.search(query))

    def close(self) -> None:
        self._task = self._goal = self._wish = None
        self._over = "the environment was closed: call reset(task) first"

    def expert(self, task: Task) -> list[str]:
        """The actions of a shopper that knows the goal. The current visit is not changed."""
        return Expert(self.shop, Goal.of(task), self.colours).plan(ShopPage())

    def expert_action(self) -> str:
        """That shopper's next action on the current page."""
        if self._goal is None or self._over:
            raise EpisodeOver(self._over)
        advice = Expert(self.shop, self._goal, self.colours).action(self.page)
        if advice is None:
            raise EpisodeOver("the purchase is made: there is nothing left for the expert to do")
        return advice

    def scripted_action(self) -> str:
        """A simple rule that sees no more than an agent: search for the instruction, open the first result, choose what it names, buy."""
        if self._goal is None or self._over:
            raise EpisodeOver(self._over)
        return by_rule(self.shop, self.page, self._goal.instruction)


def _info(result: Score) -> dict[str, Any]:
    return {
        "score": result.total,
        "won": result.success,
        "type": result.type,
        "attributes": result.attributes,
        "options": result.options,
        "price": result.price,
        "measures": {"score": result.total},
    }
