"""`turnwise new`."""

from __future__ import annotations

import json
import keyword
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.files import write_text_atomically
from turnwise.util.terminal import command, python, say

TEMPLATES = Path(__file__).parent / "templates"
FILES = {  # kind → the file it writes: its template
    "env": {"{name}.py": "env.py.txt", "test_{name}.py": "test_env.py.txt"},
    "method": {"{name}.py": "method.py.txt", "test_{name}.py": "test_method.py.txt"},
    "agent": {"{name}.py": "agent.py.txt", "{name}.toml": "agent.toml.txt", "test_{name}.py": "test_agent.py.txt"},
    "recipe": {"{name}.toml": "recipe.toml.txt", "test_{name}.py": "test_recipe.py.txt"},
}
NEXT = {
    "env": ("envs --check {name}.py:{Class}", "train --env {name}.py:{Class}"),
    "method": ("train method.name={name}.py:{name}",),
    "agent": ("train {name}.toml",),
    "recipe": ("train {name}.toml --dry-run", "train {name}.toml"),
}


def new(
    kind: Annotated[str, typer.Argument(help="env, method, agent or recipe.")],
    name: Annotated[str, typer.Argument(help="Its name, such as my_game: a word that Python can import.")],
) -> None:
    """Write a small working file with its test, to start from: an environment, a method, an agent or a recipe."""
    if kind not in FILES:
        raise unknown_name("kind", kind, FILES)
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
        raise TurnwiseError(f"{name!r} cannot be the name of a Python file: use letters, digits and _, such as my_{kind}")
    if name in sys.stdlib_module_names:
        raise TurnwiseError(f"{name!r} is a module of Python itself: choose another name, such as my_{name}")
    words = {"name": name, "Class": "".join(part.capitalize() for part in name.split("_")), "title": name.replace("_", " ").capitalize()}
    files = {Path(file.format(**words)): Template((TEMPLATES / template).read_text("utf-8")) for file, template in FILES[kind].items()}
    tasks = Path(f"{name}.jsonl") if kind == "agent" else None
    for file in (*files, *([tasks] if tasks else [])):
        if file.exists():
            raise TurnwiseError(f"{file} exists already: choose another name, or remove it first")
    for file, template in files.items():
        write_text_atomically(file, template.substitute(words))
    if tasks:
        write_text_atomically(tasks, _walks())
    say(f"wrote {', '.join(map(str, (*files, *([tasks] if tasks else []))))}")
    say("next:")
    if find_spec("pytest") is None:
        say(f"  {python()} -m pip install pytest")
    say(f"  {python()} -m pytest test_{name}.py")
    for words_of_command in NEXT[kind]:
        say(f"  {command(*words_of_command.format(**words).split())}")


def _walks() -> str:
    """The tasks of the agent's template: from one number to another."""
    lines = []
    for start in range(10):
        for target in range(10):
            if start != target:
                prompt = f"Target: {target} Current: {start}\nSay + or -."
                split = "valid" if (start + 2 * target) % 5 == 0 else "train"
                lines.append(json.dumps({"id": f"{start}-{target}", "prompt": prompt, "start": start, "target": target, "split": split}))
    return "\n".join(lines) + "\n"
