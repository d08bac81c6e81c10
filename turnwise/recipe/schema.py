"""A recipe describes a whole run: one section per part. A section is declared and documented beside its part, and nowhere else.

A recipe is a TOML file. `extends = "other.toml"` names a base recipe, and dotted overrides (`credit.name=grpo seed=3`) are applied last.
An unknown key raises an error that suggests the closest match. `[credit]` and `[objective]` take the options of the algorithm they name;
its registry checks them. `[method]` names settings that belong together (merging.py). The whole resolved recipe is saved with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, model_validator

from turnwise.agent.settings import AgentSettings
from turnwise.cluster.settings import Cluster
from turnwise.collect.settings import Collect, Eval, RewardTerm
from turnwise.config import trust as trusting
from turnwise.config.references import code_in
from turnwise.config.section import NAME, Section, problem
from turnwise.engines.settings import Engine
from turnwise.envs.settings import Env
from turnwise.learn.sections import AuxiliarySettings, Learner, Model, SftSettings, check_model_names
from turnwise.methods.settings import Credit, Method, Objective, Plan, Schedule, Signal, Source
from turnwise.recipe.limits import with_limits
from turnwise.recipe.merging import Layer, resolved, with_names
from turnwise.recipe.names import needed, problems
from turnwise.recipe.reading import RecipeLayers, parse_override, recipe_layers, scratch_layer
from turnwise.runs.settings import RunSection
from turnwise.util.errors import TurnwiseError, deprecated
from turnwise.util.secret import redact, secrets_in

AUXILIARY = "is gone: an auxiliary model has AdamW with a constant learning rate, and computes as the policy does"
RENAMED: dict[str, str] = {}  # deprecated keys and the new key of each: for one minor version, then they are among those below
RETIRED: dict[str, tuple[Any, str]] = {  # keys of earlier versions: the value that changes nothing, and what replaces the key
    "agent.images": (True, "is gone: a vision-language model sees the environment's images"),
    "agent.max_invalid": (None, "is gone: an attempt whose responses cannot be parsed goes on to the turn limit"),
    "engine.min_p": (0.0, "is gone: use engine.top_p or engine.top_k"),
    "credit.linkage": ("complete", "is gone: any two texts of a group of similar anchors are similar"),
    "collect.strategy": ("plain", "is now plan.name"),
    "collect.refills": (10, 'is now an option of the plan: plan.name="dynamic" and plan.refills'),
    "run.keep_tokens": (True, "is gone: the exact tokens are always kept with the rollouts"),
    "cluster.port": (None, "is gone: any free port is taken"),
    "model.lora.dropout": (0.0, "is gone: with dropout, the learner's log-probs would not be those of the engine"),
    "learner.moments": ("float32", "is gone: learner.optimiser_place='host' keeps the moments in host memory, without rounding them"),
    "learner.engine_gap": (0.03, "is gone: learner.old_logprobs says whose log-probs are taken"),
    "sft.tries": (32, "is gone: random play makes 32 attempts per task"),
    "sft.look_every": (10, "is gone: sft.until is measured every 10 steps"),
    "models.*.schedule": ("constant", AUXILIARY),
    "models.*.warmup": (0, AUXILIARY),
    "models.*.weight_decay": (0.01, AUXILIARY),
    "models.*.betas": ([0.9, 0.999], AUXILIARY),
    "models.*.moments": ("float32", AUXILIARY),
    "models.*.optimiser_place": ("device", AUXILIARY),
    "models.*.minibatches": (1, "is gone: a pass over a batch is one optimiser step; set epochs"),
    "models.*.dtype": (None, AUXILIARY),
    "models.*.tokens_per_batch": (0, AUXILIARY),
    "models.*.tiny.max_length": (1024, "is gone: a tiny auxiliary model takes sequences as long as the policy's"),
    "models.*.lora.alpha": (32.0, "is gone: adapters of auxiliary models are multiplied by 32 / rank"),
    "models.*.lora.dropout": (0.0, AUXILIARY),
    "models.*.lora.targets": (None, "is gone: all linear layers of attention and MLP have adapters"),
    "models.*.lora.base": ("full", "is for the policy (model.lora.base)"),
}

RECORDED = "method.authors"  # in the record of a run only: no recipe sets it


def without_retired(values: Any) -> Any:
    """A recipe's plain values without keys of earlier versions: recipes and records of runs hold them with their defaults. Another value
    is an error that says what replaces it."""
    if not isinstance(values, Mapping):
        return values
    values = copied(values)
    collect = values.get("collect")
    if isinstance(collect, dict) and collect.get("strategy") == "dynamic":  # the same plan under its new name
        values["plan"] = values.get("plan") or {"name": "dynamic", "refills": collect.pop("refills", 10)}
        del collect["strategy"]
    for key, new in RENAMED.items():
        *sections, last = key.split(".")
        for _, table in list(_tables(values, sections, ())):
            if last in table:
                deprecated(f"{key} in a recipe", new)
                *sections, name = new.split(".")
                reduce(lambda inner, section: inner.setdefault(section, {}), sections, values)[name] = table.pop(last)
    for key, (harmless, instead) in RETIRED.items():
        *sections, last = key.split(".")
        for where, table in _tables(values, sections, ()):
            if last in table and table.pop(last) not in (harmless, "none" if harmless is None else harmless):
                raise ValueError(f"{'.'.join((*where, last))} {instead}")
    return values


def copied(values: Any) -> Any:
    """Tables inside tables as copies that may be changed."""
    return {key: copied(value) for key, value in values.items()} if isinstance(values, Mapping) else values


def _tables(values: Any, sections: Sequence[str], where: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The tables at a key, in which `*` stands for any name, each with its own key."""
    if not isinstance(values, dict):
        return
    if not sections:
        yield where, values
        return
    for name in list(values) if sections[0] == "*" else [sections[0]]:
        yield from _tables(values.get(name), sections[1:], (*where, name))


