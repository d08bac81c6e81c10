"""Two shoppers. The expert knows the goal: it finds the product by a search, chooses the wanted options, buys. `by_rule` does not.

The expert sees the whole catalogue, so it tries a few queries internally and uses the one that ranks the product best. It knows the next
click from any page of the shop. The score of its purchase is 1 if the goal can be met; it returns None once nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from turnwise.envs.webshop.goals import Goal
from turnwise.envs.webshop.score import Colours, option_matches
from turnwise.envs.webshop.shop_pages import ASK, BACK, BUY, NEXT, PER_PAGE, PREVIOUS, Shop, ShopPage, folded
from turnwise.util.errors import TurnwiseError

LONGEST_PLAN = 50


def by_rule(shop: Shop, page: ShopPage, instruction: str) -> str:
    """A shopper that does not know the goal's product: the instruction is the query, the first result is bought, the options are those
    values that the instruction names."""
    if page.kind == "search":
        return ASK.replace("<your query>", instruction.replace("[", " ").replace("]", " "))
    if page.kind == "results":
        listed = shop.listed(page)
        return f"click[{listed[0]}]" if listed else f"click[{BACK}]"
    if page.kind == "detail":
        return f"click[{PREVIOUS}]"
    chosen = dict(page.options)
    for name, values in shop.catalogue.find(page.product).options.items():
        named = [value for value in values if f"{name}: {value}," in f"{instruction},"]
        if named and name not in chosen:
            return f"click[{named[0]}]"
    return f"click[{BUY}]"


class Expert:
    """Advice for one goal in one shop."""

    def __init__(self, shop: Shop, goal: Goal, colours: Colours):
        self.shop, self.goal, self.colours = shop, goal, colours
        self.product = shop.catalogue.find(goal.product)
        self.wanted = self._choose_options()
        self._query: str | None = None

    def plan(self, page: ShopPage) -> list[str]:
        """The actions from a page to the purchase."""
        actions: list[str] = []
        while (advice := self.action(page)) is not None:
            actions.append(advice)
            page = self.shop.follow(page, advice)
            if len(actions) > LONGEST_PLAN:
                raise TurnwiseError(f"no way to buy {self.goal.product} was found: the search does not find it")
        return actions

    def action(self, page: ShopPage) -> str | None:
        """The best action on a page."""
        if page.kind == "done":
            return None
        if page.kind == "search":
            return ASK.replace("<your query>", self.query)
        if page.kind == "results":
            return self._on_results(page)
        if page.product != self.product.id:
            return f"click[{PREVIOUS}]"
        if page.kind == "detail":
            return f"click[{PREVIOUS}]"
        chosen = dict(page.options)
        missing = next((value for name, value in self.wanted.items() if chosen.get(name) != value), None)
        return f"click[{BUY}]" if missing is None else f"click[{missing}]"

    def _on_results(self, page: ShopPage) -> str:
        found = self.shop.catalogue.search(page.query)
        if self.product.id not in found:
            return f"click[{BACK}]"
        wanted = found.index(self.product.id) // PER_PAGE + 1
        return f"click[{self.product.id if page.number == wanted else NEXT if page.number < wanted else PREVIOUS}]"

    @property
    def query(self) -> str:
        """The query that ranks the product best."""
        if self._query is None:
            ranks = [(self._rank(words), place, words) for place, words in enumerate(self._queries())]
            self._query = min(ranks)[2]
        return self._query

    def _queries(self) -> Iterator[str]:
        title = " ".join(self.product.title.replace("[", " ").replace("]", " ").split())
        yield " ".join(title.split()[:12])
        yield title
        yield f"{title} {' '.join(self.product.description.replace('[', ' ').replace(']', ' ').split()[:60])}"
        yield self.goal.instruction.replace("[", " ").replace("]", " ")

    def _rank(self, words: str) -> int:
        found = self.shop.catalogue.search(folded(words))
        return found.index(self.product.id) // PER_PAGE if self.product.id in found else len(found) + PER_PAGE

    def _choose_options(self) -> dict[str, str]:
        """A value for every option that the goal asks about."""
        if isinstance(self.goal.options, Mapping):
            return {name: value for name, value in self.goal.options.items() if value in self.product.options.get(name, ())}
        chosen: dict[str, str] = {}
        for wanted in self.goal.options:
            for name, values in self.product.options.items():
                fitting = [value for value in values if folded(value) == folded(wanted)]
                fitting += [value for value in values if option_matches(("", wanted), (value,), self.colours)]
                if fitting and name not in chosen:
                    chosen[name] = fitting[0]
                    break
        return chosen
