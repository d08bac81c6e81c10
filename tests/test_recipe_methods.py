"""`method.name` in recipes: which words win, from TOML, the command line and Python, and what a run's record holds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.config.methods import unread
from turnwise.config.options import Help
from turnwise.config.recipes import parse_override
from turnwise.config.schema import Config
from turnwise.config.writing import content_hash, to_toml
from turnwise.methods.registry import methods

QUICKSTART = Path(__file__).parent.parent / "recipes" / "quickstart.toml"
FILE = """
def mine(*, gamma: float = 0.5):
    '''Settings of one's own.'''
    return {"credit.name": "credit.py:count", "learner.epochs": 2, "learner.lr": gamma / 1000}
"""


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    def pair(*, norm: Annotated[str, Help("how to scale")] = "std", lr: float = 1e-3) -> dict[str, Any]:
        """Two pieces that belong together."""
        return {"credit.name": "grpo", "credit.norm": norm, "objective.name": "gspo", "objective.aggregation": "turn", "learner.lr": lr}

    def watched(*, wide: bool = True) -> dict[str, Any]:
        """Signals before credit."""
        return {"signal": [{"name": "a.py:first", "wide": wide}, {"name": "a.py:second"}], "plan.name": "plain"}

    notes = {"changes": "credit, objective", "costs": "nothing", "evidence": "code"}
    methods.register("pair", paper="Nobody 2026", **notes)(pair)
    methods.register("watched")(watched)
    yield
    for name in ("pair", "watched"):
        methods._entries.pop(name, None)


def load(source: Any, changes: Any = None) -> Config:
    """A recipe, with prompts that fit the tiny model."""
    more = list(changes.items()) if isinstance(changes, dict) else [parse_override(text) for text in changes or ()]
    return Config.load(source, {"agent.max_prompt_tokens": 500, **dict(more)})


def recipe(folder: Path, text: str, name: str = "mine.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def names(config: Config) -> list[str]:
    return [signal.name for signal in config.signal]


def test_a_method_in_a_file_yields_to_the_files_words_and_wins_over_what_it_extends(tmp_path: Path) -> None:
    recipe(tmp_path, '[learner]\nlr = 1e-5\nepochs = 3\n[credit]\nname = "rloo"\nnorm = "std"\n', "base.toml")
    path = recipe(tmp_path, 'extends = "base.toml"\n[method]\nname = "pair"\n[credit]\nnorm = "none"\n[objective]\naggregation = "token"\n')
    config = load(path)
    assert config.credit.name == "grpo"
    assert config.credit.options == {"norm": "none"}
    assert (config.objective.name, config.objective.aggregation) == ("gspo", "token")
    assert (config.learner.lr, config.learner.epochs) == (1e-3, 3)


def test_a_method_on_the_command_line_wins_over_the_file_and_yields_to_other_overrides() -> None:
    config = load(QUICKSTART, ["method.name=pair", "method.norm=none", "learner.lr=0.02"])
    assert config.credit.name == "grpo"
    assert config.credit.options == {"norm": "none"}, "options of gigpo that the file sets are gone"
    assert (config.objective.name, config.objective.aggregation) == ("gspo", "turn")
    assert config.objective.kl == "loss", "a key of the section stays"
    assert config.learner.lr == 0.02
    assert config.name == "quickstart-pair"


def test_options_of_an_objective_that_was_replaced_do_not_stay_behind() -> None:
    config = load({"objective": {"clip_low": 0.1, "kl": "loss"}}, {"method.name": "pair"})
    assert config.objective.name == "gspo"
    assert config.objective.options == {}
    assert config.objective.kl == "loss"


def test_an_option_of_the_method_changes_what_follows_from_it_and_no_other_word(tmp_path: Path) -> None:
    path = recipe(tmp_path, '[method]\nname = "pair"\n[objective]\naggregation = "token"\n[credit]\nnorm = "none"\n')
    config = load(path, ["method.lr=0.5"])
    assert config.learner.lr == 0.5
    assert (config.objective.aggregation, config.credit.options) == ("token", {"norm": "none"})
    assert load(path, ["method.norm=std", "method.lr=0.5"]).learner.lr == 0.5


def test_a_method_that_is_replaced_takes_its_settings_with_it(tmp_path: Path) -> None:
    path = recipe(tmp_path, '[method]\nname = "watched"\nwide = false\n[learner]\nlr = 0.3\n')
    assert load(path).plan is not None
    config = load(path, ["method.name=pair"])
    assert config.plan is None
    assert config.signal == []
    assert config.learner.lr == 1e-3
    child = recipe(tmp_path, 'extends = "mine.toml"\n[method]\nname = "pair"\n', "child.toml")
    assert load(child).plan is None
    assert load(path, ["method=none"]).method is None
    assert load(path, ["method=none"]).plan is None


def test_signals_of_a_method_come_first_and_none_is_doubled(tmp_path: Path) -> None:
    own = '[[signal]]\nname = "a.py:own"\n[[signal]]\nname = "a.py:first"\nscale = 2\n'
    path = recipe(tmp_path, f'[method]\nname = "watched"\n{own}')
    config = load(path)
    assert names(config) == ["a.py:first", "a.py:second", "a.py:own"]
    assert config.signal[0].options == {"wide": True, "scale": 2}
    on_top = load(recipe(tmp_path, own, "plain.toml"), {"method.name": "watched"})
    assert names(on_top) == ["a.py:first", "a.py:second", "a.py:own"]
    assert names(load(path, {"signal": []})) == [], "the whole list, given on the command line, stands as it is"


def test_the_record_of_a_run_holds_the_settings_and_is_read_as_it_stands(tmp_path: Path) -> None:
    config = load(QUICKSTART, ["method.name=watched", "signal=[]", "method.wide=false"])
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").touch()
    written = recipe(folder, to_toml(config), "config.toml")
    again = load(written)
    assert again.model_dump() == config.model_dump()
    assert again.signal == []
    assert to_toml(again) == to_toml(config)
    assert load(again).model_dump() == config.model_dump()
    assert load(written, {"learner.lr": 0.1}).signal == []


def test_an_option_may_change_on_top_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    written = recipe(tmp_path, to_toml(load(QUICKSTART, ["method.name=pair", "learner.epochs=4"])), "config.toml")
    config = load(written, ["method.lr=0.25"])
    assert (config.learner.lr, config.learner.epochs) == (0.25, 4)


def test_another_method_on_top_of_a_record_leaves_nothing_of_the_first_behind(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    own = ["learner.epochs=4", "signal=[{name='a.py:first'}, {name='a.py:own'}]"]
    written = recipe(tmp_path, to_toml(load(QUICKSTART, ["method.name=watched", *own])), "config.toml")
    config = load(written, ["method.name=ppo"])
    assert config.plan is None
    assert names(config) == ["a.py:own"]
    assert config.learner.epochs == 4
    assert config.learner.value is not None
    written = recipe(tmp_path, to_toml(load(QUICKSTART, ["method.name=ppo"])), "config.toml")
    config = load(written, ["method.name=gigpo"])
    assert config.learner.value is None
    assert config.objective.kl == "loss"
    assert load(written, ["method=none"]).learner.value is None


def test_a_method_by_name_equals_its_settings_by_hand() -> None:
    by_name = load(None, {"method": "pair"})
    by_hand = load(
        None,
        {
            "credit.name": "grpo",
            "credit.norm": "std",
            "objective.name": "gspo",
            "objective.aggregation": "turn",
            "learner.lr": 1e-3,
        },
    )
    assert content_hash(by_name) == content_hash(by_hand)
    assert by_name.model_dump(exclude={"method", "name"}) == by_hand.model_dump(exclude={"method", "name"})


def test_wrong_words_about_methods_are_told(tmp_path: Path) -> None:
    with pytest.raises(tw.TurnwiseError, match=r"unknown method 'pear'.*pair"):
        load(None, {"method.name": "pear"})
    with pytest.raises(tw.TurnwiseError, match="unknown option of method 'pair': 'nrm'"):
        load(None, {"method": {"name": "pair", "nrm": 1}})
    with pytest.raises(tw.TurnwiseError, match="the recipe names none"):
        load(None, {"method.gamma": 1})
    path = tmp_path / "bad.py"
    path.write_text("def bad():\n    return {'seed': 3}\n\ndef text():\n    return 'x'\n")
    with pytest.raises(tw.TurnwiseError, match="sets 'seed'"):
        load(None, {"method.name": f"{path}:bad"})
    with pytest.raises(tw.TurnwiseError, match="returns str"):
        load(None, {"method.name": f"{path}:text"})


def test_a_method_from_a_file_names_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "credit.py").write_text("def count(rollouts):\n    return rollouts.t * 1.0\n")
    path = recipe(tmp_path, '[method]\nname = "mine.py:mine"\ngamma = 2.0\n')
    config = load(path)
    assert config.credit.name == f"{tmp_path}/credit.py:count"
    assert (config.learner.epochs, config.learner.lr) == (2, 0.002)
    with unread():
        assert load(path).learner.epochs == 1, "no code is run"
    shown = CliRunner().invoke(app, ["train", str(path), "--dry-run", "agent.max_prompt_tokens=500"])
    assert "runs no code of yours" in shown.output


def test_the_code_of_a_run_from_elsewhere_is_not_run_for_its_method(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('was run')\n")
    (tmp_path / "metrics.jsonl").touch()
    text = to_toml(load(None)).replace('method = "none"', "").replace("[env]\n", f'[method]\nname = "{tmp_path}/mine.py:f"\n[env]\n')
    written = recipe(tmp_path, text, "config.toml")
    config = load(written)
    assert config.method is not None
    with pytest.raises(tw.TurnwiseError, match=r"mine\.py:f.*--trust"):
        config.trusted()
    with pytest.raises(tw.TurnwiseError, match="name it as well"):
        load(written, {"method.gamma": 1.0})


def test_python_takes_a_method_by_name_by_section_and_as_a_function(tmp_path: Path) -> None:
    def small() -> dict[str, Any]:
        return {"learner.epochs": 5}

    from turnwise.setup.arguments import Given, as_recipe

    values, changes, _ = as_recipe(QUICKSTART, Given(), {"method": small})
    assert load(values, changes).learner.epochs == 5
    assert load(*as_recipe(QUICKSTART, Given(), {"method": {"name": "pair", "lr": 0.1}})[:2]).learner.lr == 0.1
    assert tw.Recipe.load({"method": "pair", "agent.max_prompt_tokens": 500}).objective.name == "gspo"


def test_algos_shows_what_a_method_sets_changes_and_costs() -> None:
    shown = " ".join(CliRunner().invoke(app, ["algos", "pair"]).output.replace("│", " ").split())
    assert 'Sets: objective.name = "gspo"' in shown
    assert "Changes: credit, objective" in shown
    assert "Costs: nothing" in shown
    assert "Evidence: code" in shown
    assert "Needs of credit grpo: group.peers" in shown
    listed = " ".join(CliRunner().invoke(app, ["algos"]).output.split())
    assert "Two pieces that belong together. Changes: credit, objective." in listed


def test_a_word_of_several_kinds_is_shown_in_all(tmp_path: Path) -> None:
    def grpo() -> dict[str, Any]:
        """A method with the name of a credit function."""
        return {"credit.name": "grpo"}

    before = methods._entries.pop("grpo", None) if "grpo" in methods else None
    methods.register("grpo")(grpo)
    try:
        shown = CliRunner().invoke(app, ["algos", "grpo"]).output
    finally:
        methods._entries.pop("grpo")
        if before is not None:
            methods._entries["grpo"] = before
    assert "credit: grpo" in shown
    assert "method: grpo" in shown


def test_a_config_without_a_method_says_so(tmp_path: Path) -> None:
    assert tomllib.loads(to_toml(load(None)))["method"] == "none"
