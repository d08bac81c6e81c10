"""CPPO from the authors' code: which completions are learned from, and how many prompts are drawn.

Source: lzhxmu/CPPO, commit 52faeb37e2ef629da1da3ff1e7d0c9be578c4bdc, `cppo_verl/recipe/cppo/src/cppo_ray_trainer.py` (`fit` and `_create_dataloader`)
and `src/open_r1/grpo_trainer_gsm.py:_generate_and_score_completions`.
Confirmed by executing both selections (tests/golden/cppo.json, the same completions).

Both prune over the WHOLE batch (in open-r1: of one process), not inside each group. verl keeps floor(n · (1 - P)) of n, open-r1 drops floor(n · P): not the
same where n · P is no whole number. verl draws floor(prompts / (1 - P)) prompts; open-r1 keeps the group size and draws 1 / (1 - P) times the prompts.
Which of equal |A| goes is not defined (torch.topk).
"""

import numpy as np


def prompts(number, prune):
    return int(number / (1.0 - prune))


def kept(advantages, prune, version="verl"):
    """Numbers of the completions that are learned from, in their order; for advantages of which no two have the same size."""
    size = np.abs(np.asarray(advantages))
    number = int(len(size) * (1 - prune)) if version == "verl" else len(size) - int(len(size) * prune)
    return sorted(sorted(range(len(size)), key=lambda row: -size[row])[:number])
