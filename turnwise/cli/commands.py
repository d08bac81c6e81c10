"""Implementation of the longer commands: parse the arguments, call the API, print the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from turnwise.collect.panel import Evaluation, Share, run_panel
from turnwise.collect.player_policy import PLAYERS
from turnwise.config.recipes import is_override, parse_override, shipped_recipe
from turnwise.config.schema import Config, overridden
from turnwise.config.writing import help_config, to_toml
from turnwise.report.progress import reporter
from turnwise.runs.folder import CONFIG, Run
from turnwise.setup.early import look, read_source
from turnwise.util.console import Console
from turnwise.util.errors import Stopped, TurnwiseError, unknown_name
from turnwise.util.files import write_text_atomically
from turnwise.util.terminal import command, say

__all__ = ["evaluate", "help_config", "sft", "train"]

PROMPTED = ("plain", "react", "reflexion")  # agents of turnwise.evaluation.baselines
INTERRUPTED = 130  # the exit code that a shell reports after Ctrl-C


def train(
    recipe: str | None,
    overrides: list[str],
    env: str | None,
    resume: str | None,
    dry_run: bool,
    prompts: str | None = None,
    reward: str | None = None,
    reply: str | None = None,
) -> int:
    """`turnwise train`. Returns the exit code: 0, or 130 if it was interrupted."""
    from turnwise.setup.arguments import Given, as_recipe

    if recipe is not None and is_override(recipe):  # the first override is in the position of a recipe
        overrides, recipe = [recipe, *overrides], None
    given, typed = Given(env, reward, None, prompts, reply), dict(parse_override(text) for text in overrides)
    if resume is not None and recipe:
        raise TurnwiseError(f"a resumed run keeps its recipe: give either --resume RUN or {recipe}, not both")
    source = None if resume else recipe or given.default_recipe or shipped_recipe("quickstart")
    values, changes, name = as_recipe(Run.open(resume).folder / CONFIG if resume else source, given, typed)
    config = overridden(values, changes, name)  # report mistakes before torch is imported
    if not resume:  # a run has its own environment
        look(config, hub=not dry_run)
    from turnwise import api
    from turnwise.report.summary import closing_words, in_words, measured_words
    from turnwise.setup.resume import resumed_config

    console = Console()
    if dry_run:
        config = resumed_config(Run.open(resume), changes) if resume else overridden(values, changes, name)
        api.check_trainable(config, runs=False)
        console.print(Text(to_toml(config)), soft_wrap=True)
        for line in forecast(config):
            console.print(Text(line), soft_wrap=True)
        return 0
    try:
        result = api.train_given(source, given, typed, resume, reporter(console))
    except Stopped as error:
        console.print(Text(str(error)), soft_wrap=True)
        return INTERRUPTED
    run = Run.open(result.folder)
    if result.interrupted:
        words = f"Success on {result.summary['panel_size']} held-out tasks: {measured_words(result.summary)}."
        console.print(Text(words), soft_wrap=True)
        console.print(
            Text(f"Stopped after iteration {result.summary['iterations']}. Resume with: {command('train', '--resume', str(run.folder))}"),
            soft_wrap=True,
        )
        return INTERRUPTED
    finish(console, run, result, closing_words(result.summary, run), in_words)
    return 0


def sft(recipe: str | None, overrides: list[str]) -> int:
    """`turnwise sft`: only the warm start of a recipe."""
    if recipe is not None and is_override(recipe):
        overrides, recipe = [recipe, *overrides], None
    source = recipe or str(shipped_recipe("quickstart"))
    if Config.load(source, overrides).sft is None:
        raise TurnwiseError(f"recipe {source} has no [sft] section, so there is no warm start to run. Set its size: sft.tasks=256")
    return train(source, [*overrides, "iterations=0"], None, None, False)


def finish(console: Console, run: Run, result: Any, words: list[str], in_words: Any) -> None:
    """The end of a run: the curve, three trajectories as text, the summary, and what to try next."""
    from turnwise.report.curve import draw_curve
    from turnwise.util.errors import MissingExtra

    try:
        picture = draw_curve(result.metrics, run.folder / "curve.png", f"{result.summary['name']}: {result.summary['algorithm']}")
    except MissingExtra as error:
        console.print(Text(str(error)))
        picture = None
    last = int(result.summary["iterations"])
    if (run.folder / "rollouts" / f"{last:06d}.jsonl.gz").exists():
        console.print(Text("\nThree attempts of the last iteration:"))
        played = run.trajectories(last)
        groups = [trajectory["group"] for trajectory in played]
        firsts = [groups.index(group) for group in dict.fromkeys(groups)]  # from different tasks, if there are three
        for number in [*firsts, *(other for other in range(len(played)) if other not in firsts)][:3]:
            for line in in_words(played[number]):
                console.print(Text(line), soft_wrap=True)
    console.print()
    for line in words:
        console.print(Text(line), soft_wrap=True)
    if picture is not None:
        console.print(Text(f"The curve: {picture}"), soft_wrap=True)
    other = "gigpo" if result.summary["algorithm"] == "grpo" else "grpo"
    folder, again = str(run.folder), ["train", str(run.folder / CONFIG), f"credit.name={other}"]
    for words, why in ((["view", folder], "view it"), (["eval", folder], "evaluate it again"), (again, f"the same with {other}")):
        console.print(Text(f"Next: {command(*words)}   ({why})"), soft_wrap=True)


def forecast(config: Config) -> list[str]:
    """The size of a run: tasks, attempts, turns, tokens, memory."""
    from turnwise.setup.unread import unread

    per_turn = config.agent.max_prompt_tokens + config.engine.max_tokens
    lines = [f"not executed, only checked: {', '.join(code)}"] if (code := unread(config)) else []
    lines += what_is_played(config, known=not code)
    if config.sft is not None:
        much = f"{config.sft.steps} steps" if config.sft.steps is not None else f"{config.sft.epochs} passes"
        lines.insert(1, f"a warm start: {config.sft.tasks} attempts of {config.sft.file or 'the expert'}, learned in {much}")
    parameters = parameter_count(config)
    if parameters is None:
        return [*lines, "memory: unknown (the model folder does not exist here)"]
    known = "about " if config.model.path is None else ""  # the vocabulary size of the tiny model is not known yet
    trained = parameters if config.model.lora is None else parameters // 50
    width = 2 if config.model.dtype == "bfloat16" else 4
    weights = parameters * width + trained * (12 + (4 if width == 2 else 0)) + (parameters * width if config.objective.kl != "off" else 0)
    return [
        *lines,
        f"model: {known}{parameters:,} parameters; about {weights / 1e9:.2f} GB for weights, gradients and optimiser, "
        f"and activations of {config.learner.tokens_per_batch:,} tokens (a turn has at most {per_turn:,})",
    ]


def what_is_played(config: Config, known: bool) -> list[str]:
    """Tasks, attempts and turns. If the environment is user code, which is not executed for this, only what the recipe says."""
    from turnwise.setup.system import System

    own, env, system = config.collect, config.env, System(config, plays=known)
    held_out = f"{config.eval.n} held out ({config.eval.split})"
    tasks = f"tasks: {env.tasks or 'those'} for training ({env.name}, {env.split}), {held_out}; the exact number is known when it runs"
    if known:
        panel = f"{len(system.panel)} held out ({config.eval.split}; panel {system.panel.hash})"
        tasks = f"tasks: {len(system.tasks)} for training ({env.name}, {env.split}), {panel}"
    limit = system.max_turns if known else env.max_turns
    if limit is None:
        return [tasks, f"an iteration: {own.groups} tasks × {own.group_size} attempts × the environment's turn limit"]
    turns = own.groups * own.group_size * limit
    return [
        tasks,
        f"an iteration: {own.groups} tasks × {own.group_size} attempts × at most {limit} turns = {turns:,} turns",
        f"  at most {turns * config.engine.max_tokens:,} sampled tokens, in prompts of at most {config.agent.max_prompt_tokens:,}",
        f"{config.iterations} iterations: at most {turns * config.iterations:,} turns",
    ]


def parameter_count(config: Config) -> int | None:
    """The number of parameters of the model, without loading its weights; None if unknown."""
    import torch

    if config.model.path is None:
        tiny = config.model.tiny
        return tiny.layers * 12 * tiny.hidden**2 + 1000 * tiny.hidden
    if not (Path(config.model.path) / "config.json").is_file():
        return None
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config.model.path, trust_remote_code=False))
    return int(sum(parameter.numel() for parameter in model.parameters()))


def evaluate(
    source: str | None,
    overrides: list[str],
    changes: dict[str, Any],
    agent: str | None,
    env: str | None,
    split: str | None,
    n: str | None,
    seed: int | None,
    temperature: float | None,
    repeats: int | None,
    as_json: bool,
    save: str | None = None,
    trials: int = 3,
    examples: int = 0,
    prompts: str | None = None,
    reward: str | None = None,
    reply: str | None = None,
) -> None:
    """`turnwise eval`."""
    if source is not None and is_override(source):
        overrides, source = [source, *overrides], None
    changes = dict(parse_override(text) for text in overrides) | changes
    size = panel_size(n)
    common: dict[str, Any] = {"env": env, "split": split, "n": size, "seed": seed, "temperature": temperature, "repeats": repeats}
    common["reporter"] = reporter(Console(stderr=True))  # standard output contains only the result
    if prompts is None and (agent in PROMPTED or (agent is None and (source is not None or changes.get("engine.name") == "openai"))):
        named = read_source(source, env, changes)
        if named.run is None:  # a run has its own environment
            look(named.config)
    if agent in PROMPTED:
        from turnwise.evaluation import baselines

        result = baselines.evaluate(agent, source, trials=trials, examples=examples, **common, **changes)
    elif agent is not None:
        whole = None if size == "all" else size
        result = evaluate_player(agent, source, env, split, whole, seed or 0, repeats or 1, changes)
    elif source is None and changes.get("engine.name") != "openai":
        raise TurnwiseError(
            "nothing to evaluate: give a run, a model folder or a recipe (with --agent plain|react|reflexion for prompting only); "
            "--agent random|expert with --env NAME; "
            "or a server with --engine openai --url URL --model NAME --env NAME"
        )
    else:
        from turnwise import api
        from turnwise.setup.arguments import Given

        given = Given(env, reward, None, prompts, reply)
        result = api.evaluate_given(source, given, changes, split, size, seed, temperature, repeats, common["reporter"])
    if save is not None:
        write_text_atomically(save, json.dumps(result.record(), allow_nan=False, default=float) + "\n")
        say(f"written: {save}", err=True)
    if as_json:
        by_trial = {"trials": result.settings["trials"]} if "trials" in result.settings else {}
        say(json.dumps(result.to_dict() | by_trial, indent=2))
    else:
        show_evaluation(Console(), result)


def panel_size(text: str | None) -> int | Literal["all"] | None:
    """The value of --n: a number of tasks, or all of them."""
    if text is None or text == "all":
        return text  # type: ignore[return-value]
    if not text.isdecimal() or int(text) < 1:
        raise TurnwiseError(f"--n must be a number of tasks, or all, not {text!r}")
    return int(text)


def evaluate_player(
    agent: str, source: str | None, env: str | None, split: str | None, n: int | None, seed: int, repeats: int, changes: dict[str, Any]
) -> Evaluation:
    """A random or expert agent through the same collector: the first thing to try on a new environment."""
    if agent not in PLAYERS:
        raise unknown_name("agent", agent, [*PLAYERS, *PROMPTED])
    if source is not None:
        raise TurnwiseError(f"--agent {agent} plays without a model: omit the run or model, and name an environment with --env")
    config = look(Config.load(None, {"agent.max_prompt_tokens": 500, **changes, **({"env.name": env} if env else {})}))
    from turnwise.collect.collector import Collector
    from turnwise.collect.player_policy import PlayerPolicy, player
    from turnwise.collect.players import Advised
    from turnwise.collect.warmstart import has_expert
    from turnwise.envs.pool import Pool
    from turnwise.envs.registry import portable
    from turnwise.setup.measure import report_faults, settings_of
    from turnwise.setup.system import System

    system, policy = System(config), PlayerPolicy(player(agent))
    if agent == "expert" and not has_expert(config.env.name, dict(config.env.options)):
        raise TurnwiseError(f"environment {config.env.name!r} has no expert: it needs expert(task) or expert_action()")
    panel = system.panel_of(split or config.eval.split, n, seed)
    factory = portable(config.env.name, config.env.options)
    limits: dict[str, Any] = {"workers": config.env.workers, "timeout": config.env.timeout, "memory_mb": config.env.memory_mb}
    with Pool(Advised(factory) if agent == "expert" else factory, 32, **limits) as pool:
        collector = Collector(pool, policy, system.max_turns, system.rewards, ordered=False, on_fault=system.faults.hear)
        result = run_panel(collector, panel, seed, repeats)
    report_faults(result, reporter(Console(stderr=True)).note, system.faults)
    settings = settings_of(config, split or config.eval.split, seed, system.max_turns)
    result.settings = settings | {"player": agent, "temperature": None}
    return result


def show_evaluation(console: Console, result: Evaluation) -> None:
    """The result as a short table."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    if trials := result.settings.get("trials"):
        for each in trials:
            table.add_row(f"success within {each['trial']}", str(Share(round(each["success"] * each["n"]), each["n"])))
        table.add_row("", "only the first row is one attempt per task; later rows use the environment's verdict on earlier attempts")
    else:
        table.add_row("success", str(result.success))
    for kind, share in result.by_type.items():
        table.add_row(f"  {kind}", str(share))
    if result.mean_of_types is not None:
        table.add_row("  mean of these", f"{100 * result.mean_of_types:.1f} %, each counted once")
    for name, mean in result.measures.items():
        table.add_row(name, f"{mean:.3f} on average")
    table.add_row("turns", f"{result.turns:.1f} on average")
    table.add_row("reward", f"{result.reward:.3f} on average")
    table.add_row("invalid turns", f"{100 * result.invalid:.1f} %")
    table.add_row("stopped by", ", ".join(f"{stop} {count}" for stop, count in result.stops.items()))
    again = f", each {result.repeats} times" if result.repeats > 1 else ""
    table.add_row("panel", f"{result.panel_size} tasks{again}, hash {result.panel_hash}")
    console.print(table)
