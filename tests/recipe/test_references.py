"""What a recipe may name as code, and what is refused before any of it is called."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from turnwise.config.kinds import CONTEXT, CREDIT, ENVIRONMENT, REWARD, SCORE, TRACKER, Kind
from turnwise.config.loading import check_reference, load_reference
from turnwise.config.references import code_in
from turnwise.envs import registry
from turnwise.util.errors import TurnwiseError
from turnwise.util.syntax import undisturbed

OWN = """
import functools, os, shutil, subprocess
from pathlib import Path
Path({mark!r}).write_text("ran")

class Game:
    def __init__(self, size=3): self.size = size
    def reset(self, task, seed=0): ...
    def step(self, action): ...

class Wrapped:
    def __getattr__(self, name): return None

class Diary:
    def open(self, folder, config): ...
    def log(self, step, metrics): ...
    def close(self): ...

class Nothing: ...

def game(size=3): return Game(size)
def annotated() -> Game: return Game()
def wrong() -> int: return 3
def term(turn, transition, trajectory): return 0.0
def short(turn): return 0.0
@functools.lru_cache
def remembered(turn, transition, trajectory): return 0.0
bound = functools.partial(game, size=5)
number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN.format(mark=str(tmp_path / "mark")))
    return str(tmp_path / "own.py")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("subprocess:Popen", {"args": "touch {mark}", "shell": True}),
        ("subprocess:run", {"args": ["touch", "{mark}"]}),
        ("os:system", {"command": "touch {mark}"}),
        ("builtins:exec", {}),
        ("shutil:copyfile", {"src": "/etc/hostname", "dst": "{mark}"}),
        ("runpy:run_path", {"path_name": "{mark}"}),
        ("turnwise_envs.appworld.env:subprocess.Popen", {"args": ["touch", "{mark}"]}),
        ("turnwise.util.files:write_text_atomically", {"path": "{mark}", "text": "x"}),
        ("numpy:savetxt", {"fname": "{mark}", "X": [1]}),
        ("pip.__main__:main", {}),
    ],
)
def test_a_recipe_cannot_call_what_is_no_environment(name: str, options: dict[str, object], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    filled = {key: value.format(mark=mark) if isinstance(value, str) else value for key, value in options.items()}
    filled = {key: [str(item).format(mark=mark) for item in value] if isinstance(value, list) else value for key, value in filled.items()}
    with pytest.raises(TurnwiseError, match=r"is not a valid environment|is rejected|there is no module"):
        registry.make(name, **filled)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "shutil.rmtree", "Nothing", "wrong", "number", "Path"])
def test_what_a_file_imports_or_holds_besides_is_no_environment(own: str, name: str) -> None:
    with pytest.raises(TurnwiseError, match="is not a valid environment"):
        registry.resolve(f"{own}:{name}", {})


@pytest.mark.parametrize("name", ["Game", "game", "annotated", "bound"])
def test_classes_and_functions_of_a_file_make_environments(own: str, name: str) -> None:
    assert type(registry.make(f"{own}:{name}")).__name__ == "Game"


def test_a_class_that_passes_everything_on_is_looked_at_after_it_is_made(own: str) -> None:
    with pytest.raises(TurnwiseError, match="has no reset"):
        registry.make(f"{own}:Wrapped")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("term", REWARD, ""),
        ("remembered", REWARD, ""),
        ("term", SCORE, ""),
        ("short", CREDIT, ""),
        ("Diary", TRACKER, ""),
        ("short", REWARD, r"called with \(turn, transition, trajectory\)"),
        ("Game", REWARD, "Game is a class"),
        ("Diary", CONTEXT, r"no method start\(\) and no prompt\(\) and no record\(\)"),
        ("shutil.move", SCORE, "a part of Python"),
        ("os.system", SCORE, "a part of Python"),
    ],
)
def test_every_part_of_a_recipe_is_checked_by_its_own_kind(own: str, name: str, kind: Kind, message: str) -> None:
    if not message:
        assert callable(load_reference(f"{own}:{name}", kind))
        return
    with pytest.raises(TurnwiseError, match=message):
        load_reference(f"{own}:{name}", kind)


def test_an_installed_function_says_what_it_returns_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "strange_package.py"
    package.write_text("def clean(text): ...\ndef score(text) -> float: ...\ndef make(path): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("turnwise.config.references._installed", lambda: (tmp_path.resolve(),))
    assert callable(load_reference("strange_package:score", SCORE))
    for name, kind in (("clean", SCORE), ("make", ENVIRONMENT)):
        with pytest.raises(TurnwiseError, match="does not say what it returns"):
            load_reference(f"strange_package:{name}", kind)
    sys.modules.pop("strange_package")


def test_a_file_that_cannot_be_right_is_not_run(own: str, tmp_path: Path) -> None:
    for name, message in (("Nothing", r"Nothing has no method reset\(\)"), ("Gaem", "Did you mean 'Game'")):
        with pytest.raises(TurnwiseError, match=message):
            load_reference(f"{own}:{name}")
    assert not (tmp_path / "mark").exists()
    load_reference(f"{own}:Game")
    assert (tmp_path / "mark").exists()


def test_a_look_at_a_reference_runs_nothing(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "looked_at"
    package.mkdir()
    shutil.copy(own, package / "__init__.py")
    shutil.copy(own, package / "inner.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    for good in (f"{own}:Game", own, "looked_at:Game", "looked_at.inner:Game"):
        check_reference(good)
    (tmp_path / "bad.py").write_text("class Game(:\n")
    for bad, message in (
        (f"{tmp_path}/bad.py:Game", "line 1"),
        (f"{tmp_path}/none.py:Game", "there is no file"),
        ("looked_at.nothing:Game", "there is no module 'looked_at.nothing'"),
        ("http://127.0.0.1:8000", "names no code"),
        ("own.py:", "names no code"),
        ("a b:c", "names no code"),
    ):
        with pytest.raises(TurnwiseError, match=message):
            check_reference(bad)
    assert not (tmp_path / "mark").exists()
    assert "looked_at" not in sys.modules


def test_code_is_found_wherever_it_stands_in_a_recipe() -> None:
    values = {
        "env": {"name": "prompts", "options": {"score": "reward.py:score", "inner": [{"id": "module:Game-v0"}], "python": "/tmp/own"}},
        "run": {"trackers": ["pager.py:Pager", "wandb"]},
        "engine": {"url": "http://127.0.0.1:8000/v1"},
        "agent": {"system": "Note: be brief.", "context": "notes:Notes"},
    }
    assert code_in(values) == ["/tmp/own", "module:Game-v0", "notes:Notes", "pager.py:Pager", "reward.py:score"]


def test_a_file_is_checked_although_something_else_parses_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of Python then raise an error for a file that is fine."""
    path = tmp_path / "fine.py"
    path.write_text("def make():\n    pass\n")
    plain = ast.parse
    troubles: list[Exception] = [
        SystemError("AST constructor recursion depth mismatch (before=63, after=57)"),
        RecursionError("maximum recursion depth exceeded during ast construction"),
    ]

    def parse(*args: Any, **options: Any) -> ast.AST:
        if troubles:
            raise troubles.pop()
        return plain(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", parse)
        check_reference(f"{path}:make", ENVIRONMENT)
    assert not troubles


def test_source_that_never_parses_is_not_tried_forever() -> None:
    def parse() -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    with pytest.raises(SystemError, match="mismatch"):
        undisturbed(parse)
