"""The sections of a recipe: every field typed, and documented where it is defined and nowhere else. `schema.py` has the whole recipe.

`[credit]` and `[objective]` take the options of what they name; `checks.py` asks the registries whether a name is valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from turnwise.config.checks import check
from turnwise.config.options import mistaken
from turnwise.util.errors import TurnwiseError

CREDIT = "gigpo"  # the algorithm of a recipe that names none
NAME = "run"  # of a run whose recipe has no name


class Section(BaseModel):
    """A table of a recipe. The text "none" clears an optional field."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _kind(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject implicit conversions: true is not a number, 1 is not a boolean."""
        field = cls.model_fields.get(info.field_name or "")
        if field is not None and (wrong := mistaken(value, field.annotation)):
            raise ValueError(wrong)
        return value

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        optional = {name for name, field in cls.model_fields.items() if _takes_none(field.annotation)}
        return {key: None if value == "none" and key in optional else value for key, value in given.items()}


def _takes_none(annotation: Any) -> bool:
    return type(None) in getattr(annotation, "__args__", ())


class Env(Section):
    """The environment and its tasks."""

    name: str = "household"
    """A name from `turnwise envs`, or your own class: path/to/my_env.py:MyEnv."""
    options: dict[str, Any] = {}
    """Options of the environment, for example size = "tiny"."""
    split: str = "train"
    """The split of the training tasks."""
    tasks: int | None = Field(None, ge=1)
    """Use the first N tasks of the split; none: all. Generated tasks are unlimited and need a number."""
    max_turns: int | None = Field(None, ge=1)
    """The turn limit; none: the environment's."""
    reward_scale: float = 1.0
    """Factor applied to the environment's reward. Use 10 for the paper's success reward of 10 if the environment gives 1."""
    workers: int = Field(0, ge=0)
    """Number of worker processes for the environments; 0 runs them in this process."""
    timeout: float | None = Field(60.0, gt=0)
    """Time limit in seconds for one reset or step (with workers); exceeding it ends the attempt with that stop reason."""
    memory_mb: int | None = Field(None, ge=1)
    """Memory limit in megabytes for a worker process, and for each process it starts (needs workers; Linux); none: no limit."""
    in_order: bool = True
    """With workers: process results in the order in which they were requested, so that a repeated run gives the same weights. false is
    faster if steps are slow and vary a lot, but not exactly reproducible."""
    own_seeds: bool = False
    """Give each attempt of a group its own seed, instead of one seed for the whole group."""


class Agent(Section):
    """How prompts are built and responses are parsed."""

    context: str = "window"
    """window (a separate prompt per turn with the last `history` turns), full (the dialogue grows), another name that `turnwise algos
    context` lists, package.module:Class or path/to/file.py:Class."""
    history: int = Field(2, ge=0)
    """With context=window: how many earlier observations and actions a prompt shows."""
    prompt: str = "think"
    """A prompt template: think, react, plain, action, remind, tool, search, text, the path of your own template, or
    path/to/file.py:NAME of a template in a text."""
    parse: str = "auto"
    """How the action is extracted: from <action> tags, the first line of the response (whole), all of it (text), the model's native tool
    call (tool), or tags named after the action's verb (verbs); auto: what the prompt asks for; or path/to/file.py:function."""
    valid: Literal["parsed", "thought", "admissible"] = "parsed"
    """What a valid turn needs: a parsable response (the paper), also a thought before it, or an admissible action."""
    show_actions: bool = True
    """List the admissible actions in the prompt, if the environment knows them."""
    hide_actions: list[str] = ["help"]
    """Admissible actions that the prompt does not list and that random play in a warm start does not choose; `*` matches any text."""
    system: str = ""
    """A system message; empty: none."""
    instructions: str | None = None
    """Instructions at the start of a sequence; none: those of the environment, empty: nothing."""
    tools: list[dict[str, Any]] | str | None = None
    """With prompt=tool: JSON schemas of tools, or the path of a JSON file with a list of them; none: the `tools` of the
    environment or, if it has none, one tool `act` that takes the action as text. Calls of other tools reach the environment as JSON."""
    max_prompt_tokens: int = Field(2048, ge=8)
    """Longer prompts lose their oldest history; if even the shortest form is too long, the attempt ends."""
    images: bool = True
    """Show the environment's images to a vision-language model; false: leave them out. Text-only models never get images."""
    template_options: dict[str, Any] = {}
    """Options of the model's chat template, for example enable_thinking = false."""
    options: dict[str, Any] = {}
    """Options of your own context."""
    max_invalid: int | None = Field(None, ge=1)
    """End an attempt after this many unparsable responses in a row; none: never."""

    @model_validator(mode="after")
    def _known(self) -> Agent:
        check("agent", self)
        return self


