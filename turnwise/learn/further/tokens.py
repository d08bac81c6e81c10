"""Whether two tokenizers mean the same by a token id."""

from __future__ import annotations

from typing import Any

from turnwise.util.errors import TurnwiseError

SHOWN = 3


def difference(own: Any, policy: Any) -> str | None:
    """What differs between a model's tokenizer and the policy's, as text; None if every token has the same id in both."""
    if own is policy:
        return None
    here, there = own.get_vocab(), policy.get_vocab()
    if here == there:
        return None
    moved = sorted((number, token) for token, number in there.items() if token in here and here[token] != number)
    lacks = sorted((number, token) for token, number in there.items() if token not in here)
    more = sorted((number, token) for token, number in here.items() if token not in there)
    words = []
    if moved:
        examples = ", ".join(f"{token!r} is {here[token]} there and {number} here" for number, token in moved[:SHOWN])
        words.append(f"{len(moved)} tokens have other ids ({examples})")
    for what, found in (("it lacks", lacks), ("it adds", more)):
        if found:
            words.append(f"{what} {len(found)} tokens ({', '.join(repr(token) for _, token in found[:SHOWN])})")
    return "; ".join(words)


def check_shared(name: str, own: Any, policy: Any, rows: int) -> None:
    """Raises unless the policy's token ids mean the same to this model, which has embeddings for `rows` tokens."""
    found = difference(own, policy)
    if found is None and rows < len(policy):
        found = f"it has embeddings for {rows} tokens, and the policy's tokenizer has {len(policy)}"
    if found is not None:
        raise TurnwiseError(
            f"models.{name}: its tokenizer is not the policy's, so the policy's token ids mean something else to it: {found}. Use a model "
            f"of the same family, or models.{name}.texts=true, with which it reads texts alone"
        )
