"""CPPO (B21): only the completions with the largest |advantage| are learned from.

Source: lzhxmu/CPPO, commit 52faeb37e2ef629da1da3ff1e7d0c9be578c4bdc, `cppo_verl/recipe/cppo/src/cppo_ray_trainer.py` (`fit` and
`_create_dataloader`) and `src/open_r1/grpo_trainer_gsm.py:_generate_and_score_completions`. Confirmed by executing both selections
(tests/golden/cppo.json, the same completions).

Both prune over the WHOLE batch (in open-r1: of one process), not inside each group. verl keeps floor(n · (1 - P)) of n, open-r1
drops floor(n · P): not the same where n · P is no whole number. verl draws floor(prompts / (1 - P)) prompts; open-r1 keeps the
group size and draws 1 / (1 - P) times the prompts. Which of equal |A| goes is not defined (torch.topk).
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def kept(advantages: Sequence[float], prune: float = 0.5) -> list[int]:
    """Indices (ascending) that stay in ONE group: the k = floor(N (1 - prune)) largest |A|, at least one. Ties: the earlier first.

    1e-9 is added before the floor, so that 10 * (1 - 0.9) is 1.
    """
    number = max(1, math.floor(len(advantages) * (1.0 - prune) + 1e-9))
    order = sorted(range(len(advantages)), key=lambda i: -abs(advantages[i]))
    return sorted(order[:number])


def allocation(prune: float = 0.5) -> int:
    """How many times as many groups are drawn, so that the update has as many completions as without pruning: floor(1/(1 - prune))."""
    return math.floor(1.0 / (1.0 - prune) + 1e-9)
