"""Baselines by prompting: what a model does without training, prompted in one of three ways.

    plain        the task and the bare action
    react        a thought before every action, in a form worked out in the prompt; the dialogue keeps earlier thoughts
    reflexion    react, and after a failure a note that the model writes to itself, shown in the next attempt at the same task

Reflexion uses the environment's own verdict after each attempt and tries again, up to a number of trials: success within k trials is a
different question from success in one attempt, so the result reports success by trial, and only its first row compares with the others.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from turnwise.agent import Agent, Past, View
from turnwise.agent.base import Context, Parsed, Prompt
from turnwise.agent.context import make_context
from turnwise.agent.parse import split_thought
from turnwise.agent.prompts import load_template
from turnwise.agent.text import goal_of, well_formed
from turnwise.collect.collector import Collector, Start
from turnwise.collect.faults import FaultWatch
from turnwise.collect.model_policy import ModelPolicy
from turnwise.collect.panel import Evaluation, Share, evaluation_of, panel_starts, run_panel
from turnwise.collect.players import ASK_EXPERT, Advised
from turnwise.collect.programs import ProgramCollector
from turnwise.collect.warmstart import has_expert
from turnwise.data.rollouts import Trajectory
from turnwise.data.tasks import Task
from turnwise.engines.base import Request
from turnwise.envs import registry
from turnwise.envs.base import Observation
from turnwise.envs.registry import portable
from turnwise.envs.scripts import Play, Reset, play_all
from turnwise.recipe.schema import Config
from turnwise.runs.reporter import Reporter, heartbeat
from turnwise.setup.arguments import Given
from turnwise.setup.build import agent_settings
from turnwise.setup.environment import build_tasks, limits_of, step_limit
from turnwise.setup.evaluated import choose_panel, report_faults, says_how, settings_of, source_config
from turnwise.setup.parts import build_player, check_engine, hooks_of
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

AGENTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"agent.prompt": "plain"},
    "react": {"agent.prompt": "react", "agent.context": "full"},
    "reflexion": {"agent.prompt": "react", "agent.context": "full"},
}
REFLECTION = str(Path(__file__).parent.parent / "agent" / "reflection.jinja")
KEPT_NOTES = 3  # the newest ones; older notes mostly say the same
LONGEST_NOTE = 800  # characters
FIRST_SEQUENCE = 2**40  # of requests for notes: far from those of attempts, which start at 0


def evaluate(
    agent: str,
    source: str | Path | None = None,
    *,
    env: str | None = None,
    split: str | None = None,
    n: int | Literal["all"] | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    repeats: int | None = None,
    trials: int = 3,
    examples: int = 0,
    reporter: Reporter | None = None,
    trust: bool = False,
    **overrides: Any,
) -> Evaluation:
    """Play a panel with a model that is only prompted. `source` and the rest are as in `turnwise.evaluate`; the agent's prompts replace
    those of the recipe. `examples`: this many training tasks, solved by the environment's expert, are shown. `trials`: with reflexion,
    the attempts per task; `result.settings["trials"]` then holds success by trial."""
    if agent == "reflexion" and repeats not in (None, 1):
        raise TurnwiseError("--agent reflexion tries each task up to --trials times: --repeats does not go with it")
    config, folder = source_config(source, Given(env), {**AGENTS[agent], **overrides}, trust)
    config = with_examples(config, examples) if examples else config
    reporter = reporter or Reporter()
    warmth = config.eval.temperature if temperature is None else temperature
    faults = FaultWatch(reporter.note, config.env.name)
    with heartbeat(reporter), ExitStack() as stack:
        stack.callback(reporter.end)
        check_engine(config, folder)
        measured = says_how(source, Given(env), overrides)
        panel, split, seed, repeats, words = choose_panel(config, measured, split, n, seed, repeats, overrides)
        player = build_player(config, folder, panel, replace(hooks_of(reporter), on_fault=faults.on_fault), stack)
        settings = settings_of(config, split, seed, player.max_turns)
        reporter.begin(words, 0, 0)
        collector = player.evaluation(warmth)
        reporter.phase("evaluation")
        settings |= {"temperature": warmth, "player": agent, "examples": examples, "model": str(source or config.engine.model)}
        if agent == "reflexion":
            if isinstance(collector, ProgramCollector):
                raise TurnwiseError("reflexion writes into the prompts of an agent, and a program makes its own prompts")
            tried, shares = Reflexion(player.agent, collector, trials).run(panel_starts(panel, seed))
            result = evaluation_of(tried, panel, 1)
            settings["trials"] = [{"trial": k, "success": s.rate, "n": s.n, "interval": list(s.interval)} for k, s in enumerate(shares, 1)]
        else:
            result = run_panel(collector, panel, seed, repeats)
        reporter.end()
        report_faults(result, reporter.note, faults)
        result.settings = settings
        return result


# -- examples -------------------------------------------------------------------------------------------------------------------------


def with_examples(config: Config, count: int) -> Config:
    """The config with solved training tasks in the agent's instructions."""
    factory = registry.spec(config.env.name).load()
    settings = agent_settings(config, factory)
    form = "<action>{}</action>" if settings.style == "tags" else "{}"
    shown = [example_text(steps, form) for steps in solved(config, count)]
    text = "\n\n".join(filter(None, [settings.instructions, *shown]))
    return config.model_copy(update={"agent": config.agent.model_copy(update={"instructions": text})})


