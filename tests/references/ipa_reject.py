"""IPA / ROLL: rejection of tokens whose training and inference probabilities disagree, and the mean of the loss after it.

Source: alibaba/ROLL at 8eb27cc2, roll/utils/train_infer_corrections.py (compute_train_infer_correction,
apply_train_infer_correction_to_batch), roll/pipeline/agentic/utils.py (compute_segment_masked_mean,
compute_agentic_reinforce_return), roll/utils/functionals.py (agg_loss), roll/pipeline/agentic/agentic_pipeline.py and
agentic_actor_pg_worker.py (the two places where it is applied), roll/distributed/strategy/strategy.py
(_get_batch_num_tokens, _get_global_valid_samples).  Paper: arXiv 2512.24873.

Confirmed by executing compute_train_infer_correction, compute_segment_masked_mean, compute_agentic_reinforce_return and
agg_loss; differences at the end of the file.

Facts of the authors' code
- A row is a whole conversation; a segment (IPA's chunk) is a run of consecutive response tokens.
- log-ratio = old (trainer) - inference engine, per token.  Per segment: mean over its tokens (sum / (n + 1e-8)), exp of it
  for the ratio; also the mean difference of probabilities.  Levels token, segment, geometric (mean over the row) and
  sequence (sum over the row).
- A token stays if ratio_low <= ratio <= ratio_high (both ends included) and, when diff is on, diff_low <= diff <=
  diff_high.  Defaults 0.8..1.2 and -0.2..0.2, ratio on, diff off, the whole filter off.
- Where it is applied:
  (a) enable_old_logprobs_recompute (set by itself for more than one optimiser step per batch, and for step_reinforce and
      gigpo): in the pipeline, AFTER the advantages, BEFORE training: response_mask itself becomes
      response_mask * keep.  All counts are taken from that mask afterwards.  So a rejected token is in no sum and in no
      denominator: not of the policy loss, not of the KL, not of the entropy; a row without any token left counts as no row.
  (b) otherwise: inside the loss of each micro-batch, after the counts (tokens, rows) were taken from the full mask.  Then
      the mean over the tokens of a row (seq-mean-token-mean, the default in ROLL's code) still leaves rejected tokens
      out of its own denominator, but the number of rows is the full one, and token-mean divides by the full number.
- agg_loss: seq-mean-token-mean: mean over the tokens that stay per row, (sum / (n + 1e-8)), then the sum over rows that
  have a token / (number of rows with a token + 1e-8).  seq-mean-token-sum: sums over tokens instead.
  token-mean at this commit DOES NOT MULTIPLY BY THE MASK: it sums the whole loss matrix and divides by the number of
  tokens of the mask.  With (a) or (b) a rejected token would still be in the numerator unless its loss is 0 there.
  That is a slip of the framework; `mean` below is what the mask means.
- Segment ratio of the policy (ratio_type: segment) is computed on the mask after rejection: if a filter on the token
  level cuts a segment in two, each part is a segment of its own.
- Chunk return: from the last segment backwards, G = reward on the segment's LAST token + gamma * G of the next segment,
  the same for all its tokens; rewards on other tokens of a segment are not read.
"""

from __future__ import annotations

import numpy as np


def segments(mask):
    """[(start, end)] of the runs of 1 in one row."""
    runs, start = [], None
    for position, value in enumerate([*mask, 0]):
        if value and start is None:
            start = position
        elif not value and start is not None:
            runs.append((start, position))
            start = None
    return runs


def keep(old, inference, mask, low=0.8, high=1.2, level="segment", diff=None):
    """Tokens that stay, arrays [rows, tokens].  diff: None or (low, high)."""
    old, inference, mask = (np.asarray(x, dtype=np.float64) for x in (old, inference, mask))
    out = np.zeros(mask.shape, dtype=bool)
    for row in range(len(mask)):
        log_ratio, difference = old[row] - inference[row], np.exp(old[row]) - np.exp(inference[row])
        if level == "token":
            units = [(t, t + 1) for t in range(mask.shape[1]) if mask[row, t]]
        elif level == "segment":
            units = segments(mask[row])
        else:
            units = [(0, mask.shape[1])]
        for start, end in units:
            inside = [t for t in range(start, end) if mask[row, t]]
            if not inside:
                continue
            scale = 1.0 if level == "sequence" else 1 / len(inside)
            ratio = np.exp(sum(log_ratio[t] for t in inside) * scale)
            stays = low <= ratio <= high
            if diff is not None:
                stays = stays and diff[0] <= sum(difference[t] for t in inside) * scale <= diff[1]
            for t in inside:
                out[row, t] = stays
    return out


def mean(loss, kept, mode="row"):
    """The mean of the loss after rejection.  mode: "row" (seq-mean-token-mean) or "token"."""
    rows = [[loss[row][t] for t in range(len(loss[row])) if kept[row][t]] for row in range(len(loss))]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if mode == "token":
        return sum(sum(row) for row in rows) / sum(len(row) for row in rows)
    return sum(sum(row) / len(row) for row in rows) / len(rows)


def chunk_returns(rewards, mask, gamma):
    """Return of every token of one row."""
    out, carry = [0.0] * len(mask), 0.0
    for start, end in reversed(segments(mask)):
        carry = rewards[end - 1] + gamma * carry
        out[start:end] = [carry] * (end - start)
    return out


# Confirmed: 12 random batches, all four levels, with and without diff: the same tokens stay; row mean 4.2e-9 (their
# 1e-8 in the denominators); chunk returns 1.6e-7 (float32).
