"""HiMAC: the policy writes a blueprint of subgoals and carries it out; the two are learned in turn, one phase per iteration.

    blueprints   group_size blueprints per task, each carried out once and greedily
                 A = (R − mean) / (std + 1e-6) over the blueprints of a task; only their tokens are learned from
    actions      the same tasks; the best blueprint of each, group_size attempts with it
                 A = (R − mean) / (std + 1e-6) over these attempts; only the tokens of actions are learned from

With `budget`, prompts show the active subgoal alone: <sub_done> in a response, or so many actions, lead to the next one.
What is not learned from is not in the batch, so credit is GRPO's. The phase and the best blueprints are the plan's state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.data.attempts import ChangingHint, Hint, Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, summary
from turnwise.methods.registry import Brings, kl_loss, method, plan
from turnwise.util.seeds import derive
from turnwise_experiments.strategies import LONGEST, shown, writing, written

PAPER = "HiMAC, arXiv 2603.00977"
DONE = "<sub_done>"  # what a response says to get the next part of a text
PART = re.compile(r"\n|;|(?:^|(?<=\s))\d+[.)](?=\s)")  # what stands between the parts of a list
ASK = "{task}\n\nDo not act yet. Write a plan for this task: the subgoals to reach, one after another, each in a few words."
SHOW = "Your plan for this task, one subgoal after another: {text}"
SHOW_ONE = f"Your subgoal now ({{k}} of {{n}}): {{text}}. Say {DONE} with the action that reaches it."
Budget = Annotated[int | None, Help("show the active subgoal alone, for at most this many actions; none: the whole blueprint", low=1)]


@dataclass
class Best:
    """The best blueprint of a task, and the attempt that it is for."""

    task: Task
    env_seed: int
    hint: str  # the blueprint, as it is shown or, subgoal by subgoal, as it was written

    def state(self) -> dict[str, Any]:
        return {"task": self.task.to_json(), "env_seed": self.env_seed, "hint": self.hint}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Best:
        return cls(Task.from_json(state["task"]), state["env_seed"], state["hint"])


@plan("himac", paper=PAPER, needs=("group.peers",))
@dataclass(kw_only=True, eq=False)
class Himac(Plan):
    """Blueprints of the policy are compared by carrying them out; in the next batch, attempts with the best one are compared."""

    temperature: Annotated[float, Help("of the actions that carry out blueprints which are compared; 0: greedy", low=0)] = 0.0
    ask: Annotated[str, Help("how a blueprint is asked for; {task} stands for the goal and the first observation")] = ASK
    show: Annotated[str, Help("how a blueprint is shown in prompts; {text} stands for it")] = SHOW
    budget: Budget = None

    def __post_init__(self) -> None:
        self.tasks = 0  # tasks for which blueprints were compared so far
        self.best: list[Best] = []  # of the last batch, for the attempts of the next one

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        return (yield from self.actions(slots) if self.best else self.blueprints(slots, groups))

    def blueprints(self, slots: TaskSlots, groups: int) -> Rounds:
        """Compare blueprints. Tasks come in the run's order: the groups of the other phase do not skip any."""
        tasks = [start.task for start in slots.starts(self.tasks, groups)[:: slots.group_size]]
        starts = [slots.group(task) for task in tasks]
        firsts = [group[0] for group in starts]
        seed = derive(slots.seed, "himac", firsts[0].group)
        texts = written(slots, firsts, self.ask, slots.group_size, seed)
        turn_of = {start.number: turn for own, turns in zip(starts, texts, strict=True) for start, turn in zip(own, turns, strict=True)}
        planned = {start.number: start for own in starts for start in own}
        hints = {number: self.kept(turn) for number, turn in turn_of.items()}
        attempts = yield [
            replace(start, hint=self.told(hints[start.number]), temperature=self.temperature) for own in starts for start in own
        ]
        best: dict[int | str, Trajectory] = {}
        for attempt in attempts:
            if attempt.group not in best or attempt.reward > best[attempt.group].reward:
                best[attempt.group] = attempt
        self.tasks += groups
        self.best = [Best((own := planned[int(one.id)]).task, own.env_seed, hints[int(one.id)]) for one in best.values()]
        learned = [
            writing(slots, planned[int(one.id)], turn_of[int(one.id)], [one]) for one in attempts if len(turn_of[int(one.id)].response_ids)
        ]
        return Gathered(learned, summary(attempts) | {"blueprints": float(len(learned))})

    def actions(self, slots: TaskSlots) -> Rounds:
        """Compare attempts with the best blueprint of each task of the last batch."""
        starts = [
            replace(start, hint=self.told(best.hint), env_seed=best.env_seed) for best in self.best for start in slots.group(best.task)
        ]
        attempts = yield starts
        self.best = []
        return Gathered(attempts, {"blueprints": 0.0})

    def evaluation(self, slots: TaskSlots, starts: Sequence[Start]) -> list[Start]:
        """Every attempt with one blueprint of its own."""
        texts = written(slots, starts, self.ask, 1, derive(slots.seed, "himac", "evaluation"))
        return [replace(start, hint=self.told(self.kept(turn))) for start, [turn] in zip(starts, texts, strict=True)]

    def kept(self, turn: Turn) -> str:
        """What is kept of a blueprint."""
        return shown(turn, self.show) if self.budget is None else turn.action.strip()[:LONGEST]

    def told(self, blueprint: str) -> Hint:
        """How a blueprint is shown to an attempt: as a whole, or its active subgoal alone."""
        if self.budget is None or not (parts := parts_of(blueprint)):
            return blueprint if self.budget is None else ""
        return OneByOne(SHOW_ONE, parts, self.budget)

    def state(self) -> dict[str, Any]:
        return {"tasks": self.tasks, "best": [one.state() for one in self.best]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.tasks, self.best = state["tasks"], [Best.of(one) for one in state["best"]]


@dataclass
class OneByOne(ChangingHint):
    """A hint that shows one part of a text after another: the next one after DONE in a response, or after `budget` responses. {text}, {k}
    and {n} in `words` stand for the part, its number and how many there are."""

    words: str
    parts: tuple[str, ...]
    budget: int
    at: int = 0
    responses: int = 0

    def __call__(self, observation: str) -> str:
        return self.words.replace("{k}", str(self.at + 1)).replace("{n}", str(len(self.parts))).replace("{text}", self.parts[self.at])

    def on_response(self, response: str) -> None:
        self.responses += 1
        if (DONE in response or self.responses >= self.budget) and self.at < len(self.parts) - 1:
            self.at, self.responses = self.at + 1, 0


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a list: its lines, or what stands between semicolons or numbers; the whole text if it is none."""
    result = (" ".join(part.split()).strip("-*• ") for part in PART.split(text[:LONGEST]))
    return tuple(part for part in result if part)


@method(
    "himac",
    paper=PAPER,
    changes="plan, prompts",
    costs="one short generation per attempt in every second iteration; half of the iterations learn blueprints only",
    evidence="notes; group sizes, budgets and prompts are ours",
    options={Himac: "temperature"},
)
def himac(*, budget: Budget = None) -> dict[str, Any]:
    """The policy writes a plan of subgoals and carries it out; writing and acting are learned in alternate iterations."""
    one_by_one = {} if budget is None else {"plan.budget": budget, "agent.parse": "tags"}
    own = one_by_one | {"plan.name": "himac", "credit.name": "grpo"}
    return Brings(own, {"credit.norm": "std"} | kl_loss(0.01))
