"""What scripts and notebooks call: `train`, `evaluate`, `export`. The command line is a thin layer over these."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from turnwise.collect.panel import Evaluation
from turnwise.config.objects import objects_in
from turnwise.config.trust import keep_code
from turnwise.envs.blame import EnvironmentFault
from turnwise.envs.playing import last_call, playing
from turnwise.learn.saving import write_folder
from turnwise.planner.small_gpu import fitted_to_gpu, keep_choice
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, to_toml
from turnwise.report.closing import summarise_run
from turnwise.report.progress import LineReporter
from turnwise.runs.folder import CONFIG, ENVIRONMENT, SUMMARY, Result, Run
from turnwise.runs.reporter import Reporter, heartbeat
from turnwise.runs.trackers import Trackers, make_trackers
from turnwise.setup.arguments import (
    Asked,
    CreditLike,
    EnvLike,
    Given,
    PromptsLike,
    RecipeLike,
    ReplyFunction,
    RewardLike,
    changes_of,
    read_config,
)
from turnwise.setup.card import describe
from turnwise.setup.early import check_trainable
from turnwise.setup.evaluated import measure, write_weights
from turnwise.setup.parts import Training, hooks_of
from turnwise.setup.resume import apply_changes, resumed_config
from turnwise.setup.state import restore, save
from turnwise.setup.training import build_training
from turnwise.train import run_iterations
from turnwise.util.console import Console
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.hub import base_of
from turnwise.util.interrupt import Abandoned, Interrupt


def train(
    recipe: RecipeLike | None = None,
    *,
    env: EnvLike | None = None,
    reward: RewardLike | None = None,
    credit: CreditLike | None = None,
    prompts: PromptsLike | None = None,
    reply: str | ReplyFunction | None = None,
    resume: str | PathLike[str] | None = None,
    quiet: bool = False,
    reporter: Reporter | None = None,
    trust: bool = False,
    memory: float | None = None,
    **overrides: Any,
) -> Result:
    """Train an agent, and show the progress.

    recipe      a TOML file, a dictionary (nested, or with dotted keys), or a `tw.Recipe`. Without one: all defaults; with `env` the recipe
                own-env.toml, with `prompts` prompts.toml, as on the command line
    env         a registered name, "path/to/my_env.py:MyEnv", or the class itself, also from a notebook's cell; or a function that makes an
                environment; or the whole section, as {"name": MyEnv, "options": {"size": 3}}
    reward      a term to add to the environment's reward: a function of (turn, transition, trajectory), several of them in a list or by
                name in a dictionary. It replaces the recipe's own terms. With `prompts`: the function that scores a response
    credit      the name of an algorithm, or a function of rollouts that returns one number for each turn
    prompts     train on these prompts instead of an environment: a JSONL file, or a list of texts or rows; `reward` scores the responses
    reply       with `prompts`: a function of (task, history) that gives the next message to the agent, None when the dialogue is over
    resume      the folder of a run to continue. It keeps its recipe; `iterations` may grow, and a few settings may change: see
                docs/guides/recipes.md. What was an object has to be passed again, unless this Python process did so before
    quiet       show nothing
    reporter    shows progress in another way: see `turnwise.runs.reporter.Reporter`
    trust       run the code that a run folder from elsewhere names
    memory      gigabytes of the GPU that this process may take, if not all: settings are chosen as on a card of that size
    overrides   settings of the recipe: `seed=1`, `learner={"lr": 1e-4}`, `**{"collect.groups": 4}`

    Progress goes to stderr: a line for each iteration, and in a terminal what is being done at the moment.
    Ctrl-C (or the notebook's stop button) finishes the turn, saves and returns a result that is `interrupted`.

    >>> result = tw.train(env=MyEnv, iterations=30)                                   # doctest: +SKIP
    >>> result = tw.train(prompts="prompts.jsonl", reward=score)                      # doctest: +SKIP
    >>> result = tw.train("recipes/quickstart.toml", credit="grpo", seed=1)           # doctest: +SKIP
    >>> result = tw.train(resume=result.folder, iterations=80)                        # doctest: +SKIP
    """
    reporter = reporter or (Reporter() if quiet else LineReporter(Console(stderr=True)))
    return train_given(recipe, Given(env, reward, credit, prompts, reply), overrides, resume, reporter, trust, memory)


def train_given(
    recipe: RecipeLike | None,
    given: Given,
    overrides: Mapping[str, Any],
    resume: str | PathLike[str] | None = None,
    reporter: Reporter | None = None,
    trust: bool = False,
    memory: float | None = None,
) -> Result:
    """What `train` does. The run is described in two parts: the named arguments, and settings by their keys."""
    note = (reporter or Reporter()).note
    if resume is not None:
        if recipe is not None:
            raise TurnwiseError("a resumed run keeps its recipe: give either resume, or a recipe")
        run = Run.open(Path(resume))
        config = resumed_config(run, changes_of(run.folder / CONFIG, given, overrides)).trusted(trust, run.folder)
        check_trainable(config)
        objects_in(config.model_dump(mode="json"))
        with fitted_to_gpu(config, memory, note, resumed=True), run.locked("train --resume", note):
            apply_changes(run, config, note)
            return train_config(config, run, reporter)
    config = read_config(given.default_recipe if recipe is None else recipe, given, overrides).trusted(trust)
    check_trainable(config)
    with (
        fitted_to_gpu(config, memory, note) as (config, chosen),
        Run.started(config.out, config.name, to_toml(config)) as run,
    ):
        keep_choice(run, chosen)
        return train_config(config, run, reporter)


def train_config(config: Config, run: Run, reporter: Reporter | None = None) -> Result:
    """Train in the run's folder, which the caller has locked, from its last checkpoint."""
    reporter = reporter or Reporter()
    values = config.model_dump(mode="json")
    keep_code(run.folder, values, reporter.note)
    trackers = Trackers(run.folder, make_trackers(config.run.trackers, config.run.tracker_options), reporter.note)
    if told := last_call(run.folder):
        reporter.note(f"warning: {told}")
    watched = playing.kept(run.folder, config.env.name)
    with Interrupt(reporter.note, lambda: playing.call) as interrupted, heartbeat(reporter), watched, ExitStack() as stack:
        stack.callback(trackers.close)
        stack.callback(reporter.end)
        training = stack.enter_context(closing(build_training(config, hooks_of(reporter, interrupted))))
        keep_parts(run, training)
        state = restore(run, training, reporter.note)
        trackers.open(values, run.metrics())
        run.on_log = trackers.log
        interrupted.last = partial(save, run, training, state)
        try:
            run_iterations(run, training, state, reporter)
        except Abandoned:
            reporter.note("a call of the environment did not return: it was abandoned, and what was learned before is kept")
            save(run, training, state)
        if training.faults.broken is not None:
            raise with_way_on(training.faults.broken, run)
        finished = state.finished(config.iterations)
        if finished:
            training.learner.save_model(run.model)
    metrics = run.metrics()
    summary = summarise_run(metrics, state, config, len(training.evaluate.panel)) | {
        "config_hash": content_hash(config),
        "finished": finished,
    }
    run.write_facts(SUMMARY, summary)
    return Result(run.folder, summary, not finished, metrics)


def with_way_on(fault: EnvironmentFault, run: Run) -> EnvironmentFault:
    """The same error, and how to continue if something was learned before."""
    if not run.checkpoints.is_dir():
        return fault
    way = f"What was learned before is kept. When the problem is fixed: turnwise train --resume {quote(str(run.folder))}"
    return EnvironmentFault(fault.message, "\n".join(filter(None, [fault.lines, way])))


def keep_parts(run: Run, training: Training) -> None:
    """Keep in the run's folder what others would need the environment for: the vocabulary of a tiny model, so that `export` can write it,
    and how attempts are to be shown (`shows` of the environment's class), for pages."""
    if training.config.model.path is None and not run.tokenizer.exists():
        with run.writing():
            write_folder(run.tokenizer, training.tokenizer.save_pretrained)
    if training.shows:
        run.write_facts(ENVIRONMENT, {"name": training.config.env.name, "shows": training.shows})


def evaluate(
    source: RecipeLike | Result | None = None,
    *,
    env: EnvLike | None = None,
    reward: RewardLike | None = None,
    prompts: PromptsLike | None = None,
    reply: str | ReplyFunction | None = None,
    split: str | None = None,
    n: int | Literal["all"] | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    repeats: int | None = None,
    quiet: bool = False,
    reporter: Reporter | None = None,
    trust: bool = False,
    **overrides: Any,
) -> Evaluation:
    """Play a fixed panel of tasks, and count.

    source      who plays: a run (its folder, or what `tw.train` returned), a model folder, or a recipe (a file, a dictionary, a
                `tw.Recipe`) with the model that it names. None with
                `**{"engine.name": "openai", "engine.url": …, "engine.model": …}`: a server
    env         the environment, if not the run's own: a name, a class, a function that makes one, or the whole section
    reward      reward terms, if not the run's own; with prompts: the function that scores a response
    prompts     prompts to measure on, instead of an environment; `reply` goes with them
    split, n    the tasks: `n` of the split, always the same ones. None: a run and a recipe on their own environment bring their panel, the
                one that training measures on (`eval.split`, `eval.n`, `eval.seed`); with "all", another split, or anything else: the
                whole split
    seed        seed of the choice of tasks and of the attempts; None: the recipe's own
    temperature 0 is greedy; None: the recipe's own
    repeats     attempts per task; None: the recipe's own
    quiet       show nothing; `reporter` shows progress in another way
    trust       run the code that a run folder from elsewhere names
    overrides   settings of the recipe, as for `tw.train`

    >>> tw.evaluate(result, n=128).success                                            # doctest: +SKIP
    >>> tw.evaluate("runs/mine", env=MyEnv, split="test", temperature=0)              # doctest: +SKIP
    """
    reporter = reporter or (Reporter() if quiet else LineReporter(Console(stderr=True)))
    given, asked = Given(env, reward, None, prompts, reply), Asked(split, n, seed, temperature, repeats)
    return measure(source, given, overrides, asked, reporter, trust)


def export(
    run_folder: str | Path, out: str | Path, *, merged: bool = True, best: bool = False, model: str | None = None, local: bool = True
) -> Path:
    """Write a run's weights as a new Hugging Face folder with a model card: of its last checkpoint, or of the best one by evaluation.
    `model`: one of its further models instead of the policy, without a card. `local=False`: nothing in it names a folder of this machine.
    """
    run, folder = Run.open(run_folder), Path(out)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        what = "is a folder that is not empty" if folder.is_dir() else "is a file"
        raise TurnwiseError(f"{folder} {what}, and nothing is overwritten: name a new folder, or remove that one first")
    config = Config.load(run.folder / CONFIG)
    if model is not None and model not in config.models:
        raise unknown_name(f"model of {run.folder}:", model, config.models)
    section = "model" if model is None else f"models.{model}"
    if not merged and (config.model if model is None else config.models[model]).lora is None:
        raise TurnwiseError(
            f"{run.folder} was trained without adapters ({section}.lora), so there are none to export: leave --adapters out"
        )
    if not merged and model is None and config.model.path is not None and base_of(config.model.path) != config.model.path:
        raise TurnwiseError(f"{run.folder} started from adapters, merged into the base that its own are for: leave --adapters out")
    with run.locked("export") if folder.resolve().is_relative_to(run.folder.resolve()) else nullcontext():
        folder, iteration = write_weights(run, config, folder, merged, best, model)
        if model is None:
            line = next((line for line in run.metrics() if line.get("iteration") == iteration), {})
            describe(folder, config, iteration, line, merged, local)
    return folder
