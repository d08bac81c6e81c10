"""GPG from the authors' code: further batches until enough groups differ, and the factor of the loss.

Source: AMAP-ML/GPG, commit e096da8ce527a1636272469cee383ba71ec4a511, `open-r1/src/open_r1/gpg_trainer.py:_generate_and_score_completions`,
`merge` and `compute_loss`. Confirmed by executing the loop's body with scripted rewards on one process (tests/golden/gpg.json, the same groups).

The batch keeps the groups that differ, batch by batch in order, then groups of the LAST batch that do not differ; it is cut to the size of one batch.
The factor is 1 / min(1, differing groups / size of a batch), where all differing groups count, also those that were cut off.
Advantages are R - mean without division; the loss is a mean over tokens. After 20 batches an assertion ends the authors' run.
"""

import numpy as np


def batch(batches, least=0.4, most=20):
    """(numbers (batch, group) that are learned from, factor of the loss). batches: scripted, each a list of groups of returns."""
    differing = []
    for number, groups in enumerate(batches):
        if number + 1 >= most:
            raise AssertionError("too many batches")
        spread = [np.std(returns) > 0 for returns in groups]
        differing += [(number, place) for place, differs in enumerate(spread) if differs]
        if len(differing) >= least * len(groups):
            rest = [(number, place) for place, differs in enumerate(spread) if not differs]
            return (differing + rest)[: len(groups)], 1 / min(1.0, len(differing) / len(groups))
    raise IndexError("the script is too short")
