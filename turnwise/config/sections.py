"""The sections of a recipe: every field typed, and explained where it stands and nowhere else. `schema.py` has the whole recipe.

`[credit]` and `[objective]` take the options of what they name; `checks.py` says who knows whether a name is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from turnwise.config.checks import check
from turnwise.config.options import mistaken
from turnwise.util.errors import TurnwiseError

NAME = "run"  # of a run whose recipe says no name


class Section(BaseModel):
    """A table of a recipe. The text "none" unsets a field that may be empty."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _kind(cls, value: Any, info: ValidationInfo) -> Any:
        """Nothing is taken for what it is not: true is no number, 1 is no switch."""
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
    """A name that `turnwise envs` lists, or a file of your own: path/to/my_env.py:MyEnv."""
    options: dict[str, Any] = {}
    """Options of the environment, for example size = "tiny"."""
    split: str = "train"
    """The split that training tasks come from."""
    tasks: int | None = Field(None, ge=1)
    """How many tasks of the split are used (the first ones); none: all. Generated tasks are endless and need a number."""
    max_turns: int | None = Field(None, ge=1)
    """The step limit; none: the environment's own."""
    reward_scale: float = 1.0
    """Factor of the environment's reward. The paper's success reward of 10 is 10 where the environment gives 1."""
    workers: int = Field(0, ge=0)
    """Worker processes that play the environments; 0 plays them in this process."""
    timeout: float | None = Field(60.0, gt=0)
    """Seconds that one reset or step may take (with workers); the attempt then ends with that stop reason."""
    memory_mb: int | None = Field(None, ge=1)
    """Megabytes that one worker process, and each process that it starts, may allocate (needs workers; Linux); none: no limit."""
    in_order: bool = True
    """With workers: pass the environments' answers on in the order asked for, so that a repeated run gives the same weights. false is
    faster where steps take long and differ much in their time, and cannot be repeated exactly."""
    own_seeds: bool = False
    """Give each attempt of a group chance of its own, instead of one seed that the group shares."""


class Agent(Section):
    """How prompts are made and responses read."""

    context: str = "window"
    """window (each turn its own prompt with the last `history` turns), full (the dialogue grows), or path/to/file.py:Class."""
    history: int = Field(2, ge=0)
    """With context=window: how many earlier observations and actions a prompt shows."""
    prompt: str = "think"
    """A prompt template: think, react, plain, action, remind, tool, search, text, or the path of a template of your own."""
    parse: Literal["auto", "tags", "whole", "text", "tool", "verbs"] = "auto"
    """How the action is read: between <action> tags, the first line of the response (whole), all of it (text), the model's native tool
    call, between tags named after the action's verb; auto: what the prompt asks for."""
    valid: Literal["parsed", "thought", "admissible"] = "parsed"
    """What makes a turn valid: that it could be parsed (the paper), also that a thought came first, or that the action is admissible."""
    show_actions: bool = True
    """List the admissible actions in the prompt, where the environment knows them."""
    hide_actions: list[str] = ["help"]
    """Admissible actions that the prompt does not list and that chance does not play in a warm start; `*` stands for any text."""
    system: str = ""
    """A system message; empty: none."""
    instructions: str | None = None
    """What is said about the environment where a sequence starts; none: the environment's own words, empty: nothing."""
    tools: list[dict[str, Any]] | str | None = None
    """With prompt=tool: JSON schemas of tools, or the path of a JSON file with a list of them; none: the environment's own `tools`, and
    where it has none, one tool `act` that takes the action as text. Calls of tools other than that `act` reach the environment as JSON."""
    max_prompt_tokens: int = Field(2048, ge=8)
    """Longer prompts lose their oldest history; if even the shortest form is longer, the attempt ends."""
    images: bool = True
    """Show the environment's images to a model that can see; false: leave them out. A model that cannot see never gets any."""
    template_options: dict[str, Any] = {}
    """Options of the model's chat template, for example enable_thinking = false."""
    options: dict[str, Any] = {}
    """Options of a context of your own."""
    max_invalid: int | None = Field(None, ge=1)
    """End an attempt after so many unparsable responses in a row; none: never."""


class Lora(Section):
    """Low-rank adapters instead of full training."""

    rank: int = Field(16, ge=1)
    """Rank of the adapters."""
    alpha: float = Field(32.0, gt=0)
    """Scale: the adapters' output counts alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the adapters' input."""
    targets: list[str] | None = None
    """Names of the linear layers; none: all of attention and MLP."""


class Tiny(Section):
    """A small transformer of our own with its own word tokenizer, trained from scratch."""

    layers: int = Field(4, ge=1)
    """Layers."""
    hidden: int = Field(128, ge=8)
    """Width."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    max_length: int = Field(1024, ge=16)
    """Longest sequence."""
    vocabulary_tasks: int = Field(400, ge=1)
    """How many training tasks are looked at to collect the words."""


class Model(Section):
    """The model that is trained."""

    path: str | None = None
    """A Hugging Face model folder (or hub name, where a hub can be reached); none: the tiny model."""
    tiny: Tiny = Tiny()
    """The tiny model, used where `path` is none."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the computation; the optimiser's weights are float32 in any case."""
    lora: Lora | None = None
    """Train adapters instead of all weights."""


