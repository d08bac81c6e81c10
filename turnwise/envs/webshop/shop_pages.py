"""The shop's pages: where a shopper is, what can be clicked there, where a click leads, and how the page reads.

A `Page` is the whole state of a visit, immutable and comparable: what a click does depends only on it. The clicks are those of the
reference: search, results (ten per page), item, its sub-pages, and the end after buying. Choosing an option stays on the item's page. The
text of a page shows which options are chosen, which the reference's page does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal, get_args

from turnwise.envs.webshop.catalogue import Catalogue, Product

Kind = Literal["search", "results", "item", "detail", "done"]
PER_PAGE = 10
BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
DETAILS = ("description", "features", "reviews")
ASK = "search[<your query>]"


@dataclass(frozen=True, slots=True)
class ShopPage:
    """Where a shopper is. `options` are the chosen ones of the current item, in the order of their names."""

    kind: Kind = "search"
    query: str = ""
    number: int = 1
    product: str = ""
    options: tuple[tuple[str, str], ...] = ()
    detail: str = ""

    @property
    def key(self) -> bytes:
        """16 bytes of the whole state."""
        text = repr((self.kind, self.query, self.number, self.product, self.options, self.detail))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def read_page(fields: Sequence[Any]) -> ShopPage:
    """The page (not the end) with these fields, in their order."""
    kind, query, number, product, options, detail = fields
    if kind not in get_args(Kind)[:-1] or type(number) is not int or not all(isinstance(text, str) for text in (query, product, detail)):
        raise ValueError(f"{fields!r} is not a page")
    return ShopPage(kind, query, number, product, tuple((str(name), str(value)) for name, value in options), detail)


def folded(label: str) -> str:
    """A label without case and spacing: clicks are compared by it."""
    return " ".join(label.split()).lower()


def parse(action: str) -> tuple[str, str]:
    """`search` or `click` and the text in its brackets; both empty if the action is neither."""
    name, bracket, rest = action.partition("[")
    inside, closed, _ = rest.rpartition("]")
    name = name.strip().lower()
    return (name, inside) if bracket and closed and name in ("search", "click") and inside.strip() else ("", "")


class Shop:
    """The pages over one catalogue. It holds no visit: every method is a function of the page."""

    def __init__(self, catalogue: Catalogue):
        self.catalogue = catalogue

    def follow(self, page: ShopPage, action: str) -> ShopPage:
        """The page that an action leads to; the same page if the action is not possible. A search works from everywhere."""
        name, argument = parse(action)
        if name == "search" and page.kind != "done":
            return ShopPage("results", query=" ".join(argument.lower().split()))
        return self._click(page, folded(argument)) if name == "click" else page

    def _click(self, page: ShopPage, label: str) -> ShopPage:
        if label not in self.buttons(page):
            return self._choose(page, label)
        if label == BACK:
            return ShopPage()
        if label == BUY:
            return replace(page, kind="done")
        if label == NEXT:
            return replace(page, number=page.number + 1)
        if label == PREVIOUS:
            return self._previous(page)
        return replace(page, kind="detail", detail=label)

    def _previous(self, page: ShopPage) -> ShopPage:
        if page.kind == "detail":
            return replace(page, kind="item", detail="")
        if page.kind == "item":
            return ShopPage("results", page.query, page.number)
        return replace(page, number=page.number - 1)

    def _choose(self, page: ShopPage, label: str) -> ShopPage:
        """A click on a product of the results or on an option of the item."""
        if page.kind == "results":
            product = next((identity for identity in self.listed(page) if identity.lower() == label), None)
            return ShopPage("item", page.query, page.number, product) if product else page
        if page.kind == "item":
            for name, values in self.catalogue.find(page.product).options.items():
                for value in values:
                    if folded(value) == label:
                        return replace(page, options=tuple(sorted({**dict(page.options), name: value}.items())))
        return page

    def listed(self, page: ShopPage) -> tuple[str, ...]:
        """The products on a page of results."""
        return self.catalogue.search(page.query)[(page.number - 1) * PER_PAGE : page.number * PER_PAGE]

    def buttons(self, page: ShopPage) -> tuple[str, ...]:
        """What can be clicked, other than products and options."""
        if page.kind == "results":
            more = page.number * PER_PAGE < len(self.catalogue.search(page.query))
            return (BACK, *((PREVIOUS,) if page.number > 1 else ()), *((NEXT,) if more else ()))
        if page.kind == "item":
            return (BACK, PREVIOUS, *DETAILS, BUY)
        return (BACK, PREVIOUS) if page.kind == "detail" else ()

    def actions(self, page: ShopPage) -> tuple[str, ...]:
        """The admissible actions, each once."""
        if page.kind in ("search", "done"):
            return (ASK,) if page.kind == "search" else ()
        labels = dict.fromkeys(self.buttons(page))
        if page.kind == "results":
            labels |= dict.fromkeys(self.listed(page))
        if page.kind == "item":
            options = self.catalogue.find(page.product).options
            labels |= dict.fromkeys(value for values in options.values() for value in values)
        return tuple(f"click[{label}]" for label in labels)

    def text(self, page: ShopPage, instruction: str) -> str:
        """The page as text."""
        if page.kind == "search":
            return f"The search page of a web shop.\nYour task is: {instruction}"
        if page.kind == "results":
            return "\n".join(self._results(page))
        product = self.catalogue.find(page.product)
        if page.kind == "detail":
            return f"{page.detail.capitalize()} of {product.id}, {product.title}:\n{_detail(product, page.detail)}"
        if page.kind == "done":
            options = ", ".join(f"{name}: {value}" for name, value in page.options)
            return f"You have bought {product.id}, {product.title}{' with ' * bool(options)}{options}."
        return "\n".join(_item(product, dict(page.options)))

    def _results(self, page: ShopPage) -> Iterator[str]:
        total = len(self.catalogue.search(page.query))
        if not total:
            yield f"No product was found for: {page.query}"
            return
        yield f"Results for: {page.query}"
        yield f"Page {page.number} of {-(-total // PER_PAGE)}, {total} products"
        for identity in self.listed(page):
            product = self.catalogue.find(identity)
            yield f"[{identity}] {product.title} ({product.price_tag})"


def _item(product: Product, chosen: dict[str, str]) -> Iterator[str]:
    yield f"{product.id}: {product.title}"
    yield f"Price: {product.price_tag}"
    for name, values in product.options.items():
        yield f"{name}: {'; '.join(dict.fromkeys(values))}" + (f" (chosen: {chosen[name]})" if name in chosen else "")


def _detail(product: Product, detail: str) -> str:
    if detail == "description":
        return product.description or "none"
    if detail == "features":
        return "\n".join(f"- {feature.strip()}" for feature in product.features if feature.strip()) or "none"
    return "none"
