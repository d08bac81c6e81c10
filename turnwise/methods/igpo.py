"""IGPO: a turn is rewarded by how much it raises the policy's own probability of the gold answer.

    p_k     = exp(mean log-prob of the gold answer's tokens)     after the prompt of turn k and the words that open an answer
    gain_k  = p_{k+1} − p_k, or log p_{k+1} − log p_k             the last turn has none: the outcome judges it

A task may have several gold answers; p is that of the likeliest. A curriculum lets the weight of
gains fall and that of the outcome rise linearly over the run.

Credit judges a turn by what it found out, and the last turn by the outcome:

    r_k = w_gain · gain_k        what turn k adds to the (log-)probability of the gold answer (column turn.information_gain)
    r_K = w_outcome · R          the last turn: the outcome, the trajectory's return
    r~  = (r − mean r) / (s + 1e-6)      over the group: all of its turn rewards ("joint"), or gains and outcomes apart ("separate")
    A_k = r~_k + γ · A_next              next: the next turn with a reward; a turn without one has A_next itself

s is sqrt(var + 1e-8) of the population. The weights are 1, or the columns of the signal `information_curriculum`. A turn whose gain is not
known (NaN: its task has no gold answer) has no reward and is in no mean; with `zeros` "skip" neither has one whose gain is exactly 0.

`version` "first" is the formula before the authors' rewrite of February 2026: s is the sample deviation, every known gain counts, and the
discount is per turn, with or without a reward. With no gold answer at all it is GRPO, discounted by γ per turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import EPSILON, TurnDiscount, deviation, episode_returns, reverse_scan, standardise
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Bools, Floats, Rollouts
from turnwise.data.tasks import Task
from turnwise.methods.authors import RecipeDiscount, kl_loss
from turnwise.methods.registry import Brings, method, section, signal
from turnwise.methods.spans import Spans

PAPER = "Wang et al. 2025, Information Gain-based Policy Optimization, arXiv 2510.14967"
Key = Annotated[str, Help("key of the tasks' data that holds the gold answer, or a list of them")]
Form = Annotated[str, Help("how the agent says an answer, with {} in place of it")]
Gain = Annotated[Literal["prob", "log_prob"], Help("what a turn adds to: the answer's probability, or its mean log-prob")]
Weight = Annotated[float, Help("a weight of rewards at the start or at the end of the run", low=0)]
GAIN, GAIN_WEIGHT, OUTCOME_WEIGHT = "turn.information_gain", "trajectory.gain_weight", "trajectory.outcome_weight"
Pooling = Annotated[Literal["joint", "separate"], Help("one z-score over gains and outcomes of a group, or one for each")]
Version = Annotated[Literal["rewrite", "first"], Help("the authors' rewrite of February 2026, or the formula before it")]
Zeros = Annotated[Literal["count", "skip"], Help("turns whose gain is exactly 0 have a reward of 0, or none")]


@signal("information_curriculum", paper=PAPER, gives=(GAIN_WEIGHT, OUTCOME_WEIGHT))
def information_curriculum(
    batch: Batch,
    models: Any,
    *,
    gain_start: Weight = 1.0,
    gain_end: Weight = 0.5,
    outcome_start: Weight = 0.5,
    outcome_end: Weight = 1.0,
) -> Mapping[str, Floats]:
    """Weights of gains and outcomes that change linearly over the run."""
    size, progress = len(batch.trajectories), models.progress
    return {
        GAIN_WEIGHT: np.full(size, gain_start + (gain_end - gain_start) * progress),
        OUTCOME_WEIGHT: np.full(size, outcome_start + (outcome_end - outcome_start) * progress),
    }


@signal("information_gain", paper=PAPER, needs=("task.{key}", "model.policy"), gives=("turn.gold_probability", GAIN))
def information_gain(
    batch: Batch, models: Any, *, key: Key = "answers", form: Form = "<answer>{}</answer>", gain: Gain = "prob"
) -> Mapping[str, Floats]:
    """How much each turn raised the policy's probability of the gold answer; NaN for the last turn and for tasks without an answer."""
    spans = Spans(models.policy.tokenizer)
    opening = spans.encode(form.partition("{}")[0]) if form.partition("{}")[0] else []
    asked: dict[tuple[Any, ...], int] = {}  # the first prompt is the same for a whole group: each pair is scored once
    wanted: list[tuple[int, int]] = []  # row, number of the pair
    for k in range(len(batch.trajectories)):
        answers = [spans.encode(text) for text in gold_answers(batch.task(k), key)]
        for row, turn in zip(batch.rows(k), batch.trajectories[k].turns, strict=True):
            pairs = [(tuple(turn.prompt_ids), tuple(answer)) for answer in answers if answer]
            wanted += [(row, asked.setdefault(pair, len(asked))) for pair in pairs]
    prompts, answers = [list(prompt) for prompt, _ in asked], [list(answer) for _, answer in asked]
    scores = models.policy.logprobs(prompts, [opening + answer for answer in answers]) if asked else []
    means = [float(np.mean(score[len(opening) :])) for score in scores]

    best = np.full(len(batch), -np.inf)
    for row, number in wanted:
        best[row] = max(best[row], means[number])
    known = np.where(np.isinf(best), np.nan, np.exp(best))
    before = known if gain == "prob" else np.where(np.isinf(best), np.nan, best)
    after = np.append(before[1:], np.nan)
    after[batch.first_row[1:] - 1] = np.nan
    return {"turn.gold_probability": known, GAIN: after - before}


