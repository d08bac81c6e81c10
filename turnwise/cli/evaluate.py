"""`turnwise eval`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnwise.cli.shared import Overrides, Prompts, Reply, RewardName, Trust, recipe_and_overrides
from turnwise.util.errors import TurnwiseError, need_training, unknown_name
from turnwise.util.terminal import only_results, say

if TYPE_CHECKING:
    from turnwise.collect.panel import Evaluation
    from turnwise.recipe.schema import Config

PROMPTED: Mapping[str, Mapping[str, Any]] = {  # agents that are a model with a prompt: settings of a recipe
    "plain": {"agent.prompt": "plain"},
    "react": {"agent.prompt": "react", "agent.context": "full"},
}


def evaluate(
    source: Annotated[
        str | None, typer.Argument(help="A run, a model folder or a recipe (a file or a name). Not needed with --agent and --url.")
    ] = None,
    overrides: Overrides = None,
    agent: Annotated[
        str | None, typer.Option(help="random, scripted or expert: no model. plain or react: a model with prompting only.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="The environment. Default: the run's.")] = None,
    prompts: Prompts = None,
    reward: RewardName = None,
    reply: Reply = None,
    split: Annotated[str | None, typer.Option(help="Evaluate on all of another split instead of the run's panel.")] = None,
    n: Annotated[
        str | None,
        typer.Option(
            "--n", metavar="N", help="Number of tasks in the panel, or all. Default: the panel of the run or recipe, otherwise all."
        ),
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Measure success on a fixed panel of tasks."""
    if agent is None or agent in PROMPTED:
        need_training("turnwise eval of a model")
    from turnwise.report.progress import LineReporter
    from turnwise.setup.arguments import Asked, Given
    from turnwise.setup.early import look, names_server, read_source
    from turnwise.util.console import Console

    source, changes = recipe_and_overrides(source, overrides)
    served = {"engine.name": engine or ("openai" if url else None), "engine.url": url, "engine.model": model}
    with only_results():
        changes = {**PROMPTED.get(agent or "", {}), **changes} | {key: value for key, value in served.items() if value is not None}
        asked = Asked(split, panel_size(n), seed, temperature, repeats)
        shown = LineReporter(Console(stderr=True))  # standard output contains only the result
        if agent is not None and agent not in PROMPTED:
            config = player_config(agent, source, env, changes)
            from turnwise.evaluation.players import evaluate_player

            result = evaluate_player(agent, config, asked, shown)
        elif source is None and not names_server(changes):
            raise TurnwiseError(
                "nothing to evaluate: give a run, a model folder or a recipe (with --agent plain|react for prompting only); "
                "--agent random|scripted|expert with --env NAME; "
                "or a server with --engine openai --url URL --model NAME --env NAME"
            )
        else:
            from turnwise.runs.reporter import heartbeat

            if prompts is None and (named := read_source(source, Given(env), changes)).run is None:  # a run has its own environment
                look(named.config)
            shown.phase("loading torch")
            with heartbeat(shown):
                from turnwise.setup.evaluated import measure

            result = measure(source, Given(env, reward, None, prompts, reply), changes, asked, shown)
            if agent is not None:
                result.settings |= {"player": agent, "model": str(source or changes.get("engine.model"))}
    hand_out(result, save, as_json)


def player_config(agent: str, source: str | None, env: str | None, changes: Mapping[str, Any]) -> Config:
    """What a player without a model plays. Mistakes are reported before torch is imported."""
    from turnwise.collect.players import PLAYERS
    from turnwise.recipe.schema import Config
    from turnwise.setup.early import look

    if agent == "reflexion":
        raise TurnwiseError("--agent reflexion is gone: `--agent react --repeats N` makes several attempts at each task")
    if agent not in PLAYERS:
        raise unknown_name("agent", agent, [*PLAYERS, *PROMPTED])
    if source is not None:
        raise TurnwiseError(f"--agent {agent} plays without a model: omit the run or model, and name an environment with --env")
    return look(Config.load(None, {**changes, **({"env.name": env} if env else {})}))


def hand_out(result: Evaluation, save: str | None, as_json: bool) -> None:
    """Write the result to a file where that was asked for, and print it."""
    from turnwise.report.closing import show_evaluation
    from turnwise.util.console import Console
    from turnwise.util.files import write_text_atomically

    if save is not None:
        write_text_atomically(save, json.dumps(result.record(), allow_nan=False, default=float) + "\n")
        say(f"written: {save}", err=True)
    if as_json:
        say(json.dumps(result.to_dict(), indent=2))
    else:
        show_evaluation(Console(), result)


def panel_size(text: str | None) -> int | Literal["all"] | None:
    """The value of --n: a number of tasks, or all of them."""
    if text is None or text == "all":
        return text  # type: ignore[return-value]
    if not text.isdecimal() or int(text) < 1:
        raise TurnwiseError(f"--n must be a number of tasks, or all, not {text!r}")
    return int(text)
