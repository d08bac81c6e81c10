"""Recipes: reading, overriding, extending, errors, writing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.config import addons
from turnwise.recipe.reading import is_override, parse_override
from turnwise.recipe.schema import RENAMED, RETIRED, Config, fields
from turnwise.recipe.writing import content_hash, help_config, to_toml
from turnwise.setup.arguments import Given
from turnwise.setup.early import read_source
from turnwise.setup.evaluated import source_config

RECIPES = ROOT / "recipes"
SMALL = ["agent.max_prompt_tokens=500", "engine.max_tokens=100"]


def test_overrides_are_toml_values_and_bare_words_are_text() -> None:
    words = ["credit.name=grpo", "credit.norm=none", "seed=3", "learner.lr=2e-5", "agent.show_actions=false", "engine.stop=['a', 'b']"]
    config = Config.load(None, [*SMALL, *words, "env.options.size=tiny"])
    assert (config.credit.name, config.seed, config.learner.lr, config.agent.show_actions) == ("grpo", 3, 2e-5, False)
    assert config.engine.stop == ["a", "b"] and config.credit.options == {"norm": "none"} and config.env.options == {"size": "tiny"}
    assert Config.load(None, {"seed": 3, "agent.max_prompt_tokens": 500}).seed == 3


def test_an_entry_of_a_list_of_sections_is_overridden_by_its_number(tmp_path: Path) -> None:
    text = "[plan]\nname='c.py:C'\ndepth=3\n[[signal]]\nname='a.py:a'\nscale=1\n[[signal]]\nname='b.py:b'\nscale=2\n"
    recipe = write(tmp_path / "two.toml", text)
    changed = Config.load(recipe, [*SMALL, "signal.1.scale=5", "signal.0.name=d.py:d", "plan.name=plain"])
    assert [(own.name, own.options) for own in changed.signal] == [("d.py:d", {}), ("b.py:b", {"scale": 5})]
    assert changed.plan is not None and changed.plan.options == {}, "options belong to the name that they were given with"


def test_the_folder_of_a_run_is_no_override_though_its_name_has_equals_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "quickstart-credit.name=grpo-seed=1"
    assert is_override(name) and is_override("credit.name=grpo") and is_override(f"agent.instructions={'word ' * 1000}")
    Path(name).mkdir()
    assert not is_override(name) and not is_override(f"{tmp_path}/{name}")
    assert not is_override("runs/credit.name=grpo-seed=9"), "a run that is not there is a path all the same"


def test_none_unsets_what_may_be_empty() -> None:
    assert Config.load(None, [*SMALL, "learner.clip=none", "env.timeout=none"]).learner.clip is None
    with pytest.raises(TurnwiseError, match=r"learner\.lr"):
        Config.load(None, [*SMALL, "learner.lr=none"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["credt.name=grpo"], ["unknown key credt", "Did you mean credit?"]),
        (["collect.group_siz=4"], ["unknown key collect.group_siz", "Did you mean collect.group_size?"]),
        (["learner.temperature=1"], ["unknown key learner.temperature", "engine.temperature"]),
        (["credit.gama=0.9"], ["credit", "'gama'", "'gamma'"]),
        (["credit.name=gigop"], ["'gigop'", "'gigpo'"]),
        (["objective.clip_hihg=1"], ["objective", "'clip_hihg'", "'clip_high'"]),
        (["learner.lr=-1"], ["learner.lr: must be greater than 0, got -1"]),
        (["learner.lr=fast"], ["learner.lr: must be a number, got 'fast'"]),
        (["iterations=2.5"], ["iterations: must be an integer, got 2.5"]),
        (["model.lora=16"], ["model.lora: must be a table of settings, got 16"]),
        (["learner.schedule=stairs"], ["learner.schedule", "'cosine'", "'stairs'"]),
        (["collect.group_size=1"], ["gigpo", "at least 2"]),
        (["credit.name=gae"], ["needs a critic", "learner.value.level"]),
        (["eval.split=train"], ["eval.split and env.split"]),
        (["objective.kl=loss", "objective.kl_coef=0"], ["kl_coef=0"]),
        (["agent.max_prompt_tokens=5000", "model.tiny.max_length=1024"], ["5100", "model.tiny.max_length=1024"]),
        (["learner.lr=-1", "seed=-2", "nonsense=1"], ["learner.lr", "seed", "nonsense"]),
        (["seed"], ["key=value"]),
        (["seed=1", "seed.deep=1"], ["seed is 1, not a section"]),
        (["name=a/b"], ["name"]),
        (["signal=[{name='x.py:y'}]", "signal.1.weight=1"], ["no entry 1", "has 1"]),
        (["signal=[{name='x.py:y'}]", "signal.0=1"], ["signal is a list", "signal.0.KEY"]),
        (["learner.lr=true"], ["learner.lr: a number is needed, not true"]),
        (["iterations=true"], ["iterations: an integer is needed, not true"]),
        (["env.max_turns=true"], ["env.max_turns: an integer is needed"]),
        (["learner.betas=[true, 0.9]"], ["learner.betas: a number is needed, not true"]),
        (['reward=[{name="a", function="x.py:f", weight=true}]'], ["weight: a number is needed"]),
        (["credit.gamma=true"], ["option gamma takes number"]),
        (["collect.shuffle=1"], ["collect.shuffle: true or false is needed, not 1"]),
        (["learner.gradient_checkpointing=1"], ["true or false is needed"]),
        (['engine.sleep="1"'], ["true or false is needed"]),
        (["credit.once=1"], ["option once takes true|false"]),
        (["learner.lr=inf"], ["finite number"]),
        (["eval.temperature=nan"], ["finite number"]),
    ],
)
def test_every_problem_names_the_key_and_what_would_be_right(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(TurnwiseError) as caught:
        Config.load(None, [*SMALL, *overrides])
    for word in words:
        assert word in str(caught.value)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_recipe_extends_another_and_another_algorithm_starts_with_its_own_options(tmp_path: Path) -> None:
    write(
        tmp_path / "base.toml",
        'seed = 5\n[credit]\nname = "gigpo"\nomega = 0.5\n[agent]\nmax_prompt_tokens = 300\n[model.tiny]\nlayers = 2\n',
    )
    (tmp_path / "deep").mkdir()
    child = write(tmp_path / "deep" / "child.toml", 'extends = "../base.toml"\n[credit]\nname = "grpo"\nnorm = "none"\n')
    config = Config.load(child)
    assert config.seed == 5 and config.credit.options == {"norm": "none"} and config.agent.max_prompt_tokens == 300
    assert Config.load(tmp_path / "base.toml", ["credit.name=rloo"]).credit.options == {}
    assert Config.load(tmp_path / "base.toml", ["credit.name=gigpo"]).credit.options == {"omega": 0.5}


def test_another_environment_starts_without_the_options_of_the_one_before() -> None:
    overrides = ["env.options.size=9", "env.name=other"]
    config = Config.load(RECIPES / "quickstart.toml", overrides)
    assert config.env.options == {"size": 9} and config.env.tasks == 4000
    assert Config.load(RECIPES / "quickstart.toml", ["env.name=household"]).env.options["size"] == "tiny"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_recipes_that_ship_are_right(path: Path) -> None:
    config = Config.load(path)
    assert config.name != "run" and path.read_text().startswith("# ")


@pytest.mark.parametrize("name", ["quickstart", "quickstart.toml", "recipes/quickstart.toml", "recipes/quickstart"])
def test_a_recipe_that_ships_is_known_by_its_name_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = Config.load(RECIPES / "quickstart.toml")
    assert Config.load(name) == shipped
    assert Config.load({"extends": name, "seed": 3}).seed == 3
    deep = tmp_path / "deep"
    deep.mkdir()
    assert Config.load(write(deep / "mine.toml", f'extends = "{name}"')) == shipped
    assert read_source(name, Given(), {}).config == shipped and source_config(name, None, {})[0] == shipped


def test_a_file_of_the_user_comes_before_a_recipe_that_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "quickstart.toml", 'extends = "own-env"\nname = "mine"')
    write(tmp_path / "above.toml", 'extends = "quickstart"')
    assert [Config.load(name).name for name in ("quickstart", "quickstart.toml", "above")] == ["mine"] * 3
    (tmp_path / "own-env").mkdir()
    assert Config.load("own-env").name == "own-env"  # a folder is not a recipe
    with pytest.raises(TurnwiseError, match="neither a run"):  # but it may be what is evaluated
        read_source("own-env", Given(), {})


def test_an_unknown_recipe_lists_those_that_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TurnwiseError, match=r"no recipe quikstart: .*Did you mean quickstart\?") as told:
        Config.load("quikstart")
    with pytest.raises(TurnwiseError, match=r"no recipe .*elsewhere/own-env\.toml") as below:
        Config.load(write(tmp_path / "mine.toml", 'extends = "elsewhere/own-env.toml"'))
    with pytest.raises(TurnwiseError, match="no such folder") as source:
        read_source("quikstart", Given(), {})
    for path in RECIPES.glob("*.toml"):
        assert all(path.stem in str(error.value) for error in (told, below, source))


def test_the_built_package_has_every_recipe(tmp_path: Path) -> None:
    build = "from setuptools import setup; setup()"
    arguments = ["--quiet", "egg_info", "--egg-base", str(tmp_path), "build_py", "-d", str(tmp_path / "built")]
    subprocess.run([sys.executable, "-c", build, *arguments], cwd=RECIPES.parent, check=True, capture_output=True)
    recipes = tmp_path / "built" / "turnwise" / "recipes"
    assert not recipes.is_symlink()
    assert {path.name: path.read_text() for path in recipes.iterdir()} == {path.name: path.read_text() for path in RECIPES.glob("*.toml")}


LIMITS = ("agent.max_prompt_tokens", "engine.max_tokens", "model.tiny.max_length")


def to_dict(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json")


def limits(config: Config) -> tuple[int, int, int]:
    return config.agent.max_prompt_tokens, config.engine.max_tokens, config.model.tiny.max_length


@given(st.fixed_dictionaries({}, optional={name: st.integers(64, 5000) for name in LIMITS}))
def test_limits_that_are_left_open_leave_room_for_each_other(given: dict[str, int]) -> None:
    room = given.get(LIMITS[2])
    if room is not None and given.get(LIMITS[0], 8) + given.get(LIMITS[1], 1) > room:
        with pytest.raises(TurnwiseError, match=r"more than model\.tiny\.max_length"):
            Config.load(None, given)
        return
    config = Config.load(None, given)
    prompt, response, length = limits(config)
    assert prompt + response <= length
    assert all(limits(config)[place] == given[name] for place, name in enumerate(LIMITS) if name in given)
    assert limits(Config.load(None, {**dict.fromkeys(LIMITS, "none"), **given})) == (prompt, response, length)
    assert limits(Config.load(config)) == (prompt, response, length)  # what was resolved is taken at its word


def test_the_limits_of_a_pretrained_model_are_those_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1024}')
    assert limits(Config.load(None, {"model.path": str(tmp_path)}))[:2] == (768, 256)
    assert limits(Config.load(None, {"model.path": str(tmp_path), "agent.max_prompt_tokens": 1000}))[:2] == (1000, 24)
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 32768}}')
    assert limits(Config.load(None, {"model.path": str(tmp_path)}))[:2] == (2048, 512)
    for text in ("[]", '{"max_position_embeddings": "many"}', "not JSON"):
        (tmp_path / "config.json").write_text(text)
        assert limits(Config.load(None, {"model.path": str(tmp_path)}))[:2] == (2048, 512)


def test_a_recipe_without_a_model_is_for_the_tiny_model_and_has_a_warm_start(tmp_path: Path) -> None:
    recipe = write(tmp_path / "least.toml", '[env]\nname = "household"\n')
    least, shipped = Config.load(recipe), Config.load("own-env")
    assert least.sft == shipped.sft is not None and least.learner == shipped.learner and least.model == shipped.model
    assert least.env.options == {} and least.env.max_turns is None and least.name == "run"  # the environment is as the recipe says
    assert Config.load({"env": {"name": "household"}}) == least == Config.load(to_dict(least))
    assert Config.load(recipe, ["learner.lr=0.1", "sft=none"]).sft is None
    pretrained = Config.load(recipe, ["model.path=somewhere"])
    assert pretrained.sft is None and pretrained.learner == Config.load(None).learner
    assert Config.load(recipe, ["method.name=grpo"]).method is not None


def test_a_recipe_that_cannot_be_read_says_where(tmp_path: Path) -> None:
    write(tmp_path / "quickstart.toml", "")
    with pytest.raises(TurnwiseError, match=r"quickstrat.*Did you mean .*quickstart\.toml"):
        Config.load(tmp_path / "quickstrat.toml")
    with pytest.raises(TurnwiseError, match=r"broken\.toml.*line 2"):
        Config.load(write(tmp_path / "broken.toml", "seed = 1\nname = \n"))
    write(tmp_path / "a.toml", 'extends = "b.toml"')
    write(tmp_path / "b.toml", 'extends = "a.toml"')
    with pytest.raises(TurnwiseError, match="extends itself"):
        Config.load(tmp_path / "a.toml")
    with pytest.raises(TurnwiseError, match=r"bad\.toml: unknown key sed"):
        Config.load(write(tmp_path / "bad.toml", "sed = 1\n"))


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    extra = [
        "sft.tasks=5",
        "model.lora.rank=4",
        "learner.value.level=token",
        "env.options.words=['a \"b\"', 'c']",
        "agent.system='two\nlines'",
    ]
    config = Config.load(None, [*SMALL, "objective.clip_low=0.1", *extra])
    text = to_toml(config)
    assert Config.load(write(tmp_path / "c.toml", text)) == config
    reward = Config.load(write(tmp_path / "r.toml", text.replace("reward = []\n", "") + '\n[[reward]]\nname = "x"\nfunction = "f.py:g"\n'))
    assert Config.load(write(tmp_path / "again.toml", to_toml(reward))) == reward and reward.reward[0].weight == 1.0


def test_the_hash_is_of_what_matters() -> None:
    one = Config.load(None, SMALL)
    assert content_hash(one) == content_hash(Config.load(None, [*SMALL, "seed=9", "name=other", "out=elsewhere"]))
    assert content_hash(one) != content_hash(Config.load(None, [*SMALL, "credit.gamma=0.9"]))


def test_every_field_is_explained_and_printed() -> None:
    text = help_config()
    assert "Annotated" not in text and " at 0x" not in text
    for dotted, field, section in fields():
        assert dotted in text
        assert section is not None or field.description, f"{dotted} has no docstring"
        assert section is None or section.__doc__


@given(st.text(max_size=40))
def test_any_text_is_an_override_or_a_clear_error(text: str) -> None:
    try:
        key, _ = parse_override(text)
    except TurnwiseError:
        return
    assert key and "=" in text


@given(
    st.recursive(
        st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
        lambda x: st.lists(x, max_size=3),
        max_leaves=4,
    )
)
def test_any_option_value_survives_writing(value: Any) -> None:
    config = Config.load(None, {"agent.max_prompt_tokens": 500, "env.options": {"key with space": value}})
    import tomllib

    assert tomllib.loads(to_toml(config))["env"]["options"] == {"key with space": value}


def test_kl_in_the_reward_is_k1_unless_told_and_in_the_loss_k3() -> None:
    from turnwise.setup.build import learner_settings

    tiny = {"model.tiny.max_length": 4096}
    assert learner_settings(Config.load(None, {**tiny, "objective.kl": "reward"})).kl_reward == "k1"
    capped = learner_settings(Config.load(None, {**tiny, "objective.kl": "reward", "objective.kl_kind": "k3"}))
    assert capped.kl_reward == "k3"
    assert learner_settings(Config.load(None, {**tiny, "objective.kl": "loss"})).loss.kl == "k3"


def test_options_of_environments_and_engines_are_not_taken_for_what_they_are_not() -> None:
    from turnwise.envs import registry
    from turnwise.setup.build import engine_options

    with pytest.raises(TurnwiseError, match=r"option size: an integer is needed, not true"):
        registry.make("sokoban", size=True)
    with pytest.raises(TurnwiseError, match=r"option show_tools: true or false is needed, not 1"):
        registry.make("tools", show_tools=1)
    for options, words in (({"graphs": 1}, r"graphs takes true"), ({"prefill_tokens": True}, r"prefill_tokens takes integer")):
        config = Config.load(None, {"model.tiny.max_length": 4096, "engine.options": options, "engine.name": "native"})
        with pytest.raises(TurnwiseError, match=r"engine\.options of native: option " + words):
            engine_options(config)


def test_a_recipe_has_at_most_150_fields() -> None:
    leaves = [key for key, _, inner in fields() if inner is None]
    assert len(leaves) <= 150, f"{len(leaves)}: a new field takes the place of another"


@pytest.mark.parametrize("key", sorted(RETIRED))
def test_a_retired_key_is_read_with_its_former_default_and_refused_with_what_replaces_it(key: str) -> None:
    harmless, instead = RETIRED[key]
    source = {"models.prm.tiny.layers": 4} if ".tiny." in key else {"models.prm.copy_of": "policy"}
    where, rest = key.replace("*", "prm"), source | {"models.prm.trained": True} if "*" in key else {}
    optional = {where.rpartition(".")[0]: {}} if ".lora." in key or "cluster" in key else {}  # the section itself is there
    assert Config.load({where: "none" if harmless is None else harmless} | rest) == Config.load(rest | optional)
    with pytest.raises(TurnwiseError, match=re.escape(f"{where} {instead}")):
        Config.load({where: "something else"} | rest)


def test_a_deprecated_key_or_name_works_and_says_the_new_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RENAMED, "engine.nucleus", "engine.top_p")
    monkeypatch.setitem(RENAMED, "model.rank", "model.lora.rank")
    with pytest.warns(FutureWarning, match=r"engine\.nucleus in a recipe is deprecated, .* write engine\.top_p"):
        assert Config.load({"engine.nucleus": 0.5}).engine.top_p == 0.5
    with pytest.warns(FutureWarning):
        lora = Config.load(None, ["model.rank=4"]).model.lora
    assert lora is not None and lora.rank == 4
    monkeypatch.setitem(addons.RENAMED, "group_in_group", "gigpo")
    with pytest.warns(FutureWarning, match="the credit algorithm group_in_group is deprecated, .* write gigpo"):
        assert tw.credit.algorithms["group_in_group"] is tw.credit.algorithms["gigpo"]
    with pytest.warns(FutureWarning):
        Config.load({"credit.name": "group_in_group", "credit.gamma": 0.5})


def test_dynamic_sampling_under_its_former_name_is_the_plan() -> None:
    config = Config.load({"collect.strategy": "dynamic", "collect.refills": 3})
    assert config.plan is not None and (config.plan.name, config.plan.options) == ("dynamic", {"refills": 3})
