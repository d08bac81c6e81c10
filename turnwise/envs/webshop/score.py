"""The score of a purchase, from 0 to 1, by WebShop's formula.

    score = type × (attributes found + options right + price kept) / (attributes + options + 1)

`type` is 1, 0.5, 0.1 or 0, depending on how well the bought product matches the wanted kind: the share of the nouns in the wanted title
that the bought title also has, the search query that the product was collected with, and its category path.

Two things differ from the reference, both on purpose. **Nouns**: the reference asks a tagger whose model no package index has; here every
word of a title counts that is not a function word or a common describing word. **Colours**: the reference shortens an option to the
first colour name that occurs in it, even inside another word ("wash" to "ash"), and does so on the bought side only, so that the right item
can score below 1. The corrected rule shortens both sides, and at whole words; `colours="reference"` gives the old one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from turnwise.envs.webshop.catalogue import Product

Colours = Literal["corrected", "reference"]
ALIKE = 85

# The names that the reference looks for, in its order: the first match decides.
_COLOURS = """alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel
champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim eggplant elephant
espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime
magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple
rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet
walnut wheat white wine yellow"""
COLOURS = tuple(_COLOURS.split())

# Words of a title that are not nouns: function words and common describing words. Units do count: a tagger takes them for nouns.
_NO_NOUNS = """a about above after all also an and any are as at be been before below between both but by can could de do does each either
every few for from had has have how if in into is it its just la le less like made makes many may more most much my new no non nor not of
off on once one only or other our out over own per plus really same she so some such than that the their them then there these they this
those through to too two three four five six seven eight nine ten under until up upon use used using very via was we were what when where
which while who will with within without would yes you your
anti artificial automatic best better big black blue casual certified classic clean clear compact contemporary cosmetic creative curly cute
daily dark decorative deep digital double dry dual easy elastic electric elegant empty exquisite extra facial floral fresh frozen full funny
good great hanging hard healthy heavy high indoor industrial large light lightweight little living long loose low magnetic manual medium
mini modern multi natural new nice old open oral organic outdoor perfect permanent personal pink plain premium printed professional pure
purple quick rapid real red remote retro round rustic sexy short simple single slim small smooth soft solid special stainless strong super
sweet tall tempered thermal thick thin tiny top traditional triple ultra universal vintage warm white whole wide wooden yellow"""
NO_NOUNS = frozenset(_NO_NOUNS.split())
DESCRIBING = ("able", "ible", "less", "ful", "ous", "proof")
_SIGNS = re.compile(r"[^a-z0-9]+")
_TITLE_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Score:
    """The score and its parts."""

    total: float
    type: float
    attributes: float
    options: float
    price: float

    @property
    def success(self) -> bool:
        return self.total == 1.0


@dataclass(frozen=True)
class Wish:
    """What a purchase is compared with."""

    product: Product
    attributes: Sequence[str]
    options: Mapping[str, str] | Sequence[str]
    price_limit: float


def score(wish: Wish, bought: Product, options: Mapping[str, str], colours: Colours = "corrected") -> Score:
    """The score of buying a product with these options."""
    kind = type_share(wish.product, bought)
    attributes = sum(has_attribute(bought, wanted) for wanted in wish.attributes)
    chosen = tuple(options.values())
    pairs = wish.options.items() if isinstance(wish.options, Mapping) else (("", value) for value in wish.options)
    right = sum(option_matches(wanted, chosen, colours) for wanted in pairs)
    price = bought.price <= wish.price_limit
    parts = len(wish.attributes) + len(wish.options) + 1
    return Score(
        total=kind * ((attributes + right + price) / parts),
        type=kind,
        attributes=attributes / max(len(wish.attributes), 1),
        options=right / max(len(wish.options), 1),
        price=float(price),
    )


def has_attribute(product: Product, wanted: str) -> bool:
    """Whether the product has an attribute: among its own ones, or word for word in its texts."""
    return any(token_set_ratio(own, wanted) > ALIKE for own in product.attributes) or any(wanted in text for text in product.texts)


def option_matches(wanted: tuple[str, str], chosen: Iterable[str], colours: Colours) -> bool:
    """Whether one of the chosen values is the wanted one (a name and a value; the name is empty if only a value was asked for)."""
    name, value = wanted
    if colours == "corrected":
        return any(value == one or token_set_ratio(_whole_word_colour(value), _whole_word_colour(one)) > ALIKE for one in chosen)
    # The reference asks whether a colour is "in" the pair, that is, equal to its name or value, and shows any other pair whole.
    shown = next((colour for colour in COLOURS if colour in wanted), str(wanted)) if name else _inner_colour(value)
    return any(token_set_ratio(_inner_colour(one), shown) > ALIKE for one in chosen)


def _inner_colour(value: str) -> str:
    return next((colour for colour in COLOURS if colour in value), value)


@lru_cache(maxsize=1 << 14)
def _whole_word_colour(value: str) -> str:
    words = set(re.findall(r"[a-z]+", value))
    return next((colour for colour in COLOURS if colour in words), value)


def type_share(wanted: Product, bought: Product) -> float:
    """How well a product matches the wanted kind."""
    nouns = title_nouns(wanted.title)
    title = len(set(nouns) & set(title_nouns(bought.title))) / len(nouns) if nouns else 0.2
    if title < 0.1:
        return 0.1 if title else 0.0
    alike = title > 0.2 or wanted.query == bought.query or len(wanted.path & bought.path) >= 2
    return 1.0 if alike else 0.5


@lru_cache(maxsize=1 << 14)
def title_nouns(title: str) -> tuple[str, ...]:
    """The words of a title that say what it is, in order, in lower case."""
    found = (word.lower() for word in _TITLE_WORD.findall(title))
    return tuple(word for word in found if len(word) > 1 and word not in NO_NOUNS and not (len(word) > 5 and word.endswith(DESCRIBING)))


# The similarity of two phrases, from 0 to 100, whatever the order of their words: the token set ratio of fuzzy matching libraries. It is
# implemented here because a reward must not depend on an optional package. Its details matter: punctuation becomes spaces, what is not
# ASCII is dropped, each word counts once, and a phrase whose words all occur in the other one is a full match.


@lru_cache(maxsize=1 << 16)
def token_set_ratio(one: str, two: str) -> int:
    """An integer from 0 to 100; 0 if either has no word."""
    ours, theirs = _words(one), _words(two)
    if not ours or not theirs:
        return 0
    shared, left, right = ours & theirs, ours - theirs, theirs - ours
    if shared and not (left and right):
        return 100
    mine, yours = " ".join(sorted(left)), " ".join(sorted(right))
    common = len(" ".join(shared))
    gap = 1 if shared else 0  # the space between the shared words and the others
    whole = 2 * (common + gap) + len(mine) + len(yours)
    ratios = [1 - (len(mine) + len(yours) - 2 * _longest_common(mine, yours)) / whole]
    if shared:
        ratios += [1 - (gap + len(rest)) / (2 * common + gap + len(rest)) for rest in (mine, yours)]
    return round(100 * max(ratios))


def _words(phrase: str) -> frozenset[str]:
    plain = phrase.encode("ascii", "ignore").decode().lower()
    return frozenset(_SIGNS.sub(" ", plain).split())


def _longest_common(one: str, two: str) -> int:
    """The length of the longest common subsequence, a row of the table held in the bits of one integer."""
    places: dict[str, int] = {}
    for place, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << place
    full = (1 << len(one)) - 1
    row = full
    for letter in two:
        matches = row & places.get(letter, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(one) - row.bit_count()