def gold_answers(task: Task, key: str) -> list[str]:
    """The gold answers of a task: none, one text or number, or a list of them."""
    items = task.data.get(key)
    listed = items if isinstance(items, Sequence) and not isinstance(items, str) else [] if items is None else [items]
    return [str(answer) for answer in listed]


@credit.register(
    "igpo", paper="Wang et al. 2025, Information Gain-based Policy Optimization, arXiv 2510.14967", needs=("group.peers", GAIN)
)
def igpo_credit(
    r: Rollouts, *, gamma: TurnDiscount = 1.0, normalise: Pooling = "joint", version: Version = "rewrite", zeros: Zeros = "count"
) -> Floats:
    """Discounted sum of normalised turn rewards: information gains, and at the end the outcome."""
    last, first_version = last_turns(r), version == "first"
    gain = np.asarray(r.column(GAIN), np.float64)
    counted = last | ~(np.isnan(gain) | ((gain == 0) & (zeros == "skip")))
    reward = np.where(last, episode_returns(r)[r.trajectory] * weights(r, OUTCOME_WEIGHT), gain * weights(r, GAIN_WEIGHT))
    scaled = np.zeros(len(r))
    for chosen in [counted] if normalise == "joint" else [last, counted & ~last]:
        values, group, size = reward[chosen], r.group[chosen], len(r.group_labels)
        if first_version:
            scaled[chosen] = standardise(values, group, size, "std")
        else:
            spread = np.sqrt(deviation(values, group, size, ddof=0) ** 2 + 1e-8) + EPSILON
            scaled[chosen] = standardise(values, group, size, "none") / spread[group]
    return reverse_scan(scaled, np.where(counted | first_version, gamma, 1.0), r.trajectory)


def weights(r: Rollouts, name: str) -> Floats | float:
    """The weight of each turn's reward: 1 unless a signal has given another."""
    return np.asarray(r.column(name), np.float64)[r.trajectory] if r.has(name) else 1.0


def last_turns(r: Rollouts) -> Bools:
    """True for the last turn of each trajectory, of rollouts that are in order."""
    last: Bools = np.append(r.trajectory[:-1] != r.trajectory[1:], True)
    return last


@method("igpo", paper=PAPER, changes="reward, credit", costs="one scoring pass per turn and gold answer", evidence="code; sum from notes")
def igpo(
    *,
    gamma: RecipeDiscount = None,
    normalise: Pooling = "joint",
    version: Version = "rewrite",
    zeros: Zeros = "count",
    gain: Gain = "prob",
    curriculum: Annotated[bool, Help("the weight of gains falls over the run, and that of the outcome rises")] = False,
    key: Key = "answers",
    form: Form = "<answer>{}</answer>",
) -> dict[str, Any]:
    """A turn is rewarded by how much it raises the policy's probability of the gold answer."""
    of_gain = {"name": "information_gain", "key": key, "form": form, "gain": gain}
    own = section("credit", name="igpo", gamma=gamma, normalise=normalise, version=version, zeros=zeros) | {
        "signal": [of_gain, {"name": "information_curriculum"}] if curriculum else [of_gain]
    }
    authors = {"objective.name": "clip", "objective.aggregation": "token", "objective.entropy_coef": 0.001, "credit.gamma": 1.0}
    return Brings(own, authors | kl_loss(0.001))
