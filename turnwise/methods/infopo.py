"""InfoPO: a turn was informative if its feedback changes what the agent does next.

    I_k = mean over the tokens of a_{k+1} of [ log π(token | …, o_k) − log π(token | …, placeholder) ]

a_{k+1} is the response that follows the feedback o_k of turn k. The placeholder has as many tokens as the observation: a short text whose
last token is repeated, or its beginning. The last turn has no next response.

Credit uses it where outcomes do not discriminate:

    x_k   = I_k / |a_k|      per token of turn k; I_k: column turn.feedback_gain
    A_int = (x − mean x) / (std x + 1e-6)       over the tokens of the group whose x is not 0; 0 where x is 0
    A_out                                       GRPO's
    scale = min(1, max(std A_out, 1) / std A_int)          both over all tokens of the batch
    gate  = σ(−σ_g / T)                         σ_g: the sample deviation of the group's returns; 1/2 where all are equal
    A     = A_out + β · gate · scale · A_int

All tokens of a turn have the same numbers, so statistics over tokens are statistics over turns that count as often as they have tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.segments import deviation, episode_returns, standardise, trajectory_groups
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.methods.registry import Brings, kl_loss, method, signal
from turnwise.methods.spans import Spans
from turnwise.util.errors import TurnwiseError

PAPER = "InfoPO, github.com/kfq20/InfoPO"
Placeholder = Annotated[str, Help("what the observation is replaced by, repeated or cut to its number of tokens")]
GAIN = "turn.feedback_gain"


@signal("feedback_gain", paper=PAPER, needs=("model.policy",), gives=(GAIN,))
def feedback_gain(batch: Batch, models: Any, *, placeholder: Placeholder = "No information found.") -> Mapping[str, Floats]:
    """How much likelier the next response is with this turn's feedback than with a placeholder; 0 for the last turn, and for feedback that
    its prompt does not show."""
    spans = Spans(models.policy.tokenizer)
    filling = spans.encode(placeholder)
    if not filling:
        raise TurnwiseError("signal feedback_gain: its placeholder has no tokens; give it a text")
    rows, prompts, responses = [], [], []
    for k, trajectory in enumerate(batch.trajectories):
        for row, turn in list(zip(batch.rows(k), trajectory.turns, strict=True))[1:]:  # the turn that follows the feedback
            shown = spans.find(turn.prompt_ids, turn.observation)
            if shown is not None and len(turn.response_ids):
                rows.append(row)
                prompts.append(without(turn.prompt_ids, shown, filling))
                responses.append(list(turn.response_ids))
    gain = np.zeros(len(batch))
    if rows:
        known, offsets = models.policy.score(batch), batch.rollouts.token_offsets
        blind = models.policy.logprobs(prompts, responses)
        for row, score in zip(rows, blind, strict=True):
            gain[row - 1] = float(np.mean(known[offsets[row] : offsets[row + 1]] - score))
    return {GAIN: gain}


def without(ids: Any, shown: range, filling: list[int]) -> list[int]:
    """A prompt with some of its tokens replaced by as many of the filling: its beginning, or all of it with the last token repeated."""
    same = (filling + filling[-1:] * len(shown))[: len(shown)]
    return [*map(int, ids[: shown.start]), *same, *map(int, ids[shown.stop :])]


@credit.register("infopo", paper="InfoPO, github.com/kfq20/InfoPO", needs=("group.peers", GAIN))
def infopo_credit(
    r: Rollouts,
    *,
    beta: Annotated[float, Help("weight of the information part", low=0)] = 0.5,
    temperature: Annotated[float, Help("T of the gate: deviation of returns at which information fades out", low=1e-6)] = 0.05,
) -> Floats:
    """Outcome credit plus, in groups whose outcomes are alike, credit for feedback that changed the next action."""
    tokens = np.asarray(r.need("tokens", "infopo"), np.float64)
    outcome = episode_credit(r, norm="std", weighting="trajectory", invalid_penalty=0.0)
    share = np.asarray(r.column(GAIN), np.float64) / np.maximum(tokens, 1.0)
    informed = (share != 0) & (tokens > 0)
    own = np.zeros(len(r))
    own[informed] = standardise(share[informed], r.group[informed], len(r.group_labels), "std", tokens[informed])
    target, size = max(_deviation(outcome, tokens), 1.0), _deviation(own, tokens)
    scale = min(1.0, target / size) if size > 0 else 1.0
    spread = deviation(episode_returns(r), trajectory_groups(r), len(r.group_labels))
    gate = 0.5 * (1.0 - np.tanh(spread / (2 * temperature)))  # the logistic of −spread / T, which cannot overflow: 1/2 for equal returns
    return outcome + beta * scale * gate[r.group] * own


def _deviation(values: Floats, tokens: Floats) -> float:
    """The sample deviation of a column of turns over all tokens of the batch."""
    count = tokens.sum()
    mean = float((tokens * values).sum() / max(count, 1.0))
    return float(np.sqrt((tokens * (values - mean) ** 2).sum() / max(count - 1.0, 1.0)))


@method(
    "infopo",
    paper=PAPER,
    changes="reward, credit",
    costs="one scoring pass over the batch and one per turn",
    evidence="code",
    options={infopo_credit: "beta temperature", feedback_gain: "placeholder"},
)
def infopo() -> dict[str, Any]:
    """In groups whose outcomes are alike, a turn is rewarded if its feedback changed the next action."""
    own = {"credit.name": "infopo", "signal": [{"name": "feedback_gain"}]}
    return Brings(own, {"objective.name": "clip", "objective.aggregation": "token", "objective.entropy_coef": 0.001} | kl_loss(0.0))
