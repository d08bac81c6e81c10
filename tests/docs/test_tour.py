"""The tour's commands work: what its pages tell a reader to save is saved, and what they tell them to type is run, in an empty folder.

A console block is run as it stands. A comment on the line before changes that:

    <!-- test: iterations=1 --n 8 -->        the same command with less to do: a key or an option is replaced, or added if it is a key
    <!-- test: output as shown -->           the block shows exactly what the commands print
    <!-- not run in tests: REASON -->        only its words are checked: commands, options, recipes and keys exist
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer
from conftest import ROOT
from launching import python

import turnwise as tw
from turnwise.cli.app import app
from turnwise.recipe.reading import is_recipe, parse_override, shipped_recipes
from turnwise.recipe.schema import Config

TOUR = sorted((ROOT / "docs" / "tour").glob("[1-4]*.md"))
TRIED = [page for page in TOUR if page.name < "3"]  # the others need GPUs
BLOCK = re.compile(r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<kind>console|bash|python|toml)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_RECIPE = {"train", "sweep", "fit", "sft", "check"}
SMALL = {"test", "not run in tests"}


@dataclass(frozen=True)
class Block:
    """A block of a page: a file to save, or commands with what they print."""

    page: str
    kind: str
    text: str
    note: str

    @property
    def file(self) -> str | None:
        found = re.match(r"# file: (\S+)\n", self.text)
        return found[1] if found else None

    @property
    def skipped(self) -> bool:
        return self.note.startswith("not run in tests: ")

    @property
    def smaller(self) -> list[str]:
        words = self.note.removeprefix("test: ")
        return [] if words in (self.note, "output as shown") else shlex.split(words)

    def commands(self) -> list[list[str]]:
        lines = [line.removeprefix("$ ") for line in self.text.splitlines() if self.kind == "bash" or line.startswith("$ ")]
        return [words for line in lines if (words := shlex.split(line, comments=True))]

    def printed(self) -> list[str]:
        return [line.rstrip() for line in self.text.splitlines() if line.strip() and not line.startswith(("$ ", "…"))]


def blocks(page: Path) -> list[Block]:
    found = [Block(page.name, hit["kind"], hit["text"], hit["note"] or "") for hit in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    return [block for block in found if block.kind in ("console", "bash") or block.file]


def with_less_to_do(words: list[str], smaller: list[str]) -> list[str]:
    """A command with the replacements that its block's comment asks for."""
    words, changes = list(words), list(smaller)
    while changes:
        change = changes.pop(0)
        if change.startswith("--"):
            value = changes.pop(0)
            if change in words:
                words[words.index(change) + 1] = value
        elif words[1] in WITH_RECIPE:
            words = [word for word in words if word.partition("=")[0] != change.partition("=")[0]] + [change]
    return words


class OpenAI:
    """Stands in for the package openai where it is not installed: one call, by Turnwise's own client of HTTP."""

    def __init__(self, base_url: str, api_key: str, http_client: object):
        from turnwise.util.transport import Transport

        transport = Transport(base_url, api_key, 60)

        def create(**request: Any) -> Any:
            content = transport.post("chat/completions", request)["choices"][0]["message"]["content"]
            return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=content))])

        self.chat = SimpleNamespace(completions=SimpleNamespace(create=create))


class Started:
    """Stands in for a process that a sweep starts: the training runs in this one, which has imported torch already."""

    def __init__(self, command: list[str], **_: Any):
        self.pid, self.returncode = 0, 0
        tw.train(resume=command[command.index("--resume") + 1], quiet=True)

    def poll(self) -> int:
        return self.returncode


@pytest.fixture
def reader(
    here: Callable[..., SimpleNamespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[list[str]], SimpleNamespace]]:
    """Types a command in the folder of a page: `turnwise` in this process, because importing torch takes longer than most of them."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("turnwise.evaluation.sweep.subprocess", SimpleNamespace(Popen=Started, DEVNULL=subprocess.DEVNULL))
    try:
        import openai  # noqa: F401
    except ImportError:
        module = ModuleType("openai")
        vars(module).update(OpenAI=OpenAI, DefaultHttpxClient=dict)
        monkeypatch.setitem(sys.modules, "openai", module)

    def typed(words: list[str]) -> SimpleNamespace:
        if words[0] == "turnwise":
            return here(*words[1:])
        assert words[0] == "python", f"a page asks for {words[0]}"
        ended = python(*words[1:])
        return SimpleNamespace(returncode=ended.returncode, stdout=ended.stdout, stderr=ended.stderr)

    for name, module in list(sys.modules.items()):  # what other tests have saved under the names that pages use
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path.parent)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not folder.startswith(str(tmp_path.parent))])
    before = set(sys.modules)
    yield typed
    for name in set(sys.modules) - before:  # what pages have saved is imported under names such as my_method
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", TRIED, ids=lambda page: page.stem)
def test_a_reader_who_types_what_a_page_says_gets_to_its_end(
    page: Path, reader: Callable[[list[str]], SimpleNamespace], tmp_path: Path
) -> None:
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        elif not block.skipped:
            printed = ""
            for command in block.commands():
                ended = reader(with_less_to_do(command, block.smaller))
                assert not ended.returncode, f"{shlex.join(command)}\n{ended.stdout}\n{ended.stderr}"
                printed += ended.stdout
            if block.note == "test: output as shown":
                assert block.printed() == [line.rstrip() for line in printed.splitlines() if line.strip()], page.name


SKILL = ROOT / "skills" / "turnwise" / "SKILL.md"
SHORTER = shlex.split("iterations=1 seed=0 sft.steps=2 sft.tasks=8 sft.at_least=none eval.n=2 eval.repeats=1 collect.groups=2")


def test_a_coding_assistant_that_follows_the_skill_to_the_letter_gets_to_its_end(reader: Callable[[list[str]], SimpleNamespace]) -> None:
    lines = [line for line in SKILL.read_text(encoding="utf-8").splitlines() if line.startswith("    ")]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) > 15
    for words in commands:
        trains = words[1] in ("train", "sweep") and not {"--dry-run", "--help-config"} & {*words}
        ended = reader(with_less_to_do(words, SHORTER if trains else []))
        assert not ended.returncode, f"{shlex.join(words)}\n{ended.stdout}\n{ended.stderr}"


ALL = [pytest.param(block, id=f"{block.page}:{number}") for page in TOUR for number, block in enumerate(blocks(page)) if not block.file]


@pytest.mark.parametrize("block", ALL)
def test_every_command_of_the_tour_exists_with_its_options_recipes_and_keys(block: Block) -> None:
    assert not block.note or block.note.partition(":")[0] in SMALL, f"unknown comment: {block.note}"
    assert block.commands(), "a block of commands has none: lines that are typed begin with $"
    assert block.page < "3" or block.skipped, "pages about GPUs are not run: say why before the block"
    for words in block.commands():
        if Path(words[0]).name != "turnwise":
            continue
        command: Any = typer.main.get_command(app)
        words = words[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]
        assert not hasattr(command, "commands") or command.invoke_without_command, words
        options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= options, words
        if command.name in WITH_RECIPE:
            plain = [word for word in words if "=" not in word and not word.startswith("-")]
            recipes = [word for word in plain if word in shipped_recipes() or is_recipe(Path(word))]
            if recipes and not Path(recipes[0]).suffix:
                values = dict(
                    parse_override(word.split("..")[0].split(",")[0]) for word in words if "=" in word and not word.startswith("-")
                )
                Config.load(shipped_recipes()[recipes[0]], {key: value for key, value in values.items() if not key.startswith("method")})
