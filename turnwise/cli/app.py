"""The command line: one thin function per command. The package implements the commands. Imports are inside the functions, so that
`turnwise --help` loads neither torch nor an environment."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Annotated, Any, NoReturn

import typer

from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import plain
from turnwise.util.secret import redact
from turnwise.util.terminal import command, guard, say

HELP = """Train language-model agents on multi-turn tasks, with credit for every turn.

List the environments (envs), play one yourself (play), train a model (train) and evaluate it (eval)."""

app = typer.Typer(
    name="turnwise", help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

EnvName = Annotated[str, typer.Argument(help="A name from `turnwise envs`, or your own class: path/to/my_env.py:MyEnv")]
Options = Annotated[list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the environment; repeatable.")]


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(f"turnwise {version('turnwise')}")
        raise typer.Exit


def _ask_about(folder: Any, code: Any) -> bool:
    """Ask the user whether code of a run folder from elsewhere may run. Without a terminal the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say(f"{folder} is not one of your own runs (or was moved or changed since). Its recipe names code that would be run:", err=True)
    for text in code:
        say(f"  {text}", err=True)
    return typer.confirm("Do you trust its author?", default=False, err=True)


def _trust(said: bool) -> bool:
    from turnwise.config import trust

    trust.ask_with(trust.somebody if said else _ask_about)
    return said


Trust = Annotated[bool, typer.Option("--trust", callback=_trust, help="Run the code named by a run folder from elsewhere.")]


@app.callback()
def _turnwise(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)] = False,
) -> None:
    """Options before a command."""


@app.command()
def envs(
    name: Annotated[str | None, typer.Argument(help="Only this environment.")] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Check the rules of NAME; without NAME check all environments and report random, scripted and expert scores."
        ),
    ] = False,
    option: Options = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the environments, or check them.

    To check your own class: `turnwise envs --check my_env.py:MyEnv`."""
    from rich.text import Text

    from turnwise.envs import agents, registry, table
    from turnwise.envs.check import check as run_check
    from turnwise.util.console import Console

    if check and name is None:
        with Console(stderr=True).status("") as status:
            rows = list(agents.compare_all(tell=lambda env: status.update(Text(f"playing {env}"))))
        if as_json:
            say(json.dumps(rows, indent=2))
        else:
            Console().print(table.agents_table(rows))
        raise typer.Exit(1 if any(row.get("contract") for row in rows) else 0)
    if check and name is not None:
        report = run_check(name, **parse_options(option))
        if as_json:
            say(json.dumps(report.to_dict(), indent=2))
        else:
            table.print_report(report, Console())
        raise typer.Exit(0 if report.ok else 1)
    rows = registry.describe(name)
    if as_json:
        say(json.dumps(rows, indent=2))
    else:
        table.print_environments(rows, Console())


@app.command()
def play(
    env: Annotated[
        str | None, typer.Argument(help="A name from `turnwise envs`, or path/to/my_env.py:MyEnv. Not needed for a run.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="RUN", help="The player: a run, a model folder, random or expert. Default: you.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="A task's id, or its index in the split.")] = None,
    split: Annotated[
        str | None, typer.Option(help="The split of the task. Default: train, or the split that a run is evaluated on.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="With --agent: number of tasks, or of attempts at the one --task.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Random seed; without --task it also selects the task.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="With a run or a model: sampling temperature; 0 is greedy. Default: the recipe's.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turn limit. Default: the environment's.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Let the expert play.")] = False,
    option: Options = None,
    trust: Trust = False,
) -> None:
    """Play an environment yourself, with hints from its expert, or watch an agent play."""
    from turnwise.envs.play import play as play_game

    if agent is not None:
        from turnwise.setup.early import look_at_player

        options = parse_options(option)
        look_at_player(agent, env, options)  # before torch is imported
        from turnwise.cli.watch import watch as watch_agent

        watch_agent(agent, env, task=task, split=split, n=n, seed=seed, temperature=temperature, max_turns=max_turns, options=options)
        return
    if env is None:
        raise TurnwiseError(
            "nothing to play: give an environment, turnwise play ENV (`turnwise envs` lists them), or a run, turnwise play --agent RUN"
        )
    play_game(env, task=task, split=split or "train", seed=seed, max_turns=max_turns, watch=watch, **parse_options(option))


@app.command()
def algos(
    name: Annotated[str | None, typer.Argument(help="Show only this algorithm, in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the algorithms with their meaning, options and papers."""
    from turnwise.report import algorithms
    from turnwise.util.console import Console

    if as_json:
        say(json.dumps(algorithms.describe(name), indent=2))
    else:
        algorithms.show(Console(), name)


