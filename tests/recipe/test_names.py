"""Whatever a recipe names may be a registered name, a module's or a file's; packages bring names of their own; `algos` lists them all."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from train_cases import TINY
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.config import plugins
from turnwise.config.kinds import KINDS
from turnwise.config.options import Help, Registry
from turnwise.config.trust import Untrusted
from turnwise.evaluation.replay import replay
from turnwise.pages.answers import Answers
from turnwise.pages.run_list import RunList
from turnwise.recipe.names import REGISTRIES, know, pieces, registry
from turnwise.recipe.schema import Config
from turnwise.runs.exchange import export_trajectories
from turnwise.setup.catalogue import FAMILIES
from turnwise.util.errors import TurnwiseError

pytestmark = pytest.mark.usefixtures("refusing")

OWN = '''
from pathlib import Path
import torch
from turnwise.agent import Window
from turnwise.collect.source import OwnSource
from turnwise.engines.transformers import TransformersEngine
from turnwise.objectives import Correction, TokenLoss

with Path({mark!r}).open("a") as file:
    file.write("ran\\n")

def spread(rollouts, *, scale: float = 2.0):
    """Rewards, scaled."""
    return rollouts.reward * scale

def push(tokens, *, bound: float = 0.2):
    return TokenLoss(-tokens.advantage * tokens.ratio.clamp(max=1 + bound), {{}})

def even(tokens, *, high: float = 2.0):
    return Correction(torch.ones_like(tokens.logprob) * high / high, {{}})

def brief(turn, transition, trajectory, *, cost: float = 0.1):
    return -cost

class Last(Window):
    def __init__(self, maker, *, turns: int = 1):
        super().__init__(maker)
        self.shown = turns

    def past(self):
        return self.turns[-self.shown:]

def first(response, actions):
    return response.split("\\n")[0]

class Diary:
    def __init__(self, title="x"):
        self.title = title

    def open(self, folder, config):
        self.path = folder / "diary.txt"

    def log(self, step, metrics):
        self.path.write_text(self.title)

    def close(self): ...

class Slow(TransformersEngine):
    """The usual engine, with an option."""

    def __init__(self, *parts, patience: int = 1, stop_token_ids=None):
        super().__init__(*parts, stop_token_ids=stop_token_ids)
        self.patience = patience

class Ahead:
    needs = ("env.snapshot",)

    def __init__(self, *, depth: int = 1): ...
    def gather(self, places, groups): ...

class Short(OwnSource):
    def __init__(self, source, *, most: int = 8):
        super().__init__(source)

class Judge:
    def __init__(self, *, margin: float = 0.1): ...
    def loss(self, said): ...

def longer(batch, models, *, scale: float = 1.0): ...
def reverse(view, *, epochs: int = 1): ...
def bundle(*, strength: float = 1.0):
    return {{"credit.name": "grpo"}}
'''
NAMES = {
    "credit": "spread", "objective": "push", "importance": "even", "reward": "brief", "context": "Last", "parser": "first",
    "tracker": "Diary", "engine": "Slow", "plan": "Ahead", "signal": "longer", "schedule": "reverse", "method": "bundle",
    "model kind": "Judge", "source": "Short",
}  # fmt: skip
OPTIONS = {
    "credit": "scale", "objective": "bound", "importance": "high", "reward": "cost", "context": "turns", "tracker": "title",
    "engine": "patience", "plan": "depth", "signal": "scale", "schedule": "epochs", "method": "strength",
    "model kind": "margin", "source": "most",
}  # fmt: skip


def recipe_of(place: Path) -> dict[str, Any]:
    own = place / "own.py"
    return {
        **TINY,
        "iterations": 1,
        "credit.name": f"{own}:spread",
        "credit.scale": 3.0,
        "objective.name": f"{own}:push",
        "objective.importance": f"{own}:even",
        "objective.importance_options": {"high": 4.0},
        "agent.context": f"{own}:Last",
        "agent.options": {"turns": 2},
        "agent.parse": f"{own}:first",
        "engine.name": f"{own}:Slow",
        "engine.options": {"patience": 3},
        "source": {"name": f"{own}:Short", "most": 9},
        "reward": [{"name": "brief", "function": f"{own}:brief", "options": {"cost": 0.5}}],
        "run.trackers": [f"{own}:Diary"],
        "run.tracker_options": {f"{own}:Diary": {"title": "mine"}},
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of everything, and a run that was trained with all of it."""
    place = tmp_path_factory.mktemp("home")
    (place / "own.py").write_text(OWN.format(mark=str(place / "mark")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_STATE", str(place / "state"))
        tw.train(**{**recipe_of(place), "name": "own", "out": str(place / "runs")})
    return place


@pytest.fixture
def run(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNWISE_STATE", str(home / "state"))
    return home / "runs" / "own"


@pytest.fixture
def strange(run: Path, home: Path, tmp_path: Path) -> Path:
    """The same run as another user gets it, with a file that was never run here."""
    folder = tmp_path / "strange"
    shutil.copytree(run, folder)
    (tmp_path / "evil.py").write_text(OWN.format(mark=str(tmp_path / "mark")))
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace(f"{home}/own.py", f"{tmp_path}/evil.py"))
    return folder


def test_a_run_whose_parts_all_come_from_a_file_trains_and_says_which_file_it_was(home: Path, run: Path) -> None:
    assert (run / "diary.txt").read_text() == "mine"
    files = json.loads((run / "objects" / "files.json").read_text())
    assert files[f"{home}/own.py:spread"]["path"] == str((home / "own.py").resolve())


def test_credit_of_a_file_is_replayed_exported_shown_measured_and_resumed(home: Path, run: Path, tmp_path: Path) -> None:
    found = replay(run, overrides=["credit.scale=6.0"])
    assert found["credits"][1]["size"] == pytest.approx(2 * found["credits"][0]["size"]) and found["credits"][0]["size"] > 0
    path, _ = export_trajectories(run, tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    shown = Answers(RunList(run.parent))("attempt", {"run": "own", "iteration": "1", "id": "0"})["turns"]
    assert shown[0]["credit"] == pytest.approx(rows[0]["credit"], rel=1e-4)
    assert tw.evaluate(run, n=2).panel_size == 2
    assert tw.train(resume=run, iterations=2).metrics[-1]["iteration"] == 2


def test_a_run_from_elsewhere_asks_before_its_credit_is_imported(strange: Path) -> None:
    with pytest.raises(Untrusted, match=r"evil\.py:"):
        replay(strange)
    assert not (strange.parent / "mark").exists()


@pytest.mark.parametrize("family", REGISTRIES)
def test_every_kind_is_found_in_a_file_and_in_a_module(home: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(home))
    for reference in (f"{home}/own.py:{NAMES[family]}", f"own:{NAMES[family]}"):
        found = registry(family).load(reference)
        assert found.name == reference and found.summary
        if family in OPTIONS:
            wrong = OPTIONS[family][:-1]
            with pytest.raises(TurnwiseError, match=f"unknown option of .*'{wrong}'. Did you mean '{OPTIONS[family]}'"):
                found.bind({wrong: 1}, registry(family).kind)
    sys.modules.pop("own", None)


@pytest.mark.parametrize("family", [family for family, kind in KINDS.items() if not kind.methods and not kind.callable_class])
def test_a_class_where_a_function_is_needed_is_refused_with_an_example(home: Path, family: str) -> None:
    with pytest.raises(TurnwiseError, match=r"Diary is a class\. A function of \(.*\) is needed.*For example: def mine\("):
        registry(family).load(f"{home}/own.py:Diary")


def test_wrong_values_of_options_from_a_file_have_the_message_of_registered_ones(home: Path) -> None:
    for name, options in ((f"{home}/own.py:spread", {"scale": "much"}), ("gigpo", {"omega": "much"})):
        with pytest.raises(TurnwiseError, match=r"takes number.* not 'much'"):
            know(Config.load(None, {**TINY, "credit.name": name, **{f"credit.{key}": value for key, value in options.items()}}))


def test_what_a_piece_of_code_declares_is_kept_with_it(home: Path, tmp_path: Path) -> None:
    assert registry("plan").load(f"{home}/own.py:Ahead").needs == ("env.snapshot",)
    (tmp_path / "declared.py").write_text(
        "import turnwise as tw\n@tw.credit.register('declared', needs=('token.entropy',), parts={'step': None})\n"
        "def declared(rollouts):\n    'Declared.'\n    return rollouts.reward\n"
    )
    try:
        found = tw.credit.algorithms.load(f"{tmp_path}/declared.py:declared")
        assert found.needs == ("token.entropy",) and tw.credit.parts(found.name) == ("step",)
    finally:
        tw.credit.algorithms._entries.pop("declared", None)


def test_a_file_beside_the_recipe_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "project"
    place.mkdir()
    (place / "mine.py").write_text("def credit(rollouts):\n    return rollouts.reward\n")
    (place / "recipe.toml").write_text('credit.name = "mine.py:credit"\nagent.max_prompt_tokens = 400\n')
    monkeypatch.chdir(tmp_path)
    assert Config.load(place / "recipe.toml").credit.name == "project/mine.py:credit"
    monkeypatch.chdir(place)
    assert Config.load(place / "recipe.toml").credit.name == "mine.py:credit"


def test_needs_that_depend_on_an_option_follow_it() -> None:
    entry = tw.credit.algorithms["gae"]
    assert entry.needed({}) == ("turn.value",) and entry.needed({"level": "token"}) == ("token.value",)
    with pytest.raises(TurnwiseError, match=r'credit.name=gae needs a critic: set learner.value.level="token"'):
        Config.load(None, {**TINY, "credit.name": "gae", "credit.level": "token"})


def test_a_class_is_registered_by_the_options_of_its_init() -> None:
    known: Registry[Any] = Registry("thing")

    @known.register("counted", needs=["token.entropy"], gives=("turn.count",))
    class Counted:
        """Counts."""

        def __init__(self, *, start: Annotated[int, Help("where it begins", low=0)] = 3, names: list[str] | None = None):
            self.start, self.names = start, names

    entry = known["counted"]
    assert (entry.needs, entry.gives, entry.summary) == (("token.entropy",), ("turn.count",), "Counts.")
    assert entry.options["start"].kind == "integer ≥ 0" and entry.options["names"].kind == "list or none"
    made = entry.make({"start": 5}, known.kind)
    assert isinstance(made, Counted) and made.start == 5
    with pytest.raises(TurnwiseError, match="option start takes integer ≥ 0, not -1"):
        entry.make({"start": -1}, known.kind)
    with pytest.raises(TurnwiseError, match="needs is a list of texts"):
        known.register("wrong", needs="token.entropy")(Counted)


def test_every_piece_of_a_recipe_has_a_family(home: Path) -> None:
    found = [piece.family for piece in pieces(Config.load(None, recipe_of(home)))]
    expected = {"credit", "objective", "importance", "context", "parser", "engine", "reward", "tracker"}
    assert expected <= set(found) <= set(REGISTRIES)
    assert set(KINDS) == {*REGISTRIES, "environment"} and set(FAMILIES) == {*KINDS, "prompt"}


def package(place: Path, name: str, points: str, **modules: str) -> None:
    info = place / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[turnwise.plugins]\n{points}\n")
    for module, text in modules.items():
        (place / f"{module}.py").write_text(text)


def test_installed_packages_register_and_a_broken_one_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "import turnwise as tw\n"
    piece = "@tw.credit.register('{0}')\ndef {0}(rollouts):\n    'From a package.'\n    return rollouts.reward\n"
    late = f"{line}def setup():\n    @tw.methods.signal('called', gives=('turn.x',))\n    def called(batch, models):\n        'Called.'\n"
    package(tmp_path, "broken-pieces", "bad = broken_pieces", broken_pieces="raise RuntimeError('out of order')\n")
    modules = {"good_pieces": line + piece.format("imported"), "late_pieces": late}
    package(tmp_path, "good-pieces", "one = good_pieces\ntwo = late_pieces:setup", **modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.again()
    try:
        with pytest.warns(UserWarning, match=r"plugin 'bad' \(broken_pieces\) of the package broken-pieces .*out of order"):
            assert "imported" in tw.credit.algorithms
        assert tw.methods.signals["called"].gives == ("turn.x",)
    finally:
        tw.credit.algorithms._entries.pop("imported", None)
        tw.methods.signals._entries.pop("called", None)
        for module in ("broken_pieces", "good_pieces", "late_pieces"):
            sys.modules.pop(module, None)


def algos(*words: str) -> Any:
    found = CliRunner().invoke(app, ["algos", *words, "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_algos_lists_every_kind_with_its_meaning() -> None:
    found = algos()
    assert {row["family"] for row in found} >= {"credit", "objective", "importance", "context", "parser", "prompt", "engine", "tracker"}
    assert all(row["meaning"] for row in found if row["family"] != "environment")
    assert [row["name"] for row in algos("credit")] == tw.credit.algorithms.names()
    listed = CliRunner().invoke(app, ["algos"]).stdout
    assert all(f"{family.capitalize()}: " in listed for family in FAMILIES)


def test_algos_shows_one_piece_with_options_and_needs_also_from_a_file(home: Path) -> None:
    [row] = algos("gae")
    assert row["needs"] == ["{level}.value"] and row["options"]["level"]["takes"] == "turn|token"
    [own] = algos("credit", f"{home}/own.py:spread")
    assert own["family"] == "credit" and own["options"]["scale"]["default"] == 2.0
    [plan] = algos("plan", f"{home}/own.py:Ahead")
    assert plan["needs"] == ["env.snapshot"]
    wrong = CliRunner().invoke(app, ["algos", "gigop"])
    assert wrong.exit_code != 0 and "Did you mean 'gigpo'" in str(wrong.exception or wrong.output)
    unsaid = CliRunner().invoke(app, ["algos", f"{home}/own.py:spread"])
    assert unsaid.exit_code != 0 and "say which kind of code" in str(unsaid.exception or unsaid.output)
