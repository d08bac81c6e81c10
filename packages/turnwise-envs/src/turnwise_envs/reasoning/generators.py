"""reasoning-gym behind three calls: which generators there are, the question of a seed, and the score of an answer.

The package's generators take their randomness from a seed, but some also use the global ones, or the order of sets, which differs
between processes. Both are put right here: global generators are seeded for the call and put back after it, and the few sets are sorted.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from reasoning_gym.factory import CURRICULA, DATASETS

from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.reasoning.guards import LEFT_OUT, admitted, allowed, disarm
from turnwise_envs.shared.global_seeds import seeded

ENDLESS = 2**31 - 1
TRIES, SPARE = 4, 250_000_000
PREPARED = {"acre": 10, "gsm_symbolic": 1, "list_functions": 1}  # these prepare all their questions at once: that many per seed
HARDEST = {"bf": 1, "jugs": 1, "n_queens": 3, "zebra_puzzles": 3}  # higher levels take many seconds per question


@lru_cache(maxsize=1)
def known() -> tuple[str, ...]:
    """The generators that can be used, by name."""
    return tuple(sorted(name for name, (made_by, _) in DATASETS.items() if allowed(name, made_by)))


def category(name: str) -> str:
    """The package's group of a generator, such as algebra."""
    return str(DATASETS[name][0].__module__.split(".")[1])


def choose(wanted: Sequence[str] | str | None) -> tuple[str, ...]:
    """The generators of these names and categories, in the order given; all without a wish."""
    names = known()
    if wanted is None:
        return names
    found: list[str] = []
    for word in [wanted] if isinstance(wanted, str) else wanted:
        group = [name for name in names if category(name) == word]
        if word in LEFT_OUT:
            raise TurnwiseError(f"reasoning: the generator {word} is left out: {LEFT_OUT[word]}")
        if word not in names and not group:
            raise unknown_name("generator or category of reasoning-gym", word, [*names, *map(category, names)])
        found += [word] if word in names else group
    if not found:
        raise TurnwiseError("reasoning: generators is an empty list; leave it out for all of them")
    return tuple(dict.fromkeys(found))


def entry(name: str, level: int | None, config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The question of a seed, its answer, and what the scorer needs."""
    settings = json.dumps(dict(config), sort_keys=True)
    for other in range(TRIES):  # a few seeds have no question: then it is that of another one, which no split has
        number = seed + other * SPARE
        with isolated(number):
            try:
                if name in PREPARED:
                    return dict(_dataset(name, level, settings, number)[number % PREPARED[name]])
                shared = _shared(name, level, settings)
                shared.size = ENDLESS
                return dict(shared[number])
            except (IndexError, RuntimeError) as error:
                reason = str(error)
    raise TurnwiseError(f"reasoning: {name} has no question for seed {seed}: {reason}")


def check(name: str, level: int | None, config: Mapping[str, Any]) -> None:
    """An error for settings that the generator does not have or does not allow."""
    _configuration(name, level, {**config, "seed": 0, "size": 1})


def score(name: str, level: int | None, config: Mapping[str, Any], answer: str, of: Mapping[str, Any]) -> float:
    """The package's score of an answer, from 0 to 1. An answer that its scorer cannot handle scores 0."""
    if (text := admitted(name, answer, of)) is None:
        return 0.0
    with isolated(0):
        try:
            value = float(_shared(name, level, json.dumps(dict(config), sort_keys=True)).score_answer(text, of))
        except Exception:  # a scorer that fails on a malformed answer, each in its own way
            return 0.0
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


@contextlib.contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Global generators that depend on the seed alone, and are as before afterwards; without what the package prints."""
    with seeded(seed), contextlib.redirect_stdout(io.StringIO()):
        yield


@lru_cache(maxsize=256)
def _shared(name: str, level: int | None, config: str) -> Any:
    """One dataset per generator and difficulty: question `seed` of the dataset with seed 0 is the one of that seed."""
    return _dataset(name, level, config, 0)


def _dataset(name: str, level: int | None, config: str, seed: int) -> Any:
    made_by, _ = DATASETS[name]
    disarm(name, made_by)
    size = PREPARED.get(name, 1)
    found = made_by(config=_configuration(name, level, {**json.loads(config), "seed": seed, "size": size}))
    if name not in PREPARED:
        found.size = ENDLESS
    return _in_order(name, found)


def _configuration(name: str, level: int | None, fields: dict[str, Any]) -> Any:
    """The package's settings at this level (None: its defaults), with some of them given. A level that a generator does not have, or
    that takes too long, is the highest below it."""
    try:
        if level is None or name not in CURRICULA:
            return _valid(DATASETS[name][1](**fields))
        for lower in range(min(level, HARDEST.get(name, level)), -1, -1):
            made = CURRICULA[name]()
            made.set_global_level(lower)
            built = made.generate_configuration(dict(fields))
            for key, value in fields.items():
                setattr(built, key, value)
            with contextlib.suppress(AssertionError):
                return _valid(built)
        return _valid(DATASETS[name][1](**fields))
    except (AssertionError, TypeError, ValueError) as error:
        raise TurnwiseError(f"reasoning: the settings of {name} are not valid: {error}") from None


def _valid(config: Any) -> Any:
    if callable(getattr(config, "validate", None)):
        config.validate()
    return config


class _Letters(frozenset[str]):
    """Letters, also without some of them, in a fixed order."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(frozenset.__iter__(self)))

    def __sub__(self, other: Any) -> Any:
        return sorted(frozenset.__sub__(self, other))


def _in_order(name: str, dataset: Any) -> Any:
    """Sorted where the package goes through a set of texts, whose order differs between processes."""
    if name in ("isomorphic_strings", "ransom_note"):
        dataset.letters = _Letters(dataset.letters)
    if name == "polynomial_multiplication":
        monomials = dataset._get_monomials
        dataset._get_monomials = lambda rng: sorted(monomials(rng), key=str)
    if name == "word_ladder":
        neighbours = dataset._get_neighbors
        dataset._get_neighbors = lambda word, words: sorted(neighbours(word, words))
    return dataset