@app.command()
def lab(
    algos: Annotated[
        str | None, typer.Option(help="Credit algorithms, for example gigpo,grpo,gigpo:once=true,oracle. Default: all.")
    ] = None,
    problems: Annotated[str | None, typer.Option(help="Problems, for example grid,corridor:length=8. Default: all.")] = None,
    group_sizes: Annotated[str | None, typer.Option(help="Group sizes to measure, for example 2,8,32.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Batches per measurement; learning curves use a quarter of them.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same results file.")] = None,
    skill: Annotated[float | None, typer.Option(help="Skill of the measured policy: 0 is random, 1 is optimal. Default: 0.2.")] = None,
    load: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A Python file that registers your own credit algorithm or problem.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="The folder for results and figures.")] = "lab-results",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, group sizes and iterations.")] = False,
    train: Annotated[bool, typer.Option("--train/--no-train", help="Also train with each credit algorithm.")] = True,
) -> None:
    """Measure the accuracy of each credit algorithm on problems whose true advantages are known."""
    from turnwise.lab.command import lab as run_lab

    run_lab(algos, problems, group_sizes, load or [], out, quick=quick, train=train, seeds=seeds, seed=seed, skill=skill)


Prompts = Annotated[str | None, typer.Option(metavar="FILE.jsonl", help="Your own prompts instead of an environment; needs --reward.")]
RewardName = Annotated[
    str | None,
    typer.Option(
        metavar="FILE:FUNCTION", help="With --prompts: score(task, response). Otherwise a reward term: f(turn, transition, trajectory)."
    ),
]
Reply = Annotated[
    str | None,
    typer.Option(metavar="FILE:FUNCTION", help="With --prompts: reply(task, history) returns the next message, or None at the end."),
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides of the recipe, for example credit.name=grpo.")]


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe (TOML). Default: the quickstart, a tiny model on generated households.")
    ] = None,
    overrides: Overrides = None,
    env: Annotated[str | None, typer.Option(help="Train on this environment; your own class: path/to/my_env.py:MyEnv.")] = None,
    prompts: Prompts = None,
    reward: RewardName = None,
    reply: Reply = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Resume a stopped run, or extend it: iterations=80.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the whole recipe and what would happen, then exit.")] = False,
    help_config: Annotated[bool, typer.Option("--help-config", help="Explain every key of a recipe, then exit.")] = False,
    trust: Trust = False,
) -> None:
    """Train an agent with a recipe."""
    from turnwise.cli import commands

    if help_config:
        say(commands.help_config())
        return
    raise typer.Exit(commands.train(recipe, overrides or [], env, resume, dry_run, prompts, reward, reply))