class Config(Section):
    """A whole run."""

    name: str = Field(NAME, pattern=r"^[A-Za-z0-9._=-]*[A-Za-z0-9_=-][A-Za-z0-9._=-]*$")
    """The name of the run and of its folder."""
    out: str = "runs"
    """The folder in which runs are created."""
    seed: int = Field(0, ge=0)
    """The seed of all randomness."""
    iterations: int = Field(150, ge=0)
    """Number of iterations: collect, then update."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device of the model; auto: a GPU if there is one."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; none: OMP_NUM_THREADS if it is set, otherwise by the model's size (a tiny model is fastest with one)."""
    env: Env = Env()
    agent: AgentSettings = AgentSettings()
    model: Model = Model()
    engine: Engine = Engine()
    method: Method | None = None
    collect: Collect = Collect()
    plan: Plan | None = None
    source: Source | None = None
    signal: list[Signal] = Field([])
    credit: Credit = Field(default_factory=Credit)  # a factory: checking the name imports the algorithms
    objective: Objective = Field(default_factory=Objective)
    schedule: Schedule = Schedule()
    learner: Learner = Learner()
    sft: SftSettings | None = None
    eval: Eval = Eval()
    reward: list[RewardTerm] = Field([])
    run: RunSection = RunSection()
    cluster: Cluster | None = None
    models: dict[str, AuxiliarySettings] = Field({})
    """Further models by name, each in a table [models.NAME]."""
    _folder: Path | None = PrivateAttr(None)  # of the run that it was read from
    _changes: Mapping[str, Any] = PrivateAttr({})  # what the user has changed in it, naming code perhaps

    @property
    def trained_with(self) -> str:
        """What a run is called by: its method, or its credit algorithm."""
        return self.credit.name if self.method is None else self.method.name

    @property
    def needs(self) -> set[str]:
        """All that the recipe's stages need, as far as they are known."""
        return needed(self)

    def trusted(self, trust: bool = False, folder: Path | None = None) -> Config:
        """This config, once the code that it names is trusted: a run's own, or `trust`. Called before any of it is imported."""
        if (place := folder or self._folder) is not None:
            trusting.require(place, self.model_dump(mode="json"), code_in(self._changes), trust)
        return self

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, given: Any) -> Any:
        return with_limits(without_retired(given))

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if secret := next(secrets_in(self.model_dump(mode="json")), None):
            raise ValueError(
                f"{secret} holds a password or a key, and a recipe is kept and shown with its run. Put it into an environment variable and "
                "name that instead (key_variable); an address goes without user:password@"
            )
        check_model_names(self.models)
        if found := contradictions(self):
            raise ValueError("; ".join(found))
        return self

    @classmethod
    def load(
        cls, recipe: str | PathLike[str] | Mapping[str, Any] | Config | None = None, overrides: list[str] | dict[str, Any] | None = None
    ) -> Config:
        """A recipe (a file, a dictionary, a config; None: all defaults) with overrides (`["seed=3"]` or `{"seed": 3}`), checked."""
        pairs = list(overrides.items()) if isinstance(overrides, Mapping) else [parse_override(text) for text in overrides or ()]
        return config_of(recipe_layers(recipe), dict(pairs))


