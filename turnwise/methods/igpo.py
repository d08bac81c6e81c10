"""IGPO: a turn is rewarded by how much it raises the policy's own probability of the gold answer.

    p_k     = exp(mean log-prob of the gold answer's tokens)     after the prompt of turn k and the words that open an answer
    gain_k  = p_{k+1} − p_k                                       the last turn has none: the outcome judges it

A task may have several gold answers; p is that of the likeliest. Credit is in `turnwise/credit/igpo.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.igpo import GAIN, Pooling
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats
from turnwise.data.tasks import Task
from turnwise.methods.authors import TurnDiscount, kl_loss
from turnwise.methods.registry import Brings, method, signal
from turnwise.methods.spans import Spans

PAPER = "Wang et al. 2025, Information Gain-based Policy Optimization, arXiv 2510.14967"
Key = Annotated[str, Help("key of the tasks' data that holds the gold answer, or a list of them")]
Form = Annotated[str, Help("how the agent says an answer, with {} in place of it")]


@method("igpo", paper=PAPER, changes="reward, credit", costs="one scoring pass per turn and gold answer", evidence="code; sum from notes")
def igpo(*, gamma: TurnDiscount = None, normalise: Pooling = "joint", key: Key = "answers", form: Form = "<answer>{}</answer>") -> Any:
    """A turn is rewarded by how much it raises the policy's probability of the gold answer."""
    own = {
        "signal": [{"name": "information_gain", "key": key, "form": form}],
        "credit.name": "igpo",
        "credit.gamma": gamma,
        "credit.normalise": normalise,
    }
    authors = {"objective.name": "clip", "objective.aggregation": "token", "objective.entropy_coef": 0.001, "credit.gamma": 1.0}
    return Brings(own, authors | kl_loss(0.001))


@signal("information_gain", paper=PAPER, needs=("task.{key}", "model.policy"), gives=("turn.gold_probability", GAIN))
def information_gain(batch: Batch, models: Any, *, key: Key = "answers", form: Form = "<answer>{}</answer>") -> Mapping[str, Floats]:
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
    after = np.append(known[1:], np.nan)
    after[batch.first_row[1:] - 1] = np.nan
    return {"turn.gold_probability": known, GAIN: after - known}


def gold_answers(task: Task, key: str) -> list[str]:
    """The gold answers of a task: none, one text or number, or a list of them."""
    found = task.data.get(key)
    listed = found if isinstance(found, Sequence) and not isinstance(found, str) else [] if found is None else [found]
    return [str(answer) for answer in listed]