def solved(config: Config, count: int) -> Iterable[list[tuple[str, str]]]:
    """Observations and the expert's actions on the first training tasks that it solves."""
    config.trusted()
    if not has_expert(config.env.name, dict(config.env.options)):
        raise TurnwiseError(f"--examples {count}: environment {config.env.name!r} has no expert (expert(task) or expert_action())")
    factory, solved_tasks = Advised(portable(config.env.name, config.env.options)), 0
    tasks, max_turns = build_tasks(config.env), step_limit(config.env)
    with limits_of(config.env).pool(factory, len(tasks)) as pool:
        for steps in play_all(pool, (expert_steps(task, max_turns) for task in tasks)):
            if steps:
                yield steps
                solved_tasks += 1
            if solved_tasks == count:
                return
    raise TurnwiseError(
        f"--examples {count}: the expert of {config.env.name} solves only {solved_tasks} of its training tasks within the step limit"
    )


def expert_steps(task: Task, max_turns: int) -> Play[list[tuple[str, str]]]:
    """What the expert saw and did; empty if it does not solve the task."""
    result, steps = (yield Reset(task)), []
    for _ in range(max_turns):
        if result.over:
            break
        seen = result.observation.text.strip()
        result = yield ASK_EXPERT
        if result.transition is not None:
            steps.append((seen, str(result.transition.info["action"])))
    return steps if result.transition is not None and result.transition.done and result.transition.success else []


def example_text(steps: Sequence[tuple[str, str]], form: str) -> str:
    """A solved task as the agent would have seen it; `form` says how an action is written."""
    lines = [f"{seen}\n{form.format(action)}" for seen, action in steps]
    return "\n".join(["Another task, solved (the thoughts are left out):", *lines, "(the task is done)"])


# -- reflexion ------------------------------------------------------------------------------------------------------------------------


@dataclass
class Noted:
    """A context whose instructions end with what the agent noted after earlier attempts at the task."""

    agent: Agent
    notes: Mapping[str, Sequence[str]]
    inner: Context | None = None

    def start(self, task: Task, observation: Observation) -> None:
        settings = self.agent.settings
        maker = copy.copy(self.agent.maker)
        told = with_notes(settings.instructions or "", self.notes.get(task.id, ()))
        maker.settings = settings.model_copy(update={"instructions": told})
        self.inner = make_context(settings.context, self.agent.chat.tokenizer, maker.settings, maker)
        self.inner.start(task, observation)

    def prompt(self) -> Prompt:
        assert self.inner is not None, "start comes first"
        return self.inner.prompt()

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        assert self.inner is not None, "start comes first"
        self.inner.record(response_ids, parsed, observation)


