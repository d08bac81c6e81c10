"""The command line: one thin file per command. The package implements the commands. Imports are inside the functions, so that
`turnwise --help` loads neither torch nor an environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NoReturn

import typer

from turnwise.cli.algos import algos
from turnwise.cli.arena import ARENA, CARD, arena, card
from turnwise.cli.cluster import SHORT as CLUSTER
from turnwise.cli.cluster import cluster
from turnwise.cli.compare import compare
from turnwise.cli.diagnose import diagnose
from turnwise.cli.doctor import doctor
from turnwise.cli.envs import envs
from turnwise.cli.evaluate import evaluate
from turnwise.cli.export import export
from turnwise.cli.fit import fit
from turnwise.cli.lab import SHORT as LAB
from turnwise.cli.lab import lab
from turnwise.cli.methods import methods
from turnwise.cli.new import new
from turnwise.cli.play import play
from turnwise.cli.recipes import recipes
from turnwise.cli.replay import replay
from turnwise.cli.report import report
from turnwise.cli.serve import serve
from turnwise.cli.sft import sft
from turnwise.cli.shared import INTERRUPTED
from turnwise.cli.sweep import sweep
from turnwise.cli.train import train
from turnwise.cli.trajectories import trajectories
from turnwise.cli.view import view
from turnwise.util.errors import TRAINING, MissingExtra, TurnwiseError
from turnwise.util.printable import printable
from turnwise.util.secret import redact
from turnwise.util.terminal import command, guard, say, still_loading
from turnwise.util.version import VERSION

HELP = """Train language-model agents on multi-turn tasks, with credit for every turn.

List the environments (envs), play one yourself (play), train a model (train) and evaluate it (eval)."""

app = typer.Typer(
    name="turnwise", help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _show_version(asked: bool) -> None:
    if asked:
        say(f"turnwise {VERSION}")
        raise typer.Exit


@app.callback()
def _turnwise(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)] = False,
) -> None:
    """Options before a command."""


COMMANDS: dict[str, Callable[..., None]] = {
    "eval" if command is evaluate else command.__name__: command
    for command in (
        *(envs, play, algos, methods, recipes, new, fit, train, evaluate, sweep, compare, sft),
        *(replay, diagnose, trajectories, export, serve, view, report, doctor),
    )
}
for _name, _command in COMMANDS.items():  # click would truncate a longer help text than the first sentence
    _sentence = re.split(r"(?<=[.?!])\s", " ".join((_command.__doc__ or "").split()), maxsplit=1)[0].rstrip(".")
    app.command(name=_name, short_help=_sentence)(_command)
app.add_typer(cluster, name="cluster", short_help=CLUSTER)
app.add_typer(arena, name="arena", short_help=ARENA)
app.add_typer(card, name="card", short_help=CARD)
app.add_typer(lab, name="lab", short_help=LAB)

GONE = {  # commands and options of earlier versions: what replaces them
    "rescore": "is gone: `turnwise trajectories RUN --evals` writes the attempts, and docs/guides/trajectories.md plays them again",
    "--update": "is gone: a replay compares credit. To see what another credit learns, train with it",
    "--trials": "is gone, as is --agent reflexion: `--agent react --repeats N` makes several attempts at each task",
    "--examples": "is gone: put solved tasks into agent.instructions",
}
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]  # typer vendors click since 0.26, with separate classes


@cache
def _made() -> Any:
    """All commands with their options; a process that runs several of them makes these once."""
    return typer.main.get_command(app)


def main() -> None:
    """The entry point. A TurnwiseError is printed in red and exits with code 2, without a traceback."""
    guard()
    try:
        with still_loading():
            code = _made().main(prog_name="turnwise", standalone_mode=False)
    except TurnwiseError as error:
        if os.environ.get("TURNWISE_DEBUG"):
            raise
        fail(str(error))
    except ModuleNotFoundError as error:  # what needs the extra only for some arguments, such as a model's folder
        if (error.name or "").partition(".")[0] not in TRAINING:
            raise
        fail(str(MissingExtra(f"turnwise {sys.argv[1]} with these arguments", "train")))
    except USAGE_ERROR as error:
        wrong: Any = error
        if type(error).__name__ == "NoArgsIsHelpError":  # no command was given: not an error
            say(wrong.format_message())
            sys.exit(0)
        path = wrong.ctx.command_path.split()[1:] if getattr(wrong, "ctx", None) else []
        replaced = [f"{word} {instead}\n" for word, instead in GONE.items() if word in sys.argv[1:]]
        fail(f"{wrong.format_message()}\n{''.join(replaced)}More: {command(*path, '--help')}")
    except (typer.Abort, KeyboardInterrupt):
        say("\nstopped", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(code or 0)


def fail(text: str) -> NoReturn:
    """Print the error, one line per problem, and exit."""
    lines = [re.sub(r"(?<=\S)\s+", " ", line).rstrip() for line in printable(redact(text)).strip().splitlines()]
    say("error: " + "\n".join(line for line in lines if line), err=True, style="red")
    sys.exit(2)


if __name__ == "__main__":
    main()
