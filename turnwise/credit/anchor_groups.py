"""Anchor groups: which turns of a group started from the same state.

`exact`: equal anchors. `similar`: anchors are texts, and similar texts of the same group are one state (see similar.py). The result does
not depend on the order of rows.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.segments import pair
from turnwise.credit.similar import similar_groups
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Rollouts
from turnwise.util.errors import TurnwiseError

AnchorRule = Annotated[Literal["exact", "similar"], Help("which anchors are one state: equal anchors, or similar texts")]
Threshold = Annotated[float, Help("with anchors=similar: the minimum similarity 2·LCS/(|a|+|b|)", low=0, high=1)]


def anchor_groups(r: Rollouts, anchors: str = "exact", threshold: float = 0.95) -> tuple[Ints, int]:
    """The dense id of each turn's anchor group, for rollouts in order, and the number of anchor groups."""
    code, size = pair(r.group, r.anchor)
    if anchors == "exact":
        return code, size
    first_row = np.zeros(size, np.int64)
    first_row[code[::-1]] = np.arange(len(code))[::-1]
    root, group, anchor = np.arange(len(first_row)), r.group[first_row], r.anchor[first_row]
    order = np.argsort(group, kind="stable")
    for members in np.split(order, np.cumsum(np.bincount(group))[:-1]):
        texts = [_text(r, code) for code in anchor[members].tolist()]
        root[members] = members[similar_groups(texts, threshold)]  # the first similar one
    return pair(r.group, root[code])


def _text(r: Rollouts, code: int) -> str:
    text = r.anchor_table.texts[code]
    if text is None:
        row = int(np.flatnonzero(r.anchor == code)[0])
        raise TurnwiseError(f"column 'anchor', row {row}: anchors=similar compares texts, and this anchor is not text; use anchors=exact")
    return text
