"""Prompt templates: jinja files, each of which says the first message of a sequence and every later one.

A template gets these variables; one that is not listed is an error that names the template and the line.

    turn           the number of this turn, from 1
    opening        whether this message opens a sequence: always in a window; in the full dialogue at the start and after a cut
    observation    what the agent sees now
    actions        the admissible actions to show: a list, empty where they are not shown or not known
    history        past turns to show, oldest first; each has .turn, .observation and .action
    goal           what is to be done, as it was first said
    instructions   of the environment, empty where it has none
    native_tools   whether the model's chat template has told it of the tools already
    tools          the tools, as JSON texts (prompt `tool`)

Your own template is a file anywhere, named by its path, or a text in Python code, named as `path/to/file.py:NAME` or
`package.module:NAME`. It runs in a sandbox: it can read its variables and nothing else.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.config.loading import load_text
from turnwise.config.references import is_reference, parse
from turnwise.util.errors import TurnwiseError, unknown_name

FOLDER = Path(__file__).parent
LATER = 2  # a turn that is not the first, where it does not matter which
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.jinja")))


@dataclass(frozen=True, slots=True)
class Past:
    """A past turn: what the agent saw, and what it did. `images` are the pictures whose marks stand in the observation."""

    turn: int
    observation: str
    action: str
    images: Sequence[Any] = ()


@dataclass(frozen=True)
class View:
    """All that a template may look at."""

    observation: str
    goal: str = ""
    turn: int = 1
    opening: bool = True
    actions: Sequence[str] = ()
    history: Sequence[Past] = ()
    instructions: str = ""
    native_tools: bool = False
    tools: Sequence[str] = field(default=())


class PromptTemplate:
    """One template file, compiled and tried out, so that its errors show at the start of a run and not on its second turn."""

    def __init__(self, name: str, source: str | None = None):
        from jinja2 import StrictUndefined, Template, TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.name = name
        self.path = find_template(name) if source is None else Path(parse(name).place)
        self.source = self.path.read_text(encoding="utf-8") if source is None else source
        self.shows_all = self.path.is_relative_to(FOLDER.parent)  # one of ours shows a text whole or not at all; another may show its end
        environment = ImmutableSandboxedEnvironment(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False, keep_trailing_newline=False
        )
        try:
            code = environment.compile(self.source, name=name, filename=str(self.path))
        except TemplateSyntaxError as error:
            raise TurnwiseError(f"prompt template {self.path}, line {error.lineno}: {error.message}") from None
        self._template = Template.from_code(environment, code, environment.make_globals(None))
        self._globals = dict(environment.globals)
        for view in _SAMPLES:
            self.render(view)
        self.counts_later_turns = not self.shows_all or self._counts_later_turns()

    def _counts_later_turns(self) -> bool:
        """Whether a message that opens no sequence depends on the number of its turn. One of our templates shows it always or never."""
        views = [replace(view, opening=False, actions=actions) for view in _SAMPLES for actions in ((), view.actions)]
        return any(self.render(replace(view, turn=turn)) != self.render(replace(view, turn=LATER)) for view in views for turn in (3, 17))

    def render(self, view: View) -> str:
        """The message, without blank space at its ends."""
        from jinja2.runtime import new_context

        template, variables = self._template, vars(view)
        try:  # as Template.render does it, which rebuilds the table of globals for every message: most of its time for a short one
            context = new_context(template.environment, template.name, template.blocks, self._globals | variables, shared=True)
            return "".join(template.root_render_func(context)).strip()
        except Exception:
            return self._explained(variables)

    def _explained(self, variables: dict[str, Any]) -> str:
        """Render again after a failure, in the slower way that knows the template's lines."""
        from jinja2 import TemplateError

        try:
            return self._template.render(variables).strip()
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise TurnwiseError(f"prompt template {self.path}, line {self._line(error)}: {self._explain(error)}") from error

    def _line(self, error: BaseException) -> int | str:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(self.path)]
        return (frames[-1].lineno or "?") if frames else "?"

    def _explain(self, error: BaseException) -> str:
        from jinja2 import UndefinedError

        if isinstance(error, UndefinedError):
            return f"{error.message}. The variables are: {', '.join(View.__dataclass_fields__)}"
        return f"{type(error).__name__}: {error}"


_SAMPLES = tuple(
    View("You see a desk.", "Find a pen.", turn, opening, ("look",), history, "Look around.", native, ("{}",))
    for turn, opening, history, native in (
        (1, True, (), True),
        (1, True, (), False),
        (3, False, (), True),
        (3, True, (), False),
        (3, True, (Past(2, "You see a bed.", "look"),), False),
    )
)


def find_template(name: str) -> Path:
    """The file of a template: one of ours by name, or any file by its path."""
    if name in NAMES:
        return FOLDER / f"{name}.jinja"
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    if "/" in name or "." in name:
        raise TurnwiseError(f"there is no prompt template {name} (looked in {Path.cwd()})")
    raise unknown_name("prompt", name, NAMES)


@cache
def _load(name: str, path: str, changed: int) -> PromptTemplate:
    return PromptTemplate(name)


def load_template(name: str) -> PromptTemplate:
    """The template of this name or path; compiled again only when its file has changed."""
    if not name.endswith(".py") and is_reference(name) and not Path(name).expanduser().is_file():
        return PromptTemplate(name, load_text(name))
    path = find_template(name)
    return _load(name, str(path), path.stat().st_mtime_ns)


__all__ = ["LATER", "NAMES", "Past", "PromptTemplate", "View", "find_template", "load_template"]
