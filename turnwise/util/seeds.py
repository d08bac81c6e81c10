"""Randomness that depends only on names: the same on every machine, in any order, with any number of workers.

All randomness in a run is a function of the recipe's seed and of its purpose (`derive(seed, "sample", iteration, group, turn)`). There is
no generator whose state would have to be saved, and a killed and resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

from hashlib import blake2b


def derive(seed: int, *names: int | str) -> int:
    """A number in [0, 2^63) from a seed and the names of its purpose."""
    text = "\x00".join([str(seed), *map(str, names)])
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


class Order:
    """An endless shuffled sequence over 0 … size−1, in a different order each round, without a list: item i is computed from i.

    A four-round Feistel network permutes the next power of four; positions beyond `size` are skipped.
    """

    def __init__(self, size: int, seed: int, shuffle: bool = True):
        if size < 1:
            raise ValueError("an order needs at least one item")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)

    def __getitem__(self, place: int) -> int:
        """The item at a position of the endless sequence."""
        round_, index = divmod(place, self.size)
        if not self.shuffle:
            return index
        keys = [derive(self.seed, "order", round_, step) for step in range(4)]
        item = self._permute(index, keys)
        while item >= self.size:
            item = self._permute(item, keys)
        return item

    def _permute(self, value: int, keys: list[int]) -> int:
        mask = (1 << self._half_bits) - 1
        left, right = value >> self._half_bits, value & mask
        for key in keys:
            mixed = ((right + key) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
            mixed ^= mixed >> 29
            mixed = (mixed * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
            left, right = right, left ^ ((mixed >> 32) & mask)
        return (left << self._half_bits) | right