class Engine(Section):
    """Who turns prompts into responses."""

    name: Literal["native", "transformers", "openai"] = "transformers"
    """native (fast, Llama and Qwen families, shares the learner's weights), transformers (any causal language model), or openai (a server,
    for evaluation alone)."""
    url: str | None = None
    """With name=openai: the server's address, as http://127.0.0.1:8000/v1."""
    model: str | None = None
    """With name=openai: the model's name there."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature while training."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: the smallest set of tokens with this probability."""
    top_k: int = Field(0, ge=0)
    """Only the k most likely tokens; 0: all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Only tokens at least this likely, relative to the most likely one."""
    max_tokens: int = Field(512, ge=1)
    """Longest response."""
    stop: list[str] = []
    """Texts that end a response."""
    max_batch: int = Field(128, ge=1)
    """Sequences that are generated side by side."""
    sleep: bool = False
    """With name=native on a GPU: give the cache's memory back while the weights are updated. Decode steps are then recorded anew in every
    iteration, which takes time; turn it on where the update runs out of memory."""
    options: dict[str, Any] = {}
    """Further options of the engine: docs/engines.md lists them. The key of a server is read from the environment variable that
    `key_variable` names (OPENAI_API_KEY, where that is set) and is never written anywhere."""


class Collect(Section):
    """How a batch of attempts is made."""

    groups: int = Field(16, ge=1)
    """Tasks in an iteration."""
    group_size: int = Field(8, ge=1)
    """Attempts at each task."""
    strategy: Literal["plain", "dynamic"] = "plain"
    """plain, or dynamic: drop groups whose attempts all have the same return and collect others in their stead."""
    refills: int = Field(10, ge=0)
    """With dynamic: how many times at most."""
    shuffle: bool = True
    """Tasks in an order fixed by the seed, or in the task set's own."""


class Named(Section):
    """A section whose further keys are options of what it names."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, frozen=True, allow_inf_nan=False)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given."""
        return dict(self.model_extra or {})

    def check_names(self, known: Iterable[str]) -> None:
        """A key that is no option of what is named may be one of the section's own, misspelt."""
        own = list(type(self).model_fields)
        for key in self.options:
            near = get_close_matches(key, [*own, *known], n=1, cutoff=0.6) if key not in known else []
            if near and near[0] in own:
                raise TurnwiseError(f"unknown key {key}. Did you mean {type(self).__name__.lower()}.{near[0]}?")


class Credit(Named):
    """Who deserves what. Further keys are the algorithm's own options: see `turnwise algos NAME`."""

    name: str = "gigpo"
    """A credit algorithm that `turnwise algos` lists, or path/to/file.py:function."""

    @model_validator(mode="after")
    def _known(self) -> Credit:
        check("credit", self)
        return self


class Objective(Named):
    """How the policy moves. Further keys are the objective's own options: see `turnwise algos NAME`."""

    name: str = "clip"
    """An objective that `turnwise algos` lists."""
    aggregation: Literal["token", "turn", "trajectory", "trajectory_turn", "turn_sum", "trajectory_sum"] = "turn"
    """What counts the same in the loss: every token, turn or trajectory; or plain sums divided by `constant`."""
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


class Value(Section):
    """A critic: a small head on the policy's hidden states."""

    level: Literal["turn", "token"] = "turn"
    """One value a turn (before the response) or one a token."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate of the head."""
    coef: float = Field(0.5, ge=0)
    """Weight of the value loss beside the policy's."""
    clip: float | None = Field(None, gt=0)
    """Bound on how far a value may move in one iteration; none: no bound."""


class Learner(Section):
    """The optimiser and the shape of an update."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up; linear and cosine end at 0."""
    warmup: int = Field(0, ge=0)
    """Optimiser steps in which the learning rate rises from 0."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay, not on norms and biases."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    clip: float | None = Field(1.0, gt=0)
    """Largest norm of the gradient; none: no clipping."""
    epochs: int = Field(1, ge=1)
    """Passes over an iteration's data."""
    minibatches: int = Field(1, ge=1)
    """Optimiser steps in a pass."""
    minibatch_size: int | None = Field(None, ge=1)
    """Instead: about so many units (see minibatch_unit) in each optimiser step."""
    minibatch_unit: Literal["trajectory", "turn"] = "trajectory"
    """What a mini-batch is made of: whole trajectories, or turns."""
    tokens_per_batch: int = Field(0, ge=0)
    """Tokens that are computed at once; a matter of memory, never of the result. 0: what a GPU's memory allows, 8,192 on a CPU."""
    gradient_checkpointing: bool | None = None
    """Save memory by computing activations twice; none: as far as a GPU's memory asks for it, never on a CPU."""
    skip_zero_credit: bool | None = None
    """Leave turns out of the computation whose credit is exactly 0, where nothing else needs them; none: on a GPU."""
    old_logprobs: Literal["learner", "engine", "auto"] = "learner"
    """Whose log-probs the ratio is anchored on: computed again by the learner, those that the engine reported, or (auto) the engine's
    where they are near enough to the learner's."""
    engine_gap: float = Field(0.03, ge=0)
    """With old_logprobs = auto: the largest mean distance between the engine's and the learner's log-probs that is near enough."""
    kl_stop: float | None = Field(None, gt=0)
    """End an iteration's update when the KL from the old policy exceeds this; none: never."""
    value: Value | None = None
    """A critic, for credit that needs values (gae, bi_level_gae)."""