@app.command(name="eval")
def evaluate(
    source: Annotated[str | None, typer.Argument(help="A run, a model folder or a recipe. Not needed with --agent and --url.")] = None,
    overrides: Overrides = None,
    agent: Annotated[
        str | None, typer.Option(help="random or expert: no model. plain, react or reflexion: a model with prompting only.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="The environment. Default: the run's.")] = None,
    prompts: Prompts = None,
    reward: RewardName = None,
    reply: Reply = None,
    split: Annotated[str | None, typer.Option(help="Evaluate on all of another split instead of the run's panel.")] = None,
    n: Annotated[
        str | None,
        typer.Option(metavar="N", help="Number of tasks in the panel, or all. Default: the panel of the run or recipe, otherwise all."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Selects the tasks of the panel and seeds the environments. Default: the recipe's (eval.seed).")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Sampling temperature; 0 is greedy. Default: the recipe's.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Attempts per task. Default: the recipe's (eval.repeats).")] = None,
    engine: Annotated[str | None, typer.Option(help="native, transformers, or openai for a server. Default: the recipe's.")] = None,
    url: Annotated[
        str | None, typer.Option(help="The server's address, for example http://127.0.0.1:8000/v1; set its key in OPENAI_API_KEY.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name on the server.")] = None,
    save: Annotated[str | None, typer.Option(metavar="FILE.json", help="Save every outcome with its settings, for `compare`.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="With --agent reflexion: attempts per task.")] = 3,
    examples: Annotated[
        int, typer.Option(min=0, help="With plain, react, reflexion: number of solved training tasks to show in the prompt.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Measure success on a fixed panel of tasks."""
    from turnwise.cli import commands

    served = {"engine.name": engine or ("openai" if url else None), "engine.url": url, "engine.model": model}
    changes = {key: value for key, value in served.items() if value is not None}
    common = (agent, env, split, n, seed, temperature, repeats, as_json, save, trials, examples)
    commands.evaluate(source, overrides or [], changes, *common, prompts, reward, reply)


@app.command()
def sweep(
    recipe: Annotated[str | None, typer.Argument(help="A recipe (TOML). Default: the quickstart.")] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUES", help="What varies, for example credit.name=gigpo,grpo seed=0..4. A single value applies to all runs."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of concurrent runs; the cores are divided among them.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads per run. Default: the cores divided by the jobs.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The folder for the runs. Default: NAME-sweep in the recipe's out.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="Also report the cost of reaching this success (0.6 is 60 %).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and stop.")] = False,
) -> None:
    """Train every combination of values and compare them. Run the same command again to continue; finished runs are skipped."""
    from turnwise.report.sweeping import sweep_command

    raise typer.Exit(sweep_command(recipe, values or [], out, jobs, threads, dry_run, target))


@app.command()
def compare(
    sources: Annotated[list[str], typer.Argument(metavar="RUN", help="Runs, folders of runs (a sweep), or files of `eval --save`.")],
    at: Annotated[str, typer.Option(help="The evaluation to use: last, best, or an iteration.")] = "last",
    target: Annotated[float | None, typer.Option(help="Also report the cost of reaching this success (0.6 is 60 %).")] = None,
    form: Annotated[str, typer.Option("--format", help="table, markdown, latex or json.")] = "table",
    out: Annotated[str | None, typer.Option(metavar="FOLDER", help="Write comparison.md, .tex, .json and .png to this folder.")] = None,
    picture: Annotated[str | None, typer.Option(metavar="FILE", help="Plot the learning curves: .png, .svg or .pdf.")] = None,
    baseline: Annotated[str | None, typer.Option(metavar="TEXT", help="Test only against the groups whose label contains this.")] = None,
    metric: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also show this metric over training; repeatable.")] = None,
    by_type: Annotated[bool, typer.Option("--by-type", help="Also show success by type of task.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also show results that were measured differently, without tests.")] = False,
) -> None:
    """Compare runs: groups over seeds with intervals, paired tests, sample efficiency, curves."""
    from turnwise.report.compare_command import compare_command

    compare_command(sources, at, target, form, out, picture, anyway, baseline, metric or [], by_type)


@app.command()
def sft(
    recipe: Annotated[str | None, typer.Argument(help="A recipe with an [sft] section. Default: the quickstart.")] = None,
    overrides: Overrides = None,
    trust: Trust = False,
) -> None:
    """Run only the supervised warm start of a recipe: learn from the environment's expert."""
    from turnwise.cli import commands

    raise typer.Exit(commands.sft(recipe, overrides or []))


@app.command()
def replay(
    run: Annotated[str, typer.Argument(help="A run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Other settings, for example credit.name=hgpo.")
    ] = None,
    iteration: Annotated[int | None, typer.Option(min=1, help="The iteration. Default: the last one with stored rollouts.")] = None,
    also: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A further credit algorithm to compare; repeatable.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Also run the update again, from the checkpoint before it.")] = False,
    top: Annotated[int, typer.Option(min=0, help="Number of turns to show, those that differ most first.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Compute an iteration's credit again with other settings, and compare.

    What would another algorithm have done with the same data?"""
    from turnwise.evaluation.replay import replay as run_again
    from turnwise.report.replaying import show
    from turnwise.util.console import Console

    found = run_again(run, iteration, overrides or [], also or [], update=update, top=top)
    if as_json:
        say(json.dumps(found, indent=2))
    else:
        show(Console(), found)


@app.command()
def trajectories(
    run: Annotated[str, typer.Argument(help="A run.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="The file to write: .jsonl, or .parquet (needs the extra parquet).")],
    iteration: Annotated[int | None, typer.Option(min=0, help="The iteration. Default: the last stored one.")] = None,
    evals: Annotated[bool, typer.Option("--evals", help="Write the attempts of the evaluation instead of those of training.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Include token ids and log-probs.")] = False,
) -> None:
    """Write an iteration's trajectories as a table, one row per turn, for other tools.

    `tw.read_trajectories(FILE)` reads it back."""
    from turnwise.runs.exchange import export_trajectories

    path, count = export_trajectories(run, out, iteration, evals=evals, tokens=tokens)
    say(f"written: {path} ({count} trajectories)")


@app.command()
def rescore(
    run: Annotated[str, typer.Argument(help="A run.")],
    iteration: Annotated[int | None, typer.Option(min=0, help="The iteration of the evaluation. Default: the last one.")] = None,
    reward: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="A function of (turn, transition, trajectory) that replaces the reward.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Play an evaluation's stored actions again in the current environment, and write the new scores next to the old ones."""
    from turnwise.runs.folder import Run

    Run.open(run)  # before torch is imported
    from turnwise.evaluation.rescore import rescore as score_again
    from turnwise.evaluation.rescore import words

    found = score_again(run, iteration, reward)
    say(json.dumps(found, indent=2) if as_json else "\n".join(words(found)))


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run.")],
    out: Annotated[str, typer.Argument(help="The folder to write: a Hugging Face model.")],
    adapters: Annotated[bool, typer.Option("--adapters", help="Write only the LoRA adapters instead of merging them.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Use the best checkpoint by evaluation instead of the last one.")] = False,
    trust: Trust = False,
) -> None:
    """Write a run's weights as a model folder that transformers can load."""
    from turnwise.runs.folder import Run

    Run.open(run)  # before torch is imported
    from turnwise.api import export as write

    say(f"written: {write(run, out, merged=not adapters, best=best)}")


@app.command()
def view(
    folder: Annotated[str, typer.Argument(help="A run, or a folder that contains runs.")] = "runs",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port; 0 selects a free one. Default: 7878, or a free one.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """View runs in a browser: curves, every attempt turn by turn, and why each turn was rewarded."""
    from turnwise.pages.command import view as serve

    serve(folder, port, browser)


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="A run.")],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="The file to write. Default: report.html in the run folder.")] = None,
    compare: Annotated[list[str] | None, typer.Option(metavar="RUN", help="Another run to compare with; repeatable.")] = None,
    attempts: Annotated[int, typer.Option(min=0, help="Number of attempts to include, in whole groups.")] = 200,
) -> None:
    """Write the pages of one or more runs as one HTML file that needs no network."""
    from turnwise.pages.command import report as write

    write(run, out, compare or (), attempts)


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """Parse `key=value` pairs. A value that is valid JSON (3, true, ["a"]) is parsed as JSON; any other value is text."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise TurnwiseError(f"options have the form KEY=VALUE, got {pair!r}")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]  # typer vendors click since 0.26, with separate classes
INTERRUPTED = 130  # the exit code that a shell reports after Ctrl-C


def main() -> None:
    """The entry point. A TurnwiseError is printed in red and exits with code 2, without a traceback."""
    guard()
    try:
        code = typer.main.get_command(app).main(prog_name="turnwise", standalone_mode=False)
    except TurnwiseError as error:
        if os.environ.get("TURNWISE_DEBUG"):
            raise
        fail(str(error))
    except USAGE_ERROR as error:
        wrong: Any = error
        if type(error).__name__ == "NoArgsIsHelpError":  # no command was given: not an error
            say(wrong.format_message())
            sys.exit(0)
        path = wrong.ctx.command_path.split()[1:] if getattr(wrong, "ctx", None) else []
        fail(f"{wrong.format_message()}\nMore: {command(*path, '--help')}")
    except (typer.Abort, KeyboardInterrupt):
        say("\nstopped", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(code or 0)


def fail(text: str) -> NoReturn:
    """Print the error, one line per problem, and exit."""
    lines = [re.sub(r"(?<=\S)\s+", " ", line).rstrip() for line in plain(redact(text)).strip().splitlines()]
    say("error: " + "\n".join(line for line in lines if line), err=True, style="red")
    sys.exit(2)


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, shown in lists of commands."""
    return re.split(r"(?<=[.?!])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".")


for _command in app.registered_commands:
    _command.short_help = first_sentence(getattr(_command.callback, "__doc__", None) or "")  # click would truncate a longer text

if __name__ == "__main__":
    main()