class Lora(Section):
    """Low-rank adapters instead of full training."""

    rank: int = Field(16, ge=1)
    """Rank of the adapters."""
    alpha: float = Field(32.0, gt=0)
    """Scale: the adapters' output is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the adapters' input."""
    targets: list[str] | None = None
    """Names of the linear layers; none: all of attention and MLP."""


class Tiny(Section):
    """A small transformer with its own word tokenizer, trained from scratch."""

    layers: int = Field(4, ge=1)
    """Layers."""
    hidden: int = Field(128, ge=8)
    """Width."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    max_length: int = Field(1024, ge=16)
    """Maximum sequence length."""
    vocabulary_tasks: int = Field(400, ge=1)
    """Number of training tasks that are played to collect the vocabulary."""


class Model(Section):
    """The model that is trained."""

    path: str | None = None
    """A Hugging Face model folder (or a hub name, if a hub is reachable); none: the tiny model."""
    tiny: Tiny = Tiny()
    """The tiny model, used if `path` is none."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the computation; the optimiser's weights are always float32."""
    lora: Lora | None = None
    """Train adapters instead of all weights."""


class Engine(Section):
    """The engine that turns prompts into responses."""

    name: str = "transformers"
    """native (fast, Llama and Qwen families, shares the learner's weights), transformers (any causal language model), openai (a server,
    for evaluation only), or path/to/file.py:Class."""
    url: str | None = None
    """With name=openai: the server's address, for example http://127.0.0.1:8000/v1."""
    model: str | None = None
    """With name=openai: the model's name on the server."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature during training."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: the smallest set of tokens with this probability."""
    top_k: int = Field(0, ge=0)
    """Only the k most likely tokens; 0: all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Only tokens at least this likely, relative to the most likely one."""
    max_tokens: int = Field(512, ge=1)
    """Maximum response length in tokens."""
    stop: list[str] = []
    """Stop strings that end a response."""
    max_batch: int = Field(128, ge=1)
    """Maximum number of sequences generated in parallel."""
    sleep: bool = False
    """With name=native on a GPU: release the cache memory while the weights are updated. Decode steps are then recorded again in every
    iteration, which takes time; turn it on if the update runs out of memory."""
    options: dict[str, Any] = {}
    """Further options of the engine: docs/engines.md lists them. A server's API key is read from the environment variable that
    `key_variable` names (default: OPENAI_API_KEY, if it is set) and is never stored."""

    @model_validator(mode="after")
    def _known(self) -> Engine:
        check("engine", self)
        return self


class Collect(Section):
    """How a batch of attempts is collected."""

    groups: int = Field(16, ge=1)
    """Tasks per iteration."""
    group_size: int = Field(8, ge=1)
    """Attempts per task."""
    strategy: Literal["plain", "dynamic"] = "plain"
    """plain, or dynamic: drop groups whose attempts all have the same return and collect others instead."""
    refills: int = Field(10, ge=0)
    """With dynamic: the maximum number of further rounds."""
    shared_prefix: Literal["once", "each"] = "once"
    """Turns that an attempt shares with the one that it branched from: learned from once, in that one, or each time they occur."""
    shuffle: bool = True
    """Shuffle tasks by the seed; false: keep the order of the task set."""


class Named(Section):
    """A section whose further keys are options of the component it names."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, frozen=True, allow_inf_nan=False)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given."""
        return dict(self.model_extra or {})

    def check_names(self, known: Iterable[str]) -> None:
        """A key that is not an option of the named component may be a misspelt key of the section."""
        own = list(type(self).model_fields)
        for key in self.options:
            near = get_close_matches(key, [*own, *known], n=1, cutoff=0.6) if key not in known else []
            if near and near[0] in own:
                raise TurnwiseError(f"unknown key {key}. Did you mean {type(self).__name__.lower()}.{near[0]}?")


class Credit(Named):
    """Credit assignment. Further keys are the algorithm's options: see `turnwise algos NAME`."""

    name: str = CREDIT
    """A credit algorithm that `turnwise algos` lists, or path/to/file.py:function."""

    @model_validator(mode="after")
    def _known(self) -> Credit:
        check("credit", self)
        return self


