"""Anchor groups: which turns of a group started from the same state.

`exact`: equal anchors. `similar`: anchors are texts, and similar texts of the same group are one state; `linkage` defines what that means
for more than two texts (see similar.py). For any linkage, the result does not depend on the order of rows: `greedy` processes turns
trajectory by trajectory, the others use only the texts.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.segments import pair
from turnwise.credit.similar import linked
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Rollouts
from turnwise.util.errors import TurnwiseError

AnchorRule = Annotated[Literal["exact", "similar"], Help("which anchors are one state: equal anchors, or similar texts")]
Threshold = Annotated[float, Help("with anchors=similar: the minimum similarity 2·LCS/(|a|+|b|)", low=0, high=1)]
Linkage = Annotated[
    Literal["complete", "greedy", "components"],
    Help("with anchors=similar: any two texts of a group are similar; each is similar to the group's first; a chain connects them"),
]


def anchor_groups(r: Rollouts, anchors: str = "exact", threshold: float = 0.95, linkage: str = "complete") -> tuple[Ints, int]:
    """The dense id of each turn's anchor group, for rollouts in order, and the number of anchor groups."""
    code, size = pair(r.group, r.anchor)
    if anchors == "exact":
        return code, size
    first_row = np.zeros(size, np.int64)
    first_row[code[::-1]] = np.arange(len(code))[::-1]
    merged = _merge_similar(r, first_row, threshold, linkage)
    return pair(r.group, merged[code])


def _merge_similar(r: Rollouts, first_row: Ints, threshold: float, linkage: str) -> Ints:
    """For each distinct (group, anchor), the index of the first one in its group."""
    root, group, anchor = np.arange(len(first_row)), r.group[first_row], r.anchor[first_row]
    order = np.lexsort((first_row, group)) if linkage == "greedy" else np.argsort(group, kind="stable")
    for members in np.split(order, np.cumsum(np.bincount(group))[:-1]):
        texts = [_text(r, code) for code in anchor[members].tolist()]
        root[members] = members[linked(texts, threshold, linkage)]
    return root


def _text(r: Rollouts, code: int) -> str:
    text = r.anchor_table.texts[code]
    if text is None:
        row = int(np.flatnonzero(r.anchor == code)[0])
        raise TurnwiseError(f"column 'anchor', row {row}: anchors=similar compares texts, and this anchor is not text; use anchors=exact")
    return text
