"""A reward for information: how much more likely the right answer became by what a turn found out.

    gain(t) = log p(answer | prompt of turn t+1) − log p(answer | prompt of turn t)        under the policy itself

The last turn gives the answer, and the environment's own reward judges it: its gain is 0. A gain is added to the turn's reward, so every
credit function can use it.

Use it in a recipe with

    [[signal]]
    name = "examples/methods/gold_gain.py:gold_gain"
    weight = 0.1

`Drawers` below is a small game in which it matters: the answer is in one of three drawers.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

import turnwise as tw
from turnwise.config.options import Help
from turnwise.data.batch import Batch


# A signal gets the batch and the models of the run, and returns columns. `needs` says that tasks must have an answer in their data. A run
# on an environment whose tasks have none is refused before it starts. `gives` is what later stages may need. turn.reward is replaced:
# credit sees the new rewards, while the log and the trajectories keep what the environment gave.
@tw.methods.signal("gold_gain", needs=("task.answer", "model.policy"), gives=("turn.gold_logprob", "turn.gain", "turn.reward"))
def gold_gain(
    batch: Batch,
    models: Any,
    *,
    weight: Annotated[float, Help("factor of the gain in the reward", low=0)] = 0.1,
    form: Annotated[str, Help("how an answer is written, such as answer[{}] for the search environment")] = "{}",
    most: Annotated[float, Help("largest gain, in nats, upwards and downwards", low=0)] = 3.0,
) -> dict[str, np.ndarray]:
    """The gain in log-prob of the gold answer by each turn, added to the turn's reward."""
    encode = models.policy.tokenizer
    prompts: list[Any] = []
    answers: list[list[int]] = []
    for k, trajectory in enumerate(batch.trajectories):  # the turns of trajectory k are the rows batch.rows(k), one after another
        said = form.format(batch.task(k).data["answer"])
        ids = list(encode(said, add_special_tokens=False)["input_ids"])
        for turn in trajectory.turns:
            prompts.append(turn.prompt_ids)
            answers.append(ids)

    # One call for the whole batch: the model packs all of it, and retries in smaller parts if memory runs out.
    known = np.array([logprobs.sum() for logprobs in models.policy.logprobs(prompts, answers)])

    gain = np.zeros(len(batch))
    for k in range(len(batch.trajectories)):
        rows = np.asarray(batch.rows(k))
        gain[rows[:-1]] = np.clip(np.diff(known[rows]), -most, most)
    return {"turn.gold_logprob": known, "turn.gain": gain, "turn.reward": batch.column("turn.reward") + weight * gain}


class Drawers:
    """A digit lies in one of three drawers. The actions a, b and c open one; a digit is the answer and ends the attempt."""

    instructions = "A digit lies in one of the drawers a, b and c. Open drawers, then say the digit."
    max_turns = 4

    def tasks(self, split: str = "train") -> tw.TaskSet:
        found = [(drawer, str(digit)) for drawer in "abc" for digit in range(10)]
        chosen = [pair for n, pair in enumerate(found) if (n % 6 == 0) == (split != "train")]
        return tw.TaskSet([tw.Task(drawer + digit, split, {"drawer": drawer, "answer": digit}) for drawer, digit in chosen])

    def reset(self, task: tw.Task, seed: int = 0) -> tw.Observation:
        self.task, self.opened = task, ""
        return self._look()

    def step(self, action: str) -> tw.Transition:
        if action.isdigit():
            right = action == self.task.data["answer"]
            return tw.Transition(self._look(), float(right), True, right)
        if action in ("a", "b", "c") and action not in self.opened:
            self.opened += action
        return tw.Transition(self._look(), 0.0, False)

    def _look(self) -> tw.Observation:
        seen = [self.task.data["answer"] if name == self.task.data["drawer"] else "-" for name in self.opened]
        text = " ".join(f"{name}: {what}" for name, what in zip(self.opened, seen, strict=True))
        return tw.Observation(text or "all closed", actions=(*"abc", *"0123456789"))

    def expert(self, task: tw.Task) -> list[str]:
        """For the warm start: open the right drawer, say what is in it."""
        return [task.data["drawer"], task.data["answer"]]
