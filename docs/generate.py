"""The reference pages that are made from the code: recipe keys, commands, the Python API.

python docs/generate.py          # write them into docs/reference, as `make docs` does
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer

import turnwise
from turnwise.cli.app import app
from turnwise.recipe.schema import fields
from turnwise.recipe.writing import toml_value
from turnwise.util.files import write_text_atomically


def write_reference(folder: Path) -> None:
    """Write the generated pages; a page that has not changed keeps its time, so that nothing is built twice."""
    folder.mkdir(exist_ok=True)
    for name, lines in {"recipe": recipe_page(), "cli": cli_page(), "python": python_page()}.items():
        page, text = folder / f"{name}.md", "\n".join(lines) + "\n"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            write_text_atomically(page, text)


def recipe_page() -> Iterator[str]:
    """Every key of a recipe, by section."""
    yield "# Recipe keys\n\nEvery key that a recipe can set, with its type, its default and its meaning. "
    yield "`turnwise train --help-config` prints the same.\n"
    yield "| key | takes | default | meaning |\n|---|---|---|---|"
    for dotted, field, inner in fields():
        if inner is not None:
            optional = " This section is optional." if field.default is None or field.default == [] else ""
            yield f"\n## `[{dotted}]`\n\n{_line(inner.__doc__ or '')}{optional}\n\n| key | takes | default | meaning |\n|---|---|---|---|"
            continue
        default = "required" if field.is_required() else f"`{_cell(toml_value(field.default))}`"
        yield f"| `{dotted}` | {_cell(_type(field.annotation))} | {default} | {_cell(_line(field.description or ''))} |"


def _type(annotation: Any) -> str:
    text = str(annotation) if get_args(annotation) else getattr(annotation, "__name__", str(annotation))
    return text.replace("typing.", "").replace("turnwise.", "")


def cli_page() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield "# Commands\n\nEvery command with its arguments and options, as `turnwise COMMAND --help` prints them.\n"
    yield from _command(typer.main.get_command(app), "turnwise")


def _command(command: Any, path: str) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    if not inner:
        yield f"\n## `{path}`\n\n{(command.help or '').strip()}\n"
        rows = [_parameter(one) for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
        if rows:
            yield "| argument or option | default | meaning |\n|---|---|---|"
            yield from rows
    for name, one in inner.items():
        yield from _command(one, f"{path} {name}")


def _parameter(one: Any) -> str:
    option = one.opts[0].startswith("-")
    name = ", ".join([*one.opts, *one.secondary_opts]) if option else (one.metavar or one.name.upper())
    value = f" {one.metavar or one.type_descriptor.annotation.__name__.upper()}" if option and not getattr(one, "is_flag", False) else ""
    default = "" if one.default in (None, False, (), []) or callable(one.default) else f"`{one.default}`"
    return f"| `{name}{value}` | {default} | {_cell(_line(one.help or ''))} |"


def python_page() -> Iterator[str]:
    """The public names of the package, with their signatures and docstrings."""
    yield "# Python API\n\nWhat `import turnwise as tw` gives. [Versions](../versions.md) says what is stable."
    for name in turnwise.__all__:
        value = getattr(turnwise, name)
        if inspect.ismodule(value) and name != "train":
            yield f"\n## `tw.{name}`\n\n{_docstring(value)}"
            yield from (_described(f"tw.{name}.{inner}", getattr(value, inner)) for inner in value.__all__)
        elif not isinstance(value, str):
            yield _described(f"tw.{name}", value, level=2)
            yield from (_described(f"tw.{name}.{inner}", one) for inner, one in _members(value))


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """The documented methods of a class; a recipe's keys have a page of their own."""
    if inspect.isclass(value) and not issubclass(value, turnwise.Recipe):
        for name, one in vars(value).items():
            function = one.__func__ if isinstance(one, classmethod | staticmethod) else one
            if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
                yield name, function


def _described(name: str, value: Any, level: int = 3) -> str:
    try:
        signature = f"\n\n```python\n{name}{_wrapped(str(inspect.signature(value)))}\n```" if callable(value) else ""
    except ValueError:
        signature = ""
    if inspect.isclass(value) and issubclass(value, Exception | turnwise.Recipe):
        signature = ""
    return f"\n{'#' * level} `{name}`{signature}\n\n{_docstring(value)}"


def _wrapped(signature: str) -> str:
    """A long signature, one parameter a line."""
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r"^\((self|cls)(, )?", "(", signature))
    if len(signature) <= 80:
        return signature
    parameters, _, result = signature.rpartition(")")
    return "(\n    " + re.sub(r", (?=\*|\w+:)", ",\n    ", parameters[1:]) + f"\n){result}"


def _docstring(value: Any) -> str:
    """Prose as prose; tables and examples of a docstring, which are aligned for the eye, as they are."""
    blocks = (inspect.getdoc(value) or "").split("\n\n")
    return "\n\n".join(f"```text\n{block}\n```" if re.search(r"(?m)^( {2,}\S|>>>)|\S {3,}\S", block) else block for block in blocks)


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    write_reference(Path(__file__).parent / "reference")