def config_of(recipe: RecipeLayers, changes: Mapping[str, Any]) -> Config:
    """A recipe's layers with dotted overrides on top, put together and checked; all problems are listed at once. A recipe that says nothing
    about the model has own-env.toml below it; overrides of the tiny model change nothing about that."""
    layers = with_names([*recipe.layers, Layer(changes, typed=True)])
    values = resolved(layers)
    served = isinstance(engine := values.get("engine"), Mapping) and engine.get("name") == "openai"
    chosen = "model" in resolved(layers[:-1]) or changes.get("model.path", "none") not in (None, "none")
    if recipe.layers and not recipe.layers[0].settled and not chosen and not served:
        values = resolved([scratch_layer(), *layers])
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems = [_problem(item) for item in error.errors()]
        lines = problems[0] if len(problems) == 1 else "".join(f"\n  - {problem}" for problem in problems)
        raise TurnwiseError(redact(f"recipe {recipe.name}: {lines}")) from None
    if recipe.run is not None:
        config._folder, config._changes = recipe.run, changes
    return config


def _problem(item: Any) -> str:
    place = [part for part in item["loc"] if not (isinstance(part, str) and part.startswith("function-"))]
    section = section_at(place[:-1])
    unknown = item["type"] == "extra_forbidden"
    elsewhere = [dotted for dotted, _, _ in fields() if unknown and dotted.rsplit(".", 1)[-1] == str(place[-1])][:1]
    return problem(item, list(section.model_fields) if section else [], elsewhere)


def section_at(place: Sequence[Any]) -> type[BaseModel] | None:
    """The section class at a key of the config."""
    section: type[BaseModel] | None = Config
    named = False  # whether the next part is a name chosen by the user
    for part in place:
        if isinstance(part, int) or named:
            named = False
            continue
        field = section.model_fields.get(part) if section else None
        section = _section_of(field.annotation) if field else None
        named = field is not None and get_origin(field.annotation) is dict and section is not None
    return section


def _section_of(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def fields(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, Any, type[BaseModel] | None]]:
    """Every field of a recipe: its dotted key, pydantic's description of it, and its class if it is a section."""
    for name, field in section.model_fields.items():
        if f"{prefix}{name}" == RECORDED:
            continue
        inner = _section_of(field.annotation)
        yield f"{prefix}{name}", field, inner
        if inner is not None:
            named = ".NAME" if get_origin(field.annotation) is dict else ""
            yield from fields(inner, f"{prefix}{name}{named}.")


def contradictions(config: Config) -> list[str]:
    """Settings that cannot work together."""
    found = list(problems(config))
    if config.eval.split == config.env.split:
        found.append(f"eval.split and env.split are both {config.env.split!r}: results on training tasks would not count")
    if config.objective.kl != "off" and config.objective.kl_coef == 0:
        found.append(f"objective.kl={config.objective.kl} has no effect with objective.kl_coef=0")
    if config.objective.constant is not None and not config.objective.aggregation.endswith("_sum"):
        found.append("objective.constant goes with objective.aggregation=turn_sum or trajectory_sum")
    found += with_cluster(config)
    return found


def with_cluster(config: Config) -> list[str]:
    """Settings that a cluster cannot work with."""
    own = config.cluster
    if own is None:
        return []
    found = []
    if own.tensor_parallel > 1 and own.placement == "colocated":
        found.append(f"cluster.tensor_parallel={own.tensor_parallel} takes whole GPUs: set cluster.placement=apart")
    if config.engine.sleep:
        found.append(
            "engine.sleep: engines of a cluster keep their memory. Lower engine.options.cache_memory, or use cluster.placement=apart"
        )
    found += [
        f"learner.{name}={value} is for a learner of one process. cluster.learners={own.learners} share this memory among them: leave "
        f"learner.{name} out"
        for name, value in (("optimiser_place", "host"), ("reference_place", "host"))
        if own.learners > 1 and getattr(config.learner, name) == value
    ]
    if own.learners > 1 and config.model.lora is not None and config.model.lora.base == "4bit":
        found.append(f"model.lora.base=4bit is for a learner of one process, not for cluster.learners={own.learners}")
    if config.device == "cpu" and own.transfer == "ipc":
        found.append("cluster.transfer=ipc shares the memory of a GPU: with device=cpu use auto or store")
    return found
