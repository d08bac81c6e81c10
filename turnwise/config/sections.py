"""The sections of a recipe about playing: environment, agent, model, engine, collection, evaluation, rewards and the run's folder.

Every field is typed, and documented where it is defined and nowhere else. `learning.py` has the sections about learning, `schema.py` the
whole recipe.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from turnwise.config.checks import check
from turnwise.config.section import Options, Section, Stored


class Env(Section):
    """The environment and its tasks."""

    name: str = "household"
    """A name from `turnwise envs`, or your own class: path/to/my_env.py:MyEnv."""
    options: Options = {}
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
    tools: Annotated[list[dict[str, Any]] | str | None, Stored] = None
    """With prompt=tool: JSON schemas of tools, or the path of a JSON file with a list of them; none: the `tools` of the
    environment or, if it has none, one tool `act` that takes the action as text. Calls of other tools reach the environment as JSON."""
    max_prompt_tokens: int = Field(2048, ge=8)
    """Longer prompts lose their oldest history; if even the shortest form is too long, the attempt ends. Unless given, less if the model
    has no room for it next to a response."""
    images: bool = True
    """Show the environment's images to a vision-language model; false: leave them out. Text-only models never get images."""
    template_options: Annotated[dict[str, Any], Stored] = {}
    """Options of the model's chat template, for example enable_thinking = false."""
    options: Options = {}
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
    """Names of the linear layers; none: all of attention and MLP, in a mixture of experts those of attention."""
    base: Literal["full", "4bit"] = "full"
    """How the frozen weights of the linear layers are stored: as model.dtype says, or in 4 bits (NF4, with bitsandbytes), which engine and
    learner both compute with."""


class Tiny(Section):
    """A small transformer with its own word tokenizer, trained from scratch."""

    layers: int = Field(4, ge=1)
    """Layers."""
    hidden: int = Field(128, ge=8)
    """Width."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    max_length: int = Field(1024, ge=16)
    """Maximum sequence length. Unless given, more if the longest prompt and response need it."""
    vocabulary_tasks: int = Field(400, ge=1)
    """Number of training tasks that are played to collect the vocabulary."""
    names: bool = False
    """One token for a name such as get_stock_info, instead of one for each of its words: for actions that are calls."""


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
    """native (fast, Llama and Qwen families, shares the learner's weights), transformers (any causal language model), vllm (vLLM on an
    NVIDIA GPU, with a copy of the weights), openai (a server, for evaluation only), or path/to/file.py:Class."""
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
    """Maximum response length in tokens. Unless given, 64 for the tiny model, and less if the model has no room for it next to a prompt."""
    stop: list[str] = []
    """Stop strings that end a response."""
    max_batch: int = Field(128, ge=1)
    """Maximum number of sequences generated in parallel."""
    sleep: bool = False
    """With name=native on a GPU: release the cache memory while the weights are updated. Decode steps are then recorded again in every
    iteration, which takes time; turn it on if the update runs out of memory."""
    options: Options = {}
    """Further options of the engine: `turnwise algos engine NAME` and docs/engines.md explain them. A server's API key is read from the
    environment variable that `key_variable` names (default: OPENAI_API_KEY, if it is set) and is never stored."""

    def option(self, name: str) -> Any:
        """The value of an option; None if it is unset or "none"."""
        value = self.options.get(name)
        return None if isinstance(value, str) and value == "none" else value

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


class Eval(Section):
    """Evaluation before, during and after training, on a panel that never overlaps the training tasks."""

    split: str = "valid"
    """The split of the panel."""
    n: int | None = Field(None, ge=1)
    """Number of tasks in the panel; none: all of the split, but at most 128."""
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
    options: Options = {}
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
    tracker_options: dict[str, Options] = {}
    """Options of the trackers by name, for example wandb = {project = "mine", mode = "offline"}."""

    @model_validator(mode="after")
    def _known(self) -> RunSection:
        check("run", self)
        return self
