"""The `webshop` environment: find the product that an instruction describes, choose its options, buy it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.episodes import EpisodeEnv, check_choice, checked_count
from turnwise.envs.webshop.catalogue import Catalogue
from turnwise.envs.webshop.expert import Expert, by_rule
from turnwise.envs.webshop.files import SMALL, Files, choose_files, find_data
from turnwise.envs.webshop.goals import Goal, GoalBook, Kind
from turnwise.envs.webshop.score import Colours, Score, score
from turnwise.envs.webshop.shop_pages import DETAILS, Shop, ShopPage, read_page

Anchor = Literal["observation", "state"]
Reward = Literal["score", "success"]


def open_catalogue(data: str | os.PathLike[str] | None = None, products: int | None = SMALL) -> Catalogue:
    """The catalogue of a folder, read once per process."""
    if products is not None:
        checked_count(products, 1, math.inf, "webshop: products must be a positive integer, or None for all")
    files = choose_files(find_data() if data is None else Path(data).expanduser(), products)
    return _catalogue(files, products, files.products.stat().st_mtime_ns)


@cache
def _catalogue(files: Files, products: int | None, changed: int) -> Catalogue:
    return Catalogue(files, products)


@cache
def open_goals(catalogue: Catalogue, kind: Kind) -> GoalBook:
    """The goals of a catalogue, split once per process."""
    return GoalBook(catalogue, kind)


class WebShopEnv(EpisodeEnv):
    """WebShop in this process: no server, no Java.

    `data`: the folder with the official files; by default `$TURNWISE_DATA/webshop`, `$WEBSHOP_DATA` or `~/.cache/webshop`. `products`:
    how many of them (None: all). `goals`: "synthetic" or "human". `reward`: the "score" (0 to 1) or only "success" (1 for a perfect
    purchase). `colours`: the "corrected" rule or the "reference" one.
    `anchor`: the "observation", or the "state" (16 bytes: also the results to return to and, on sub-pages, the chosen options).

    A visit ends with `click[buy now]`. The shop is deterministic, so `seed` has no effect.
    """

    name = "webshop"
    depends_on = ("anchor", "reward", "colours")
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
        anchor: Anchor = "observation",
    ):
        check_choice("anchor", anchor, ("observation", "state"))
        check_choice("reward", reward, ("score", "success"))
        check_choice("rule for colours", colours, ("corrected", "reference"))
        super().__init__()
        self.catalogue = open_catalogue(data, products)
        self.book = open_goals(self.catalogue, goals)
        self.shop = Shop(self.catalogue)
        self.anchor, self.reward, self.colours = anchor, reward, colours
        self._goal: Goal | None = None
        self.page = ShopPage()

    def tasks(self, split: str = "train") -> TaskSet:
        """`valid`: the 500 goals that are held out; `train`: all others. The order is a fixed shuffle."""
        return self.book.tasks(split)

    def _begin(self, task: Task, seed: int) -> None:
        self._goal, self.page = Goal.of(task), ShopPage()
        self._goal.wish(self.catalogue)  # an error for a product that the catalogue lacks

    @property
    def goal(self) -> Goal:
        """The goal of the visit."""
        if self._goal is None or self._over:
            raise EpisodeOver(self._over)
        return self._goal

    def _play(self, action: str) -> Transition:
        goal = self.goal
        self.page = self.shop.follow(self.page, action)
        if self.page.kind != "done":
            return Transition(self._see())
        result = score(goal.wish(self.catalogue), self.catalogue.find(self.page.product), dict(self.page.options), self.colours)
        reward = result.total if self.reward == "score" else float(result.success)
        seen = self._see()
        self._over = "the episode is over (something was bought): call reset(task) before the next step"
        return Transition(seen, reward, True, result.success, _info(result))

    def _see(self) -> Observation:
        text = self.shop.text(self.page, self.goal.instruction)
        return Observation(text, (), self.shop.actions(self.page), self.page.key if self.anchor == "state" else None)

    def _kept(self) -> dict[str, Any]:
        """The page: a visit has no further state."""
        return {"page": astuple(self.page)}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        self._begin(task, 0)
        self.page = read_page(kept["page"])

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "details": list(DETAILS), "catalogue": self.catalogue.mark}

    def search(self, query: str) -> list[str]:
        """The ids of the products that a query finds, best first, at most 50. Possible at any time; it does not count as an action."""
        return list(self.catalogue.search(query))

    def expert(self, task: Task) -> list[str]:
        """The actions of a shopper that knows the goal. The current visit is not changed."""
        return Expert(self.shop, Goal.of(task), self.colours).plan(ShopPage())

    def expert_action(self) -> str:
        """That shopper's next action on the current page."""
        advice = Expert(self.shop, self.goal, self.colours).action(self.page)
        if advice is None:
            raise EpisodeOver("the purchase is made: there is nothing left for the expert to do")
        return advice

    def scripted_action(self) -> str:
        """A simple rule that sees no more than an agent: search for the instruction, open the first result, choose what it names, buy."""
        return by_rule(self.shop, self.page, self.goal.instruction)


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
