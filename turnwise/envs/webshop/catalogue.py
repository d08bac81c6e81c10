"""The products: cleaned as in WebShop, found by number or id, read from the file on demand.

Kept in memory for each product: its id, its offsets in the two files, and its postings in the search index, linear in the number of
products. The most recently used products are kept as objects; with 1,000 products that is soon all of them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

from turnwise.envs.webshop.files import Files, entries, read_at
from turnwise.envs.webshop.index import Index, IndexBuilder
from turnwise.util.errors import TurnwiseError

NO_PRICE = 100.0
KEPT_PRODUCTS = 4096
KEPT_SEARCHES = 4096
LONGEST_KEPT_QUERY = 1000
SEARCH_LIMIT = 50
LONGEST_ID = 10


@dataclass(frozen=True)
class Product:
    """One product, with the options and attributes that the shop knows."""

    id: str
    title: str
    description: str
    features: tuple[str, ...]
    price: float
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    query: str
    category: str
    path: frozenset[str]
    instruction: str | None
    wanted: tuple[str, ...]

    @cached_property
    def texts(self) -> tuple[str, str, str]:
        """Title, features and description in lower case: where an attribute may be found."""
        return self.title.lower(), " ".join(self.features).lower(), self.description.lower()

    @property
    def index_text(self) -> str:
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.features[0] if self.features else ""
        return " ".join((self.title, self.description, first, options)).lower()

    @property
    def combinations(self) -> int:
        """The number of ways to choose a value for every option."""
        return prod(len(values) for values in self.options.values())


def chance(*parts: object) -> float:
    """A number from 0 to 1 that depends only on the parts, the same on every machine."""
    digest = blake2b("\x00".join(map(str, parts)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def make_product(item: Mapping[str, Any], extra: Mapping[str, Any]) -> Product:
    """A product from its entry in the product file and its entry in the attribute file. What is missing is empty."""
    identity = str(item.get("asin", ""))
    price, tag = _price(identity, item.get("pricing"))
    features = item.get("small_description") or ""
    return Product(
        id=identity,
        title=_text(item.get("name")),
        description=_text(item.get("full_description")),
        features=tuple(map(_text, features)) if isinstance(features, list) else (_text(features),),
        price=price,
        price_tag=tag,
        options=_options(item.get("customization_options")),
        attributes=tuple(map(_text, extra.get("attributes") or ())),
        query=_text(item.get("query")).lower().strip(),
        category=_text(item.get("category")),
        path=frozenset(level.strip() for level in _text(item.get("product_category")).split("›")),
        instruction=extra.get("instruction") or None,
        wanted=tuple(map(_text, extra.get("instruction_attributes") or ())),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _price(identity: str, pricing: Any) -> tuple[float, str]:
    """The price and its tag. A range of prices gives one price in it, which depends only on the product's id."""
    found = []
    for piece in _text(pricing).split("$")[1:]:
        number = re.sub(r"[^0-9.]", "", piece)
        try:
            found.append(float(number))
        except ValueError:  # "1.2.3" or nothing: not a price
            continue
    if not found:
        return NO_PRICE, f"${NO_PRICE}"
    if len(found) == 1:
        return found[0], f"${found[0]}"
    low, high = found[:2]
    return low + (high - low) * chance("price", identity), f"${low} to ${high}"


def _options(raw: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(raw, Mapping):
        return {}
    return {
        name.lower(): tuple(_text(value.get("value")).strip().replace("/", " | ").lower() for value in values)
        for name, values in raw.items()
        if values is not None
    }


class Catalogue:
    """All products of a setting, and the search over them."""

    def __init__(self, files: Files, limit: int | None = None):
        self.files = files
        self.ids: list[str] = []
        self.number: dict[str, int] = {}
        self.goal_counts = array("q")
        self._places, self._lengths = array("q"), array("i")
        self._extra_places, self._extra_lengths = array("q"), array("i")
        self.index = self._read(limit)
        self._open: dict[Path, Any] = {}
        self.product = lru_cache(KEPT_PRODUCTS)(self._product)
        self._known_search = lru_cache(KEPT_SEARCHES)(self._search)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def mark(self) -> str:
        """16 hex digits over the ids of its products, in their order: it identifies the catalogue in a snapshot."""
        return blake2b("\n".join(self.ids).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def _read(self, limit: int | None) -> Index:
        extras = {entry.key: (entry.start, entry.length) for entry in entries(self.files.attributes)}
        builder = IndexBuilder()
        with self.files.attributes.open("rb") as attributes:
            for count, entry in enumerate(entries(self.files.products)):
                if limit is not None and count >= limit:
                    break
                if not isinstance(entry.value, dict):
                    raise TurnwiseError(
                        f"{self.files.products}, byte {entry.start}: a product is a JSON object, not {type(entry.value).__name__}"
                    )
                identity = str(entry.value.get("asin", "nan"))
                if identity == "nan" or len(identity) > LONGEST_ID or identity in self.number:
                    continue
                place = extras.get(identity, (0, 0))
                try:
                    product = make_product(entry.value, read_at(attributes, *place) if place[1] else {})
                except (AttributeError, TypeError) as error:
                    raise TurnwiseError(
                        f"{self.files.products}, byte {entry.start}: product {identity} is not as in the official file ({error}); options "
                        'are lists of {"value": …}, and its entry beside it is a JSON object'
                    ) from None
                self._keep(product, (entry.start, entry.length), place)
                builder.add(identity, product.index_text)
        if not self.ids:
            raise TurnwiseError(f"{self.files.products}: no product in this file. Check that it is the official one")
        return builder.build()

    def _keep(self, product: Product, place: tuple[int, int], extra: tuple[int, int]) -> None:
        self.number[product.id] = len(self.ids)
        self.ids.append(product.id)
        self._places.append(place[0])
        self._lengths.append(place[1])
        self._extra_places.append(extra[0])
        self._extra_lengths.append(extra[1])
        self.goal_counts.append(product.combinations if product.instruction and product.wanted else 0)

    def _product(self, number: int) -> Product:
        extra = {}
        item = read_at(self._file(self.files.products), self._places[number], self._lengths[number])
        if length := self._extra_lengths[number]:
            extra = read_at(self._file(self.files.attributes), self._extra_places[number], length)
        return make_product(item, extra)

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = path.open("rb")
        return self._open[path]

    def find(self, identity: str) -> Product:
        """The product with this id."""
        number = self.number.get(identity)
        if number is None:
            raise TurnwiseError(
                f"{self.files.products}: there is no product {identity!r} among its {len(self)} products: use the data of the task"
            )
        return self.product(number)

    def search(self, query: str) -> tuple[str, ...]:
        """The ids of the products that a query finds, best first. Answers are kept, except those of very long queries."""
        return self._known_search(query) if len(query) <= LONGEST_KEPT_QUERY else self._search(query)

    def _search(self, query: str) -> tuple[str, ...]:
        return tuple(self.ids[number] for number, _ in self.index.search(query, SEARCH_LIMIT))