class Sft(Section):
    """A supervised warm start from expert trajectories."""

    required: bool = True
    """Whether an environment without an expert is an error. If not, a tiny model learns the listed actions there, played by chance; a
    pretrained one needs no warm start."""
    file: str | None = None
    """Instead of the expert: trajectories that `turnwise trajectories` wrote (.jsonl or .parquet). Those that succeeded are played again in
    the environment, so that their prompts are this agent's own; thoughts are learned with the actions."""
    tasks: int = Field(256, ge=1)
    """How many training tasks the expert plays; with a file, how many of its trajectories are taken at most."""
    tries: int = Field(32, ge=1)
    """Where chance plays instead of an expert: how many attempts it makes at each task, of which the best is learned from."""
    noise: float = Field(0.0, ge=0, lt=1)
    """Share of turns in which chance plays instead of the expert."""
    imitate: Literal["expert", "all"] = "expert"
    """With noise: learn from the expert's turns alone, or from all. With all, the model imitates a clumsy player: it speaks well, tries
    everything and plays badly, which is a good place for reinforcement to start from."""
    epochs: int = Field(3, ge=1)
    """Passes over the expert's turns."""
    steps: int | None = Field(None, ge=1)
    """Instead: so many optimiser steps."""
    until: float | None = Field(None, gt=0, le=1)
    """Stop earlier, once this share of `look_tasks` training tasks is won, one attempt at each as in training: what is left to learn is
    then left to reinforcement, whatever the seed. None: no look."""
    at_least: float | None = Field(None, gt=0, le=1)
    """Measure after the last step, and go on while less than this share of `look_tasks` training tasks is won: half as many steps
    again, at most four times. None: no measurement."""
    look_every: int = Field(10, ge=1)
    """With until: optimiser steps between two looks."""
    look_tasks: int = Field(48, ge=1)
    """With until and at_least: how many tasks a measurement plays."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate."""
    prompt_weight: float = Field(0.0, ge=0)
    """How much the prompts' tokens are learned as well: for a model that starts from nothing; a pretrained one needs 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up."""
    warmup: int = Field(0, ge=0)
    """Optimiser steps in which the learning rate rises from 0."""
    batch_tokens: int = Field(8192, ge=16)
    """Tokens of an optimiser step."""


class Eval(Section):
    """Evaluation during training and at its ends, on a panel that never overlaps the training tasks."""

    split: str = "valid"
    """The split that the panel comes from."""
    n: int = Field(128, ge=1)
    """Tasks of the panel."""
    seed: int = 0
    """Which tasks of the split make the panel, and the chance that they meet."""
    every: int = Field(0, ge=0)
    """Evaluate after every so many iterations; 0: only before and after."""
    temperature: float = Field(0.4, ge=0)
    """Sampling temperature; 0 is greedy."""
    repeats: int = Field(1, ge=1)
    """Attempts at each task."""


class RewardTerm(Section):
    """A reward term of your own, added to the environment's reward."""

    name: str
    """The name it is logged by."""
    function: str
    """path/to/file.py:function, a function of (turn, transition, trajectory)."""
    weight: float = 1.0
    """Its factor."""
    options: dict[str, Any] = {}
    """Options of the function: its keyword-only parameters."""


class Run(Section):
    """What is kept."""

    checkpoint_every: int = Field(10, ge=0)
    """Iterations between checkpoints, with one at the end; 0: none at all, for runs of minutes. Such a run starts over when resumed."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many of the last ones stay; the best by evaluation stays in any case."""
    keep_rollouts: int | None = Field(10, ge=0)
    """Iterations whose rollouts stay on disk; none: all."""
    keep_tokens: bool = True
    """Keep the exact tokens beside them: what `turnwise replay --update` needs."""
    trackers: list[str] = []
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, trackio, or path/to/file.py:Class."""
    tracker_options: dict[str, dict[str, Any]] = {}
    """Options of the trackers, by their names, for example wandb = {project = "mine", mode = "offline"}."""

    @model_validator(mode="after")
    def _known(self) -> Run:
        check("run", self)
        return self
