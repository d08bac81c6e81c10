"""`method.name` in recipes: which words win, from TOML, the command line and Python, and what a run's record holds."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.config.options import Help
from turnwise.credit.registry import algorithms
from turnwise.methods.registry import methods
from turnwise.recipe.merging import unread
from turnwise.recipe.reading import parse_override
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, to_toml
from turnwise.runs.records import flatten

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
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
    assert load({"objective": {"clip_low": 0.1}}, {"method.name": "pair"}).objective.options == {}, "and those of the former objective"
    assert (config.objective.name, config.objective.aggregation) == ("gspo", "turn")
    assert config.objective.kl == "loss", "a key of the section stays"
    assert config.learner.lr == 0.02
    assert config.name == "quickstart-pair"


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


def test_the_method_of_a_record_cannot_change(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    written = recipe(tmp_path, to_toml(load(QUICKSTART, ["method.name=pair", "learner.epochs=4"])), "config.toml")
    assert load(written, ["method.name=pair", "learner.epochs=5"]).learner.epochs == 5
    for change in ("method.lr=0.25", "method.name=ppo", "method=none", "method.faithful=true"):
        with pytest.raises(tw.TurnwiseError, match="Start from the recipe"):
            load(written, [change])
    plain = recipe(tmp_path, to_toml(load(QUICKSTART)), "config.toml")
    assert load(plain, ["method.name=ppo"]).learner.value is not None, "a record without a method may get one"


def test_a_method_by_name_equals_its_settings_by_hand() -> None:
    by_name = load(None, {"method": "pair"})
    parts = {"credit.name": "grpo", "credit.norm": "std", "objective.name": "gspo", "objective.aggregation": "turn", "learner.lr": 1e-3}
    by_hand = load(None, parts)
    assert tomllib.loads(to_toml(by_hand))["method"] == "none"
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
    with pytest.raises(tw.TurnwiseError, match="Start from the recipe"):
        load(written, {"method.gamma": 1.0})
    (tmp_path / "mine.py").write_text("def f():\n    return {'learner.epochs': 2}\n")
    written = recipe(tmp_path, to_toml(load(None, {"method.name": f"{tmp_path}/mine.py:f"})), "config.toml")
    (tmp_path / "mine.py").write_text("raise SystemExit('was run')\n")
    config = load(written, {"learner.lr": 0.1})
    assert (config.learner.epochs, config.learner.lr) == (2, 0.1), "the record holds what the method brought"


def test_python_takes_a_method_by_name_by_section_and_as_a_function(tmp_path: Path) -> None:
    def small() -> dict[str, Any]:
        return {"learner.epochs": 5}

    from turnwise.setup.arguments import Given, read_config

    assert read_config(QUICKSTART, Given(), {"method": small}).learner.epochs == 5
    assert read_config(QUICKSTART, Given(), {"method": {"name": "pair", "lr": 0.1}}).learner.lr == 0.1
    assert tw.Recipe.load({"method": "pair", "agent.max_prompt_tokens": 500}).objective.name == "gspo"


def test_algos_shows_what_a_method_sets_changes_and_costs_and_what_its_authors_took() -> None:
    shown = " ".join(CliRunner().invoke(app, ["algos", "pair"]).output.replace("│", " ").split())
    assert 'Sets: objective.name = "gspo"' in shown
    assert "Changes: credit, objective" in shown
    assert "Costs: nothing" in shown
    assert "Evidence: code" in shown
    assert "Needs of credit grpo: group.peers" in shown
    found = CliRunner().invoke(app, ["methods", "pair"])
    listed = " ".join(found.output.split())
    assert found.exception is None, repr(found.exception)
    assert "pair Two pieces that belong together. changes: credit, objective" in listed and "costs: nothing" in listed
    assert "pair" in CliRunner().invoke(app, ["algos"]).output
    both = CliRunner().invoke(app, ["algos", "grpo"]).output
    assert "credit: grpo" in both and "method: grpo" in both
    authors = " ".join(CliRunner().invoke(app, ["algos", "method", "arpo"]).output.replace("│", " ").split())
    assert 'Sets if method.faithful: objective.aggregation = "token"' in authors
    [entry] = json.loads(CliRunner().invoke(app, ["algos", "method", "arpo", "--json"]).output)
    assert entry["authors"]["objective.aggregation"] == "token" and "objective.aggregation" not in entry["settings"]


# -- what a method is, and what its authors took -------------------------------------------------------------------------------------

OWN = methods.names()
SHARED = ("aggregation", "constant", "kl", "kl_coef", "kl_kind", "entropy_coef", "importance", "importance_options")
PER_TURN = ("gamma", "norm", "weighting", "invalid_penalty")
# The shared settings that are what a method proposes, or that it needs to be correct. No other method may set any.
PARTS: dict[str, set[str]] = {
    "actguide": {"learner.old_logprobs"},
    "bi_level_gae": {"credit.norm"},
    "dapo": {"objective.aggregation", "objective.clip_high"},
    "dr_grpo": {"objective.aggregation", "objective.constant", "credit.norm"},
    "eapo": {"credit.gamma"},
    "epo": {"objective.entropy_coef"},
    "gpg": {"objective.kl", "credit.norm", "learner.epochs", "learner.minibatches"},
    "graph_gpo": {"credit.gamma"},
    "icepop": {"objective.importance", "objective.importance_options", "learner.old_logprobs"},
    "ipa": {"objective.importance", "objective.importance_options", "learner.old_logprobs"},
    "loop": {"credit.norm"},
    "pooled_td": {"credit.norm"},
    "ppo": {"credit.gamma", "credit.norm"},
    "reinforce_pp": {"credit.norm"},
    "reinforce_pp_baseline": {"credit.norm"},
    "replay_success": {"learner.old_logprobs"},
    "rloo": {"credit.norm"},
    "seeupo": {"learner.epochs", "learner.minibatches"},
    "starpo_s": {"objective.clip_high", "objective.kl", "credit.gamma", "credit.norm"},
    "strata": {"collect.group_size"},
    "turn_ppo": {"credit.norm"},
    "vineppo": {"credit.gamma"},
    "vpr": {"credit.norm"},
}
RECIPE: dict[str, Any] = {
    "credit": {"name": "gigpo", "gamma": 0.7, "norm": "none", "weighting": "step", "invalid_penalty": 0.3, "omega": 0.5},
    "objective": {"aggregation": "trajectory", "kl": "loss", "kl_coef": 0.03, "kl_kind": "k2", "entropy_coef": 0.004}
    | {"clip_low": 0.15, "clip_high": 0.25},
    "learner": {"old_logprobs": "engine", "epochs": 2, "minibatches": 3, "value": {"level": "turn", "clip": 0.4}},
    "collect": {"group_size": 6},
    "models": {"teacher": {"copy_of": "policy"}},
}


PIECES = ("name", "method.", "plan.", "signal", "schedule.", "models.", "credit.", "objective.", "agent.", "env.options.", "learner.value.")


def shared_settings(config: Config) -> dict[str, Any]:
    """The settings that every method has in the same meaning; options of credit and objective by their names."""
    found = {f"objective.{key}": getattr(config.objective, key) for key in SHARED}
    found |= {f"learner.{key}": getattr(config.learner, key) for key in ("old_logprobs", "epochs", "minibatches")}
    found |= {"collect.group_size": config.collect.group_size}
    if config.learner.value is not None:
        found["learner.value.clip"] = config.learner.value.clip
    credit = algorithms[config.credit.name]
    known = credit.bind(config.credit.options, "credit")
    found |= {f"credit.{key}": known[key] for key in PER_TURN if key in known}
    if config.objective.name in ("clip", "epo", "serl", "t_star"):  # whose clip is that of PPO
        found |= {f"objective.{key}": config.objective.options.get(key, 0.2) for key in ("clip_low", "clip_high")}
    return found


@pytest.mark.parametrize("name", OWN)
def test_a_method_leaves_shared_settings_to_the_recipe_unless_they_are_the_method(name: str) -> None:
    recipe, config = load(RECIPE), load(RECIPE, {"method.name": name})
    before, now = shared_settings(recipe), shared_settings(config)
    changed = {key for key, value in now.items() if value != before[key]}
    before, now = flatten(recipe.model_dump()), flatten(config.model_dump())
    changed |= {key for key, value in now.items() if value != before.get(key) and not key.startswith(PIECES)} - {"collect.shared_prefix"}
    assert changed <= PARTS.get(name, set())
    assert config.method is not None and not config.method.faithful


@pytest.mark.parametrize("name", OWN)
def test_a_faithful_method_takes_its_authors_values_too(name: str) -> None:
    config = load(RECIPE, {"method.name": name, "method.faithful": True})
    assert config.method is not None
    flat = flatten(config.model_dump())
    authors = config.method.authors
    assert {key: flat[key] for key in authors} == dict(authors)
    assert authors == load(RECIPE, {"method.name": name}).method.authors  # type: ignore[union-attr]
    untouched = {key: value for key, value in shared_settings(config).items() if key not in authors}
    recipe = shared_settings(load(RECIPE))
    assert {key for key, value in untouched.items() if value != recipe[key]} <= PARTS.get(name, set())


def test_an_option_of_the_method_counts_as_the_method() -> None:
    assert load(RECIPE, ["method.name=igpo"]).credit.options["gamma"] == 0.7
    assert load(RECIPE, ["method.name=igpo", "method.gamma=0.9"]).credit.options["gamma"] == 0.9
    assert load(RECIPE, ["method.name=igpo", "method.gamma=0.9", "method.faithful=true"]).credit.options["gamma"] == 0.9
    assert load(RECIPE, ["method.name=grpo", "credit.norm=std", "objective.aggregation=turn"]).credit.options["norm"] == "std"


def test_only_options_of_the_same_meaning_stay_when_a_method_names_another_credit() -> None:
    graph = {"credit": {"name": "graph_gpo", "gamma": 0.3, "norm": "none"}}
    hgpo = load(graph, {"method.name": "hgpo"}).credit.options
    assert "gamma" not in hgpo, "a discount per graph distance is none per turn"
    assert hgpo["norm"] == "none"
    assert load(RECIPE, {"method.name": "turn_ppo"}).credit.options["gamma"] == 0.7, "GAE over turns discounts turns"
    assert load(RECIPE, {"method.name": "ppo"}).credit.options["gamma"] == 1.0
    assert "omega" not in load(RECIPE, {"method.name": "grpo"}).credit.options
    no_discount = {"credit": {"name": "grpo"}}
    gammas = {name: load(no_discount, {"method.name": name}).credit.options.get("gamma", 0.95) for name in ("gigpo", "igpo", "ui_s1")}
    assert set(gammas.values()) == {0.95}, "where the recipe has no discount, all methods have the same"


def test_options_of_one_meaning_have_one_default_in_all_objectives() -> None:
    from turnwise.objectives import algorithms as objectives
    from turnwise.recipe.merging import meaning

    for name in ("clip_low", "clip_high", "dual_clip"):
        usual = objectives["clip"].options[name].default
        same = [entry for entry in objectives if meaning(name, entry, {}) == meaning(name, objectives["clip"], {})]
        assert {entry.name: entry.options[name].default for entry in same if entry.name != "clip_cov"} == {
            entry.name: usual for entry in same if entry.name != "clip_cov"
        }


def test_words_of_the_user_win_over_authors_and_the_last_word_on_faithful_counts(tmp_path: Path) -> None:
    path = recipe(tmp_path, '[method]\nname = "arpo"\nfaithful = true\n[objective]\nkl = "loss"\n')
    config = load(path)
    assert (config.objective.kl, config.objective.aggregation) == ("loss", "token")
    assert load(path, ["method.faithful=false"]).objective.aggregation == load({}).objective.aggregation != "token"
    assert load(path, ["method.name=archer"]).objective.aggregation == "turn_sum", "faithful stays when another method is named"
    plain = recipe(tmp_path, '[method]\nname = "arpo"\n[objective]\naggregation = "trajectory"\n', "plain.toml")
    assert load(plain, ["method.faithful=true"]).objective.aggregation == "token", "said on the command line, above the file"


def test_a_record_says_what_the_authors_took_and_reads_back_the_same(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    for faithful in (False, True):
        config = load(QUICKSTART, {"method.name": "arpo", "method.faithful": faithful})
        written = recipe(tmp_path, to_toml(config), "config.toml")
        method = tomllib.loads(written.read_text())["method"]
        assert method["faithful"] is faithful
        assert method["authors"]["objective.aggregation"] == "token"
        again = load(written)
        assert again.model_dump() == config.model_dump()
        assert content_hash(again) == content_hash(config)
        assert to_toml(again) == to_toml(config)
    with pytest.raises(tw.TurnwiseError, match="Start from the recipe"):
        load(written, ["method.faithful=false"])


def test_a_plain_table_of_a_method_of_ones_own_is_all_the_method(tmp_path: Path) -> None:
    text = """
from turnwise.methods import Brings

def plain():
    return {"objective.aggregation": "token", "credit.name": "rloo"}

def parted(*, bound: float | None = None):
    authors = {"objective.aggregation": "token", "objective.clip_high": 0.1}
    return Brings({"credit.name": "rloo", "objective.clip_high": bound}, authors)
"""
    (tmp_path / "mine.py").write_text(text)
    base = {"objective": {"aggregation": "trajectory"}}
    assert load(base, {"method.name": f"{tmp_path}/mine.py:plain"}).objective.aggregation == "token"
    parted = f"{tmp_path}/mine.py:parted"
    config = load(base, {"method.name": parted})
    assert (config.objective.aggregation, config.objective.options) == ("trajectory", {})
    config = load(base, {"method.name": parted, "method.faithful": True, "method.bound": 0.4})
    assert (config.objective.aggregation, config.objective.options) == ("token", {"clip_high": 0.4})
