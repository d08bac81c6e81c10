"""INSPO: a population of instructions that is trained against along with the policy.

Each group is attempted with one instruction, drawn by how well it did so far; its running mean return is kept. Every few batches the worst
instruction that was tried often enough is dropped, and a new one takes its place: the current policy (or a function of yours) reflects on
stored attempts. A new one is verified first: on one task it must do at least as well as the instruction it was made from.

    p(i) ∝ exp(mean(i) / temperature)       an instruction that was never tried counts as the best
    mean(i) ← mean(i) + (R − mean(i)) / n(i)

The loop is the paper's. Its sampling rule, its intervals and sizes are not public: these are ours.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from turnwise.config.kinds import Kind
from turnwise.config.loading import load_reference
from turnwise.config.options import Help
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots
from turnwise.methods.registry import method, plan
from turnwise.util.seeds import derive

REFLECT = Kind("reflection", takes=("instruction", "attempts"), gives=("str",), example="def mine(instruction, attempts) -> str")
FIRST = ["", "Before each action, think about what is still missing.", "Do not repeat an action that changed nothing."]
LONGEST = 600  # characters of an instruction


@dataclass
class Instruction:
    """A text, the mean return of the attempts that were made with it, and their number."""

    text: str
    mean: float = 0.0
    tried: int = 0

    def see(self, value: float) -> None:
        self.tried += 1
        self.mean += (value - self.mean) / self.tried


@plan("inspo", needs=("group.peers",))
class Inspo(Plan):
    """Every group once, each with an instruction of a population that is pruned and renewed."""

    def __init__(
        self,
        *,
        instructions: Annotated[list[str], Help("the first population; an empty text is no instruction")] = FIRST,
        every: Annotated[int, Help("batches between two changes of the population; 0: never", low=0)] = 10,
        temperature: Annotated[float, Help("how even the choice is: small prefers the best", low=1e-6)] = 0.2,
        least: Annotated[int, Help("attempts before an instruction can be dropped", low=1)] = 16,
        buffer: Annotated[int, Help("attempts kept for reflection", low=1)] = 32,
        reflect: Annotated[str | None, Help("your own function, as path/to/file.py:NAME; none: the policy is asked")] = None,
    ):
        texts = list(dict.fromkeys(map(str, instructions))) or [""]
        self.population = [Instruction(text) for text in texts]
        self.every, self.temperature, self.least, self.size, self.step = every, temperature, least, buffer, 0
        self.buffer: list[dict[str, Any]] = []
        self.reflect: Callable[[str, Sequence[dict[str, Any]]], str] | None = None if reflect is None else load_reference(reflect, REFLECT)

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        starts = slots.groups(groups)
        chosen = {group: self.draw(slots.seed, group) for group in dict.fromkeys(start.group for start in starts)}
        attempts = yield [replace(start, hint=chosen[start.group].text) for start in starts]
        for trajectory in attempts:
            chosen[trajectory.group].see(trajectory.reward)
            self.buffer.append(_record(trajectory, chosen[trajectory.group].text))
        self.buffer = self.buffer[-self.size :]
        self.step += 1
        renewed = 0
        if self.every and self.step % self.every == 0 and (worst := self.worst()) is not None:
            text = self.new_text(slots, worst)
            if text:
                trials = [replace(start, hint=text) for start in slots.more(starts[0], slots.group_size)]
                rivals = [replace(start, hint=worst.text) for start in slots.more(starts[0], slots.group_size)]
                tried = yield [*trials, *rivals]
                renewed = self.verified(worst, text, tried, {start.number for start in trials})
        counts = {"instructions": len(self.population), "renewed": renewed, "best_instruction": self.best().mean}
        return Gathered(attempts, counts)

    def draw(self, seed: int, group: int | str) -> Instruction:
        """The instruction of a group: by its place in the run, so the same after a resume."""
        best = self.best().mean
        weights = [math.exp(((one.mean if one.tried else best) - best) / self.temperature) for one in self.population]
        return random.Random(derive(seed, "inspo", group)).choices(self.population, weights)[0]

    def best(self) -> Instruction:
        return max(self.population, key=lambda one: (one.tried > 0, one.mean))

    def worst(self) -> Instruction | None:
        """The instruction to be replaced: the worst of those that were tried often enough, and of equals the newest."""
        known = [one for one in reversed(self.population) if one.tried >= self.least]
        return min(known, key=lambda one: one.mean) if known else None

    def new_text(self, slots: TaskSlots, worst: Instruction) -> str:
        """A new instruction from what happened with an old one; empty where reflection gave none, or one that is there already."""
        attempts = sorted((item for item in self.buffer if item["instruction"] == worst.text), key=lambda item: item["reward"])
        if self.reflect is not None:
            text = str(self.reflect(worst.text, attempts))
        else:
            [text] = slots.answers([_question(worst.text, attempts)], derive(slots.seed, "inspo reflects", self.step))
        text = " ".join(text.split())[:LONGEST]
        return "" if any(one.text == text for one in self.population) else text

    def verified(self, worst: Instruction, text: str, tried: Sequence[Trajectory], numbers: set[int]) -> int:
        """The new instruction replaces the old one if it does no worse at the same task."""
        new, old = Instruction(text), Instruction(worst.text)
        for trajectory in tried:
            (new if trajectory.id in numbers else old).see(trajectory.reward)
        if not new.tried or new.mean < old.mean:
            return 0
        self.population[self.population.index(worst)] = new
        return 1

    def evaluated(self, start: Start) -> Start:
        return replace(start, hint=self.best().text)

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "population": [asdict(one) for one in self.population], "buffer": list(self.buffer)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.step, self.buffer = state["step"], list(state["buffer"])
        self.population = [Instruction(**one) for one in state["population"]]


def _record(trajectory: Trajectory, instruction: str) -> dict[str, Any]:
    actions = [turn.action for turn in trajectory.turns]
    return {"instruction": instruction, "goal": trajectory.goal, "actions": actions, "reward": trajectory.reward}


def _question(instruction: str, attempts: Sequence[dict[str, Any]]) -> str:
    """What the policy is asked: the worst and the best attempt with an instruction, and for a better one."""
    told = [f"Return {item['reward']:g}: {' -> '.join(item['actions'][:10])}" for item in (*attempts[:1], *attempts[1:][-1:])]
    now = f"The instruction was: {instruction}" if instruction else "There was no instruction."
    return "\n".join([now, "Attempts that were made with it:", *told, "Write one better instruction, in one or two sentences."])


@method(
    "inspo",
    paper="INSPO, arXiv 2512.01945",
    changes="plan, prompts",
    costs="two further groups per change of the population, and one generation",
    evidence="notes; sampling rule, intervals and sizes are ours",
    options={Inspo: "instructions every"},
)
def inspo() -> dict[str, Any]:
    """A population of instructions is rated by rewards, pruned and renewed while the policy trains."""
    return {"plan.name": "inspo", "credit.name": "grpo"}