class Objective(Named):
    """The loss. Further keys are the objective's options: see `turnwise algos NAME`."""

    name: str = "clip"
    """An objective that `turnwise algos` lists, package.module:function or path/to/file.py:function."""
    aggregation: Literal["token", "turn", "trajectory", "trajectory_turn", "turn_sum", "trajectory_sum"] = "turn"
    """What has equal weight in the loss: every token, turn or trajectory; or plain sums divided by `constant`."""
    constant: float | None = Field(None, gt=0)
    """With turn_sum and trajectory_sum: the divisor."""
    kl: Literal["off", "loss", "reward"] = "off"
    """KL to the frozen reference: off, a term of the loss, or subtracted from the reward."""
    kl_coef: float = Field(0.01, ge=0)
    """Its coefficient."""
    kl_kind: Literal["k1", "k2", "k3", "k3+"] | None = None
    """Its estimator; none: k3 in the loss, k1 in the reward."""
    entropy_coef: float = Field(0.0, ge=0)
    """Coefficient of the entropy bonus."""
    importance: str = "none"
    """Correction for the difference between the engine's and the learner's log-probs: none or a name from docs/objectives.md."""
    importance_options: dict[str, Any] = {}
    """Options of the correction."""

    @model_validator(mode="after")
    def _known(self) -> Objective:
        check("objective", self)
        return self


class Schedule(Named):
    """Which parts of a batch make up which optimiser step. Further keys are the schedule's options: see `turnwise algos NAME`."""

    name: str = "shuffled"
    """A schedule that `turnwise algos` lists, package.module:function or path/to/file.py:function. The default shuffles trajectories or
    turns into mini-batches as [learner] says."""

    @model_validator(mode="after")
    def _known(self) -> Schedule:
        if self.name != type(self).model_fields["name"].default or self.options:
            check("schedule", self)
        return self


class Method(Named):
    """A method: settings that belong together, under one name. Further keys are its options: see `turnwise algos NAME`. What the recipe and
    the command line say themselves wins over the method; the method wins over defaults and over what `extends` brings."""

    name: str
    """A method that `turnwise algos method` lists, package.module:function or path/to/file.py:function."""

    @model_validator(mode="after")
    def _known(self) -> Method:
        check("method", self)
        return self


class Plan(Named):
    """Which attempts are made next. Further keys are the plan's options: see `turnwise algos NAME`."""

    name: str
    """A plan that `turnwise algos` lists, package.module:Class or path/to/file.py:Class. Without this section, collect.strategy decides."""

    @model_validator(mode="after")
    def _known(self) -> Plan:
        check("plan", self)
        return self


class Signal(Named):
    """A function that adds columns to every batch before credit. Further keys are its options: see `turnwise algos NAME`."""

    name: str
    """A signal that `turnwise algos` lists, package.module:function or path/to/file.py:function."""

    @model_validator(mode="after")
    def _known(self) -> Signal:
        check("signal", self)
        return self


class Value(Section):
    """A critic: a small head on the policy's hidden states."""

    level: Literal["turn", "token"] = "turn"
    """One value per turn (before the response) or per token."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate of the head."""
    coef: float = Field(0.5, ge=0)
    """Weight of the value loss relative to the policy loss."""
    clip: float | None = Field(None, gt=0)
    """Bound on how far a value may move in one iteration; none: no bound."""


class Optimiser(Section):
    """AdamW and its learning rate."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning-rate schedule after the warm-up; linear and cosine end at 0."""
    warmup: int = Field(0, ge=0)
    """Optimiser steps over which the learning rate rises from 0."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay, not on norms and biases."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    clip: float | None = Field(1.0, gt=0)
    """Maximum gradient norm; none: no clipping."""


class Learner(Optimiser):
    """The optimiser and the shape of an update."""

    epochs: int = Field(1, ge=1)
    """Passes over an iteration's data."""
    minibatches: int = Field(1, ge=1)
    """Optimiser steps per pass."""
    minibatch_size: int | None = Field(None, ge=1)
    """Instead: about this many units (see minibatch_unit) per optimiser step."""
    minibatch_unit: Literal["trajectory", "turn"] = "trajectory"
    """The unit of a mini-batch: whole trajectories, or turns."""
    tokens_per_batch: int = Field(0, ge=0)
    """Tokens computed at once; affects memory use only, never the result. 0: what a GPU's memory allows, 8,192 on a CPU."""
    gradient_checkpointing: bool | None = None
    """Save memory by recomputing activations; none: if a GPU's memory requires it, never on a CPU."""
    skip_zero_credit: bool | None = None
    """Skip turns whose credit is exactly 0, if nothing else needs them; none: on a GPU."""
    old_logprobs: Literal["learner", "engine", "auto"] = "learner"
    """The old log-probs of the ratio: recomputed by the learner, reported by the engine, or (auto) the engine's if they are close
    enough to the learner's."""
    engine_gap: float = Field(0.03, ge=0)
    """With old_logprobs = auto: the maximum mean distance between the engine's and the learner's log-probs."""
    kl_stop: float | None = Field(None, gt=0)
    """Stop an iteration's update when the KL from the old policy exceeds this; none: never."""
    value: Value | None = None
    """A critic, for credit that needs values: `turnwise algos NAME` says what an algorithm needs."""


