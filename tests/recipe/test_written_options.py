"""Every option of every component, at its extreme values: what a run writes into its config.toml is read back as the same."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_origin

import pytest

from turnwise.agent.settings import AgentSettings
from turnwise.collect.settings import RewardTerm
from turnwise.config.options import REQUIRED, Entry, Option, read_options
from turnwise.config.section import Section
from turnwise.engines.registry import GIVEN
from turnwise.engines.settings import Engine
from turnwise.envs import registry as environments
from turnwise.envs.settings import Env
from turnwise.learn.sections import AuxiliarySettings
from turnwise.methods.registry import methods
from turnwise.methods.settings import Credit, Method, Objective, Plan, Schedule, Signal, Source
from turnwise.recipe.names import REGISTRIES, pieces, registry
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, to_toml
from turnwise.runs.settings import RunSection
from turnwise.setup.catalogue import needs_of, settings_of
from turnwise.util.errors import TurnwiseError

Options = Mapping[str, Any]
# How a recipe names a component of each family and gives its options, and where they are in the section.
SECTIONS: dict[str, tuple[Callable[[str, Options], Section], Callable[[Any], Options]]] = {
    "credit": (lambda name, options: Credit(name=name, **options), lambda section: section.options),
    "objective": (lambda name, options: Objective(name=name, **options), lambda section: section.options),
    "importance": (lambda name, options: Objective(importance=name, importance_options=dict(options)), lambda one: one.importance_options),
    "plan": (lambda name, options: Plan(name=name, **options), lambda section: section.options),
    "source": (lambda name, options: Source(name=name, **options), lambda section: section.options),
    "signal": (lambda name, options: Signal(name=name, **options), lambda section: section.options),
    "schedule": (lambda name, options: Schedule(name=name, **options), lambda section: section.options),
    "method": (lambda name, options: Method(name=name, **options), lambda section: section.options),
    "model kind": (lambda name, options: AuxiliarySettings(kind=name, options=options, copy_of="policy"), lambda section: section.options),
    "reward": (lambda name, options: RewardTerm(name="term", function=name, options=options), lambda section: section.options),
    "context": (lambda name, options: AgentSettings(context=name, options=options), lambda section: section.options),
    "parser": (lambda name, options: AgentSettings(parse=name), lambda section: {}),
    "engine": (lambda name, options: Engine(name=name, options=options), lambda section: section.options),
    "tracker": (
        lambda name, options: RunSection(trackers=[name], tracker_options={name: options}),
        lambda section: section.tracker_options[section.trackers[0]],
    ),
}
SMALL = {"agent.max_prompt_tokens": 64, "engine.max_tokens": 16}
COMPONENTS = [(family, entry) for family in REGISTRIES for entry in registry(family) if entry.function.__module__.startswith("turnwise.")]


def extremes(option: Option) -> list[Any]:
    """The default, the ends of the range, every choice; what is empty, and what is hard to write."""
    values = [] if option.default is REQUIRED else [option.default]
    values += [None] if option.optional else []
    low, high = option.help.low, option.help.high
    if option.choices:
        values += option.choices
    elif option.type in (int, float):
        values += [option.type(end) for end in (low, high) if end is not None]
        values += [] if low is not None else [-(2**40) if option.type is int else -1e300]
        values += [] if high is not None else [2**40 if option.type is int else 1e300]
    else:
        hard = 'a "quoted"\n\\word with a tab\t and é'
        own = {bool: [True, False], str: ["", hard], list: [[], [hard, 1, 2.5]], tuple: [(), (1, 2)], dict: [{}, {"a b.c": {"d": [1]}}]}
        values += own.get(option.type, [])
    return values


def required(entry: Entry[Any]) -> dict[str, Any]:
    """A value for every option that has no default."""
    return {option.name: extremes(option)[0] for option in entry.options.values() if option.required}


def read_back(section: Any) -> Any:
    """A section after it was written in a run's config.toml, and read from there."""
    name, field = next((name, field) for name, field in Config.model_fields.items() if type(section).__name__ in str(field.annotation))
    inside: Any = {dict: {"one": section}, list: [section]}.get(get_origin(field.annotation), section)
    found = tomllib.loads(to_toml(Config.load(SMALL).model_copy(update={name: inside})))[name]
    return type(section).model_validate(found.get("one", found) if isinstance(found, dict) else found[0])


def test_every_family_of_components_is_tried_here() -> None:
    assert set(SECTIONS) == set(REGISTRIES)


@pytest.mark.parametrize(("family", "entry"), COMPONENTS, ids=lambda one: one if isinstance(one, str) else one.name)
def test_an_option_at_its_extreme_values_is_read_back_as_it_was_given(family: str, entry: Entry[Any]) -> None:
    make, options_of = SECTIONS[family]
    known, base = registry(family), required(entry)
    for option in entry.options.values():
        assert not (option.optional and "none" in option.choices), f'{option.name}: "none" would be both a choice and None'
        if (family == "engine" and option.name in GIVEN) or family == "parser":
            continue  # the run gives it
        for value in extremes(option):
            section = make(entry.name, {**base, option.name: value})
            again = read_back(section)
            assert again == section, (option.name, value)
            wanted = option.check(value, "")
            assert option.check(options_of(again)[option.name], "") == wanted == option.check(options_of(section)[option.name], "")
            with contextlib.suppress(TurnwiseError):  # the option names another component, which the text does not
                assert entry.needed({**base, option.name: value}) == entry.needed(options_of(again))
            if family != "engine":
                assert entry.bind(options_of(again), known.kind)[option.name] == wanted