def with_notes(instructions: str, notes: Sequence[str]) -> str:
    if not notes:
        return instructions
    lines = [f"- {note}" for note in notes[-KEPT_NOTES:]]
    said = "\n".join(["You have tried this very task before and failed. What you noted for this attempt:", *lines])
    return f"{instructions}\n\n{said}" if instructions else said


@dataclass
class Reflexion:
    """Up to `trials` attempts at each task, with notes from the failed ones."""

    agent: Agent
    collector: Collector
    trials: int
    notes: dict[str, list[str]] = field(default_factory=dict)

    def run(self, starts: Sequence[Start]) -> tuple[list[Trajectory], list[Share]]:
        """The last attempt at every task, in order, and the share of tasks solved within 1, 2 … trials."""
        last: dict[int, Trajectory] = {}
        shares: list[Share] = []
        left = list(starts)
        for trial in range(1, self.trials + 1):
            again = [replace(start, policy_seed=derive(start.policy_seed, "trial", trial)) if trial > 1 else start for start in left]
            played = self._collector().run(again)
            last |= {trajectory.id: trajectory for trajectory in played if isinstance(trajectory.id, int)}
            shares.append(Share(sum(trajectory.success for trajectory in last.values()), len(starts)))
            left = [start for start in left if start.number in last and not last[start.number].success]
            if left and trial < self.trials:
                self._reflect(left, last, trial)
        return [last[start.number] for start in starts if start.number in last], shares

    def _collector(self) -> Collector:
        policy = self.collector.policy
        assert isinstance(policy, ModelPolicy)
        return replace(self.collector, policy=replace(policy, new_context=lambda: Noted(self.agent, self.notes)))

    def _reflect(self, starts: Sequence[Start], last: Mapping[int, Trajectory], trial: int) -> None:
        """Ask the model for a note about each failed attempt; an empty one is dropped."""
        policy = self.collector.policy
        assert isinstance(policy, ModelPolicy)
        engine = policy.engine
        tasks: dict[int, str] = {}
        for number, start in enumerate(starts):
            prompt = self._question(start.task, last[start.number])
            if prompt is None:
                continue
            key = FIRST_SEQUENCE + number
            tasks[key] = start.task.id
            seed = derive(start.policy_seed, "reflection", trial)
            engine.submit([Request(key, prompt.ids, policy.sampling, seed, key, prompt.messages or None)])
        while engine.pending:
            for response in engine.poll():
                text = response.text if response.text is not None else self.agent.chat.decode(response.token_ids)
                engine.release(response.key)
                if note := shortened(text):
                    self.notes.setdefault(tasks[response.key], []).append(note)

    def _question(self, task: Task, attempt: Trajectory) -> Prompt | None:
        """The prompt that asks for a note, with as many of the last turns as fit; None if there is nothing to look back at."""
        if not attempt.turns:
            return None
        maker, template = self.agent.maker, load_template(REFLECTION)
        goal = goal_of(task, Observation(attempt.turns[0].observation))
        instructions = with_notes(maker.settings.instructions or "", self.notes.get(task.id, ()))
        turns = [Past(t, well_formed(turn.observation.strip()), well_formed(turn.action)) for t, turn in enumerate(attempt.turns, 1)]
        for first in range(len(turns) + 1):
            view = View(f"The attempt ended: {attempt.stop.value}.", goal, len(turns) + 1, True, (), turns[first:], instructions)
            prompt = maker.prompt(maker.render(template, view))
            if prompt.fits:
                return prompt
        return None


def shortened(text: str) -> str:
    """A note on one line, without the thought before it, and cut to the largest length."""
    _, _, answer = split_thought(well_formed(text))
    words = " ".join(answer.split())
    return words if len(words) <= LONGEST_NOTE else words[:LONGEST_NOTE].rsplit(" ", 1)[0] + " …"
