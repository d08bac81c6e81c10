"""SLEA-RL: an experience library that grows while training, and is asked on every turn.

After each batch, short lessons are taken from the best successes and the worst failures. Once the library is large enough, the prompt of
every turn shows the lessons that belong to its observation. Credit is GiGPO's, unchanged. The library is the plan's state; nothing of it is
a gradient.

Lessons are taken by rule, without a judge: the actions of a success (method), what it did at each observation (example), how a failure
ended (mistake), an action that was repeated (pattern), why an attempt was stopped (diagnostic). `extract` names your own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from turnwise.config.kinds import Kind
from turnwise.config.loading import load_reference
from turnwise.config.options import Help
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Stop, Trajectory
from turnwise.methods.authors import VERL_AGENT
from turnwise.methods.experience import Lesson, Library, shown, zone_of
from turnwise.methods.planning import Gathered, Places, Plan, Rounds
from turnwise.methods.registry import Brings, method, plan
from turnwise.util.errors import TurnwiseError

EXTRACT = Kind("extraction", takes=("trajectory",), gives=("list", "sequence", "tuple"), example="def mine(trajectory) -> list[Lesson]")
SUCCESS = 0.5  # return from which an attempt counts as a success
Characters = Annotated[int, Help("characters of all lessons in a prompt", low=1)]
Warmup = Annotated[int, Help("batches before the first lesson is shown", low=0)]
Smallest = Annotated[int, Help("entries before the first lesson is shown", low=0)]


@plan("slea")
class Slea(Plan):
    """Every group once; prompts show lessons of earlier batches that belong to the observation."""

    def __init__(
        self,
        *,
        golden: Annotated[int, Help("entries per golden level", low=1)] = 100,
        warnings: Annotated[int, Help("entries per warning level", low=1)] = 50,
        similarity: Annotated[float, Help("texts are alike from this share of matching characters", low=0, high=1)] = 0.85,
        clusters: Annotated[int, Help("observations that are distinguished; the least used goes first", low=1)] = 500,
        warmup: Warmup = 5,
        smallest: Smallest = 10,
        characters: Characters = 800,
        attempts: Annotated[int, Help("successes, and failures, that are read per batch", low=1)] = 5,
        extract: Annotated[str | None, Help("your own function of a trajectory: path/to/file.py:NAME")] = None,
    ):
        self.library = Library({"golden": golden, "warning": warnings}, similarity, clusters)
        self.warmup, self.smallest, self.characters, self.attempts, self.step = warmup, smallest, characters, attempts, 0
        self.extract: Callable[[Trajectory], Sequence[Lesson]] = lessons if extract is None else load_reference(extract, EXTRACT)

    def gather(self, places: Places, groups: int) -> Rounds:
        found = yield [self.evaluated(start) for start in places.groups(groups)]
        ready = self.ready
        if ready:
            self.library.see(turn.observation for trajectory in found for turn in trajectory.turns)
        added = self.learn(found)
        self.step += 1
        counts = {"lessons": len(self.library.entries), "lessons_added": added, "lessons_shown": ready}
        return Gathered(found, {name: float(count) for name, count in counts.items()})

    @property
    def ready(self) -> bool:
        """Whether prompts show lessons."""
        return self.step >= self.warmup and len(self.library.entries) >= max(self.smallest, 1)

    def evaluated(self, start: Start) -> Start:
        return replace(start, hint=self.advice) if self.ready else start

    def advice(self, observation: str) -> str:
        """What the prompt of this observation shows."""
        return shown(*self.library.retrieve(observation, golden=2, warning=1), self.characters)

    def learn(self, found: Sequence[Trajectory]) -> int:
        """Take the lessons of a batch in: at most 10 of what worked, and 5 of what failed."""
        good = sorted((t for t in found if t.reward >= SUCCESS), key=lambda t: -t.reward)[: self.attempts]
        bad = sorted((t for t in found if t.reward < SUCCESS), key=lambda t: t.reward)[: self.attempts]
        left = {"golden": 10, "warning": 5}
        for trajectory in (*good, *bad):
            for lesson in map(_lesson, self.extract(trajectory)):
                if left[zone_of(lesson.level)] > 0 and self.library.add(lesson):
                    left[zone_of(lesson.level)] -= 1
        return 15 - sum(left.values())

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "library": self.library.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.library.load_state(state["library"])


def lessons(trajectory: Trajectory) -> list[Lesson]:
    """The lessons of an attempt, by rule."""
    turns = [turn for turn in trajectory.turns if turn.action]
    actions, score = [turn.action for turn in turns], trajectory.reward
    if not actions:
        return []
    if score >= SUCCESS:
        way = " -> ".join(actions[:5]) + (f" and {len(actions) - 5} more" if len(actions) > 5 else "")
        first = Lesson("method", f"{trajectory.goal} {way}".strip(), score, turns[0].observation)
        return [first, *(Lesson("example", f"{_line(t.observation)}: {t.action}", 0.8 * score, t.observation) for t in turns)]
    found = [Lesson("mistake", f"This led nowhere: {' -> '.join(actions[-3:])}", abs(score), turns[-1].observation)]
    repeated = next((turn for turn, two, three in zip(turns, turns[1:], turns[2:], strict=False) if _same(turn, two, three)), None)
    if repeated is not None:
        found.append(Lesson("pattern", f"Do not repeat {repeated.action}", 0.5, repeated.observation))
    if trajectory.stop is Stop.STEP_LIMIT:
        found.append(Lesson("diagnostic", "An attempt ran out of turns: take a shorter way", 0.3))
    return found


def _lesson(given: Any) -> Lesson:
    """What an extraction returned, as a lesson."""
    try:
        return Lesson(*given)
    except TypeError:
        raise TurnwiseError(f"slea: extract returned {given!r} as a lesson; (level, text, score) or (…, observation) is needed") from None


def _same(*turns: Any) -> bool:
    return len({turn.action for turn in turns}) == 1


def _line(text: str) -> str:
    """The last line of an observation: what is new there."""
    return (text.strip().splitlines() or [""])[-1][:100]


@method(
    "slea",
    paper="SLEA-RL, arXiv 2603.18079",
    changes="plan, prompts",
    costs="longer prompts; string comparisons",
    evidence="code; without self-distillation and without extraction by a language model",
)
def slea(*, warmup: Warmup = 5, smallest: Smallest = 10, characters: Characters = 800) -> dict[str, Any]:
    """Prompts show lessons from earlier successes and failures, looked up on every turn."""
    own = {"plan.name": "slea", "plan.warmup": warmup, "plan.smallest": smallest, "plan.characters": characters}
    credit = {"credit.gamma": 0.95, "credit.omega": 1.0, "credit.norm": "none", "credit.invalid_penalty": 0.1}
    return Brings(own | {"credit.name": "gigpo"}, VERL_AGENT | credit)