@pytest.mark.parametrize("entry", list(methods), ids=lambda entry: entry.name)
def test_a_run_with_a_method_at_the_extreme_values_of_its_options_is_read_back(entry: Entry[Any], tmp_path: Path) -> None:
    run = tmp_path / "config.toml"
    (tmp_path / "metrics.jsonl").touch()  # the record of a run, to which the method is not applied again
    plain, accepted = method_config(entry, {}), 0
    for option, value in [(None, None), *((one, value) for one in entry.options.values() for value in extremes(one))]:
        try:
            config = plain if option is None else method_config(entry, {option.name: value})
        except TurnwiseError:  # the method or one of its parts refuses this value
            continue
        accepted += 1
        run.write_text(to_toml(config))
        again = Config.load(run)
        assert again.model_dump() == config.model_dump(), (option, value)
        assert bound(again) == bound(config)
        assert content_hash(again) == content_hash(config)
        assert Config.load(config) == config  # from the object, as `evaluate` and others take it
        if option is not None and value == option.default:
            assert bound(plain) == bound(config), "a default that is given changes nothing"
    assert accepted > len(entry.options), "most values are accepted"


def method_config(entry: Entry[Any], options: Options) -> Config:
    """A recipe that names a method and gives it these options."""
    return Config.load(
        with_models(entry), {"method.name": entry.name} | {f"method.{key}": one for key, one in (required(entry) | options).items()}
    )


def with_models(entry: Entry[Any]) -> dict[str, Any]:
    """A recipe with the further models that a method needs and does not bring itself."""
    needs = {need.rstrip("?") for found in needs_of(entry).values() for need in found}
    names = {need.partition(".")[2] for need in needs if need.startswith("model.")} - {"policy", "reference"}
    brought = {key.split(".")[1] for key in settings_of(entry) or {} if key.startswith("models.")}
    return {**SMALL, **{f"models.{name}.copy_of": "policy" for name in sorted(names - brought)}}


def bound(config: Config) -> list[tuple[str, dict[str, Any]]]:
    """The options of all pieces as they are used."""
    known = [(piece, registry(piece.family)) for piece in pieces(config) if piece.family not in ("engine", "tracker")]
    return [(piece.key, family[piece.name].bind(piece.options, family.kind)) for piece, family in known]


@pytest.mark.parametrize("name", environments.names())
def test_an_option_of_an_environment_that_may_be_none_is_read_back_as_none(name: str) -> None:
    try:
        factory = environments.spec(name).load()
    except (TurnwiseError, ImportError):
        pytest.skip("not installed here")
    for option in read_options(factory, 0).values():
        assert not (option.optional and "none" in option.choices), f'{option.name}: "none" would be both a choice and None'
        for value in extremes(option):
            again = read_back(Env(name=name, options={option.name: value}))
            assert again == Env(name=name, options={option.name: value})
            given = environments.as_given(factory, again.options)[option.name]
            assert given == (list(value) if isinstance(value, tuple) else value)


class Sized:
    """An environment with options that may be None."""

    def __init__(self, size: int | None = 3, style: str = "none", **more: Any):
        self.given = size, style, more

    def reset(self, task: Any, seed: int = 0) -> None: ...

    def step(self, action: str) -> None: ...


def test_the_text_none_reaches_an_environment_as_none_only_where_none_is_allowed() -> None:
    environments.register("sized", Sized)
    try:
        for factory in (environments.resolve, environments.portable):
            assert factory("sized", {"size": "none", "style": "none", "other": "none"})().given == (None, "none", {"other": "none"})
    finally:
        environments.unregister("sized")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("env.options.kwargs", {"render_mode": None}, "env.options: kwargs.render_mode is None"),
        ("env.options.kwargs", {1: "one"}, "env.options: kwargs: the keys of a table are texts, not 1"),
        ("agent.tools", [{"name": "act", "parameters": {"default": None}}], "agent.tools: 0.parameters.default is None"),
        ("agent.template_options", {"tools": None}, "agent.template_options: tools is None"),
        ("credit.options", {"gamma": [None]}, "credit: options.gamma.0 is None"),
    ],
)
def test_none_where_a_file_could_not_hold_it_is_refused_with_its_key(key: str, value: Any, words: str) -> None:
    with pytest.raises(TurnwiseError, match=words):
        Config.load(SMALL, {key: value})


def test_an_engine_whose_options_are_none_takes_its_defaults(tmp_path: Path) -> None:
    from turnwise.planner.fit import demand_of, shape_for
    from turnwise.setup.build import engine_options

    options = {"engine.options.cache_memory": "none", "engine.options.prefill_tokens": "none", "engine.options.dtype": "none"}
    plain, given = (Config.load(SMALL, {"engine.name": "native", **more}) for more in ({}, options))
    assert set(engine_options(given).values()) == {None}
    assert demand_of(given, shape_for(given), 2**33) == demand_of(plain, shape_for(plain), 2**33)
