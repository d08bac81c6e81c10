"""A small shop of our own in WebShop's rules; shop/make.py wrote its goods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.episodes import check_choice
from turnwise.envs.webshop.env import WebShopEnv

HELD_OUT = 64


class SmallShop(WebShopEnv):
    """16 products with a colour and a size to choose. The score is the reward. Pages are short: the first results, or
    the product and what is still to be chosen. An action is the text that WebShop has in brackets: on the search
    page a query, elsewhere a label."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).parent / "shop", anchor="state")

    def tasks(self, split: str = "train") -> TaskSet:
        """A third of the goals is held out. They are told in four words."""
        goals = [*super().tasks("train"), *super().tasks("valid")]
        check_choice("split of the shop", split, ("train", "valid"))
        chosen = goals[:-HELD_OUT] if split == "train" else goals[-HELD_OUT:]
        return TaskSet((_brief(task, split) for task in chosen), f"shop/{split}")

    def _play(self, action: str) -> Transition:
        return super()._play(_full(self.page.kind, action))

    def _see(self) -> Observation:
        page, seen = self.page, super()._see()
        text = page.kind
        if page.kind == "results":
            text = f"results: {'; '.join(self.shop.listed(page)[:3])}"
        elif page.kind == "item":
            text = f"item: {page.product} {' '.join(name.upper() for name in ('color', 'size') if name not in dict(page.options))}"
        products = tuple(self.catalogue.product(number).id for number in range(len(self.catalogue)))
        return replace(seen, text=text.strip(), actions=products if page.kind == "search" else tuple(map(_inside, seen.actions or ())))

    def expert_action(self) -> str:
        return _inside(super().expert_action())

    def expert(self, task: Task) -> list[str]:
        return list(map(_inside, super().expert(task)))


def _brief(task: Task, split: str) -> Task:
    return replace(task, split=split, data={**task.data, "goal": f"{task.data['product']} {' '.join(task.data['options'].values())}"})


def _full(page: str, action: str) -> str:
    return f"{'search' if page == 'search' else 'click'}[{action}]"


def _inside(action: str) -> str:
    return action.partition("[")[2][:-1]