class Sft(Section):
    """A supervised warm start from expert trajectories."""

    required: bool = True
    """Whether an environment without an expert is an error. If not, a tiny model learns the listed actions from random play; a
    pretrained model needs no warm start."""
    file: str | None = None
    """Instead of the expert: trajectories written by `turnwise trajectories` (.jsonl or .parquet). Successful ones are played again in
    the environment, so that this agent builds their prompts; thoughts are learned together with the actions."""
    tasks: int = Field(256, ge=1)
    """Number of training tasks that the expert plays; with a file, the maximum number of its trajectories."""
    tries: int = Field(32, ge=1)
    """With random play instead of an expert: attempts per task, of which the best is learned from."""
    noise: float = Field(0.0, ge=0, lt=1)
    """Share of turns that are played at random instead of by the expert."""
    imitate: Literal["expert", "all"] = "expert"
    """With noise: learn only from the expert's turns, or from all. With all, the model imitates a clumsy player: it follows the format,
    tries everything and plays badly, which is a good starting point for reinforcement learning."""
    epochs: int = Field(3, ge=1)
    """Passes over the expert's turns."""
    steps: int | None = Field(None, ge=1)
    """Instead: this many optimiser steps."""
    until: float | None = Field(None, gt=0, le=1)
    """Stop early once this share of `look_tasks` training tasks is won, with one attempt each as in training. The rest is left to
    reinforcement learning, whatever the seed. None: do not measure."""
    at_least: float | None = Field(None, gt=0, le=1)
    """Measure after the last step, and continue while less than this share of `look_tasks` training tasks is won: half as many steps
    again, at most four times. None: do not measure."""
    look_every: int = Field(10, ge=1)
    """With until: optimiser steps between two measurements."""
    look_tasks: int = Field(48, ge=1)
    """With until and at_least: number of tasks per measurement."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate."""
    prompt_weight: float = Field(0.0, ge=0)
    """Weight of the prompt tokens in the loss: useful for a model that starts from scratch; a pretrained one needs 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning-rate schedule after the warm-up."""
    warmup: int = Field(0, ge=0)
    """Optimiser steps over which the learning rate rises from 0."""
    batch_tokens: int = Field(8192, ge=16)
    """Tokens per optimiser step."""


class Eval(Section):
    """Evaluation before, during and after training, on a panel that never overlaps the training tasks."""

    split: str = "valid"
    """The split of the panel."""
    n: int = Field(128, ge=1)
    """Number of tasks in the panel."""
    seed: int = 0
    """Selects the tasks of the panel and seeds the environments."""
    every: int = Field(0, ge=0)
    """Evaluate every N iterations; 0: only before and after training."""
    temperature: float = Field(0.4, ge=0)
    """Sampling temperature; 0 is greedy."""
    repeats: int = Field(1, ge=1)
    """Attempts per task."""


class RewardTerm(Section):
    """A custom reward term, added to the environment's reward."""

    name: str
    """The name under which it is logged."""
    function: str
    """path/to/file.py:function, package.module:function or a registered name: a function of (turn, transition, trajectory)."""
    weight: float = 1.0
    """Its factor."""
    options: dict[str, Any] = {}
    """Options of the function: its keyword-only parameters."""

    @model_validator(mode="after")
    def _known(self) -> RewardTerm:
        check("reward", self)
        return self


class RunSection(Section):
    """What a run stores."""

    checkpoint_every: int = Field(10, ge=0)
    """Iterations between checkpoints, with one at the end; 0: no checkpoints, for short runs. Such a run starts over when resumed."""
    keep_checkpoints: int = Field(2, ge=1)
    """Number of recent checkpoints to keep; the best by evaluation is always kept."""
    keep_rollouts: int | None = Field(10, ge=0)
    """Number of recent iterations whose rollouts are kept on disk; none: all."""
    keep_tokens: bool = True
    """Also keep the exact tokens, which `turnwise replay --update` needs."""
    trackers: list[str] = []
    """Where metrics go in addition to metrics.jsonl: tensorboard, wandb, trackio, or path/to/file.py:Class."""
    tracker_options: dict[str, dict[str, Any]] = {}
    """Options of the trackers by name, for example wandb = {project = "mine", mode = "offline"}."""

    @model_validator(mode="after")
    def _known(self) -> RunSection:
        check("run", self)
        return self
