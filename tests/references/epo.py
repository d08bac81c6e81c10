"""EPO: entropy bonus with the published smoothing regulariser.

Source: WujiangXu/EPO at 5b6fa98e, verl/workers/actor/dp_actor.py (generate_entropy_penalty,
_calculate_epoch_based_entropy_weight, update_policy), verl/trainer/ppo/ray_trainer.py (the history),
agent_system/multi_turn_rollout/rollout_loop.py (entropy of a step), README commands.  Paper: arXiv 2509.22576.

Confirmed by executing generate_entropy_penalty and _calculate_epoch_based_entropy_weight (differences at the end of the
file); the sum in update_policy and the history in the trainer were read, not run.

Facts of the authors' code
- loss = policy loss - coeff * (mean entropy - smooth_coeff * w(epoch) * mean penalty) + KL.  coeff = 0.001 (verl's
  entropy_coeff), smooth_coeff = 1.0.  Both means over the tokens of the micro-batch with loss_agg_mode (token-mean), the
  same mask as the policy loss.
- penalty of a token: 0 if low * H < h < high * H (both strict), otherwise alpha.  H is the history at the token's turn
  index.  Commands: low 0, high 2.0, alpha 0.1 (ALFWorld) or 0.05 (ScienceWorld); yaml: 0.8, 1.2, 0.1.
  "seq" mode (not used): compares the row's mean entropy over ALL positions, padding included.
- THE PENALTY IS A CONSTANT: it has no gradient.  It shifts the value of the loss alone.  What trains is the entropy
  bonus.  (With low = 0, a token of entropy exactly 0 is outside: 0 < 0 is false.)
- w(epoch) (enable_smooth_weights, on in both commands): max = 150, half = 75: up to half: 1 - 0.2 * (1 - exp(-2 e/75));
  after: 0.8 * exp(-3 (e - 75)/75).  At 75 the first form holds (0.827), just after it 0.8 * ...; clamped to [0, 150].
"""

from __future__ import annotations

import math


def epoch_weight(epoch, max_epochs=150):
    if max_epochs <= 0:
        return 1.0
    epoch = max(0, min(epoch, max_epochs))
    half = max_epochs // 2
    if epoch <= half:
        return 1.0 if half == 0 else 1.0 - 0.2 * (1 - math.exp(-2.0 * epoch / half))
    return 0.8 * math.exp(-3.0 * (epoch - half) / (max_epochs - half))


def penalty(entropy, step, past, low=0.0, high=2.0, alpha=0.1):
    """Penalty of every token.  entropy: list of token entropies per row; step: turn index per row; past: the history by turn index."""
    return [
        [0.0 if low * past[index] < value < high * past[index] else alpha for value in row]
        for row, index in zip(entropy, step, strict=True)
    ]


# Confirmed: 12 random batches, penalties equal (1.5e-9 from float32), no gradient; weights of 163 epochs 1.1e-16.
