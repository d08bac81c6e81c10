"""Goals: what a shopper is asked to buy, which of them are held out, and the tasks made from them.

Synthetic goals: every product with an instruction, once for each way to choose its options. Human goals: instructions that people wrote.
The price limit is one of the round prices above the product's price. All random numbers come from the product's id, so that a goal is the
same on every machine and in every process.

The split is fixed by a goal's content (product, options, text), not by its index in a list or by a generator's state: goals are ranked by
a hash of that, the first 500 are `valid`, the rest `train`. Goals that say the same (some products list a value twice) stay on one side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import product as every_choice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.webshop.catalogue import Catalogue, Product, chance
from turnwise.envs.webshop.score import Wish
from turnwise.util.errors import TurnwiseError, unknown_name

Kind = Literal["synthetic", "human"]
HELD_OUT = 500
SPLITS = ("train", "valid")
ROUND_PRICES = tuple(10.0 * step for step in range(1, 100))
NO_LIMIT = 1_000_000.0
CHOICES = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))  # two of the next four round prices; the higher one is the limit


@dataclass(frozen=True)
class Goal:
    """One goal. `options` maps names to values (synthetic) or lists values (human)."""

    product: str
    instruction: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    price_limit: float

    def wish(self, catalogue: Catalogue) -> Wish:
        return Wish(catalogue.find(self.product), self.attributes, self.options, self.price_limit)

    def data(self, category: str) -> dict[str, Any]:
        """As the data of a task: plain JSON values."""
        options = dict(self.options) if isinstance(self.options, Mapping) else list(self.options)
        return {
            "goal": self.instruction,
            "product": self.product,
            "attributes": list(self.attributes),
            "options": options,
            "price_limit": self.price_limit,
            "task_type": category,
        }

    @classmethod
    def of(cls, task: Task) -> Goal:
        data = task.data
        try:
            options = data["options"]
            chosen = dict(options) if isinstance(options, Mapping) else tuple(options)
            return cls(data["product"], data["goal"], tuple(data["attributes"]), chosen, float(data["price_limit"]))
        except (KeyError, TypeError, ValueError) as error:
            raise TurnwiseError(f"task {task.id!r} is not a WebShop task ({error!r}): take tasks from tasks('webshop')") from None


def price_limit(price: float, *identity: object) -> float:
    """The limit for a price: the higher of two of the next four round prices; None if fewer than two are left."""
    above = [step for step in ROUND_PRICES if step > price][:4]
    pairs = [pair for pair in CHOICES if pair[1] < len(above)]
    return above[pairs[int(chance("limit", *identity) * len(pairs))][1]] if pairs else NO_LIMIT


def _limit_text(limit: float) -> str:
    return "" if limit >= NO_LIMIT else f", and price lower than {limit:.2f} dollars"


def synthetic_goal(product: Product, number: int) -> Goal:
    """The goal for one of the ways to choose the product's options (names in order, the last one changes fastest)."""
    chosen: dict[str, str] = {}
    for name in sorted(product.options, reverse=True):
        number, place = divmod(number, len(product.options[name]))
        chosen[name] = product.options[name][place]
    return _synthetic(product, {name: chosen[name] for name in sorted(chosen)})


def _synthetic(product: Product, chosen: Mapping[str, str]) -> Goal:
    limit = price_limit(product.price, product.id)
    wanted = ", and ".join(f"{name}: {value}" for name, value in chosen.items())
    instruction = f"{product.instruction}{' with ' + wanted if wanted else ''}{_limit_text(limit)}"
    return Goal(product.id, instruction, product.wanted, chosen, limit)


def human_goals(catalogue: Catalogue) -> Iterator[Goal]:
    """The goals that people wrote, for products of the catalogue; those without an attribute to check are left out, as in the reference."""
    path = catalogue.files.human
    if path is None:
        raise TurnwiseError(f"{catalogue.files.products.parent}: there is no items_human_ins.json, which goals='human' needs")
    try:
        written: Mapping[str, Sequence[Mapping[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise TurnwiseError(f"{path}: {error}. Download the file again") from None
    for identity in sorted(catalogue.number.keys() & written.keys()):
        product = catalogue.find(identity)
        for place, one in enumerate(written[identity]):
            if attributes := tuple(one.get("instruction_attributes") or ()):
                limit = price_limit(product.price, identity, place)
                text = str(one["instruction"]).strip(".") + _limit_text(limit)
                yield Goal(identity, text, attributes, tuple(one.get("instruction_options") or ()), limit)


def _rank(*said: object) -> int:
    text = json.dumps(said, ensure_ascii=True)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class GoalBook:
    """All goals of a catalogue and their split. Synthetic ones are made on demand: 16 bytes each until then."""

    def __init__(self, catalogue: Catalogue, kind: Kind = "synthetic"):
        if kind not in ("synthetic", "human"):
            raise unknown_name("kind of goals", str(kind), ("synthetic", "human"))
        self.catalogue, self.kind = catalogue, kind
        self._human = list(human_goals(catalogue)) if kind == "human" else []
        self._ends = np.cumsum(np.array(catalogue.goal_counts, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._human) if self.kind == "human" else int(self._ends[-1]) if len(self._ends) else 0

    def tasks(self, split: str) -> TaskSet:
        if split not in SPLITS:
            raise unknown_name("split of environment 'webshop':", split, SPLITS)
        numbers = self.split[split]
        return TaskSet.lazy(len(numbers), lambda place: self._task(int(numbers[place]), split), f"webshop/{split}")

    def _task(self, number: int, split: str) -> Task:
        if self.kind == "human":
            goal, identity = self._human[number], f"human/{number}"
        else:
            owner = int(np.searchsorted(self._ends, number, side="right"))
            choice = number - (int(self._ends[owner - 1]) if owner else 0)
            goal = synthetic_goal(self.catalogue.product(owner), choice)
            identity = f"{goal.product}/{choice}"
        return Task(identity, split, goal.data(self.catalogue.find(goal.product).category), cluster=goal.product)

    @cached_property
    def split(self) -> dict[str, NDArray[np.int64]]:
        """The numbers of the goals of each split, in the order of their ranks."""
        ranks = np.fromiter(self._ranks(), dtype=np.uint64, count=len(self))
        order = np.argsort(ranks, kind="stable")
        held = _whole_groups(ranks[order], min(HELD_OUT, len(self) // 10))
        return {"train": order[~held], "valid": order[held]}

    def _ranks(self) -> Iterator[int]:
        if self.kind == "human":
            yield from (_rank(goal.product, goal.instruction) for goal in self._human)
            return
        for number in np.flatnonzero(np.array(self.catalogue.goal_counts, dtype=np.int64)):
            product = self.catalogue.product(int(number))
            for values in every_choice(*(product.options[name] for name in sorted(product.options))):
                yield _rank(product.id, values)


def _whole_groups(ranks: NDArray[np.uint64], size: int) -> NDArray[np.bool_]:
    """Marks the first `size` of a sorted list, without separating equal ones: a group that no longer fits is skipped."""
    held = np.zeros(len(ranks), dtype=bool)
    if not size:  # also if there is no goal at all
        return held
    starts = np.flatnonzero(np.r_[True, ranks[1:] != ranks[:-1]])
    left = size
    for start, end in zip(starts, [*starts[1:], len(ranks)], strict=True):
        if not left:
            break
        if end - start <= left:
            held[start:end] = True
            left -= int(end - start)
    return held
