"""Loading the model that a recipe names: a Hugging Face folder, or a newly made tiny one. For a vision-language model also the processor
that turns images into its inputs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.config.schema import Config
from turnwise.util.errors import TurnwiseError
from turnwise.util.hub import find_model
from turnwise.util.threads import request, threads_for

if TYPE_CHECKING:
    from turnwise.agent.vision import Vision
    from turnwise.envs.scripts import Limits

WORDS_FROM = 20  # tasks whose texts make the tokenizer that is only used for counting


def choose_device(name: str) -> str:
    """The device that `auto` means here; an error if a GPU is requested and there is none."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise TurnwiseError("device=cuda, but torch sees no GPU here. Use device=auto or device=cpu")
    return name


def use_threads(model: Any, asked: int | None = None) -> None:
    """Let torch compute with as many threads as a model of this size can use, or with the given number."""
    import torch

    request(asked)
    count = threads_for(sum(weight.numel() for weight in model.parameters()), asked)
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def warn_of_slow_dtype(dtype: str, device: str) -> None:
    """A recipe made for a GPU would seem to hang on a processor that has to emulate its dtype."""
    if dtype == "bfloat16" and device == "cpu" and not computes_bfloat16():
        warnings.warn(
            "this processor has no instructions for bfloat16, which makes the model hundreds of times slower: set model.dtype=float32",
            stacklevel=2,
        )


def computes_bfloat16() -> bool:
    """Whether torch multiplies matrices of bfloat16 in hardware here, as far as it tells."""
    import torch

    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a torch without that library
        return True


def load(config: Config, folder: str | Path | None = None, limits: Limits | None = None) -> tuple[Any, Any]:
    """Model (float32, on the CPU) and tokenizer. `folder` replaces the recipe's model, as when a run is resumed. `limits` says how the
    environment is played for the vocabulary of the tiny model."""
    path = folder or config.model.path
    if path is not None:
        return load_folder(path)
    from turnwise.learn.tiny import build_tiny_for

    tiny = config.model.tiny
    return build_tiny_for(
        config.env.name,
        options=dict(config.env.options),
        extra=[config.agent.system, *([config.agent.instructions] if config.agent.instructions else [])],
        sample=tiny.vocabulary_tasks,
        layers=tiny.layers,
        hidden=tiny.hidden,
        heads=tiny.heads,
        max_length=tiny.max_length,
        names=tiny.names,
        seed=config.seed,
        limits=limits,
    )


def load_tiny(config: Config, folder: str | Path) -> tuple[Any, Any]:
    """The tiny model of a recipe as it starts, with the tokenizer in a folder instead of a vocabulary that is collected from the
    environment."""
    from turnwise.learn.tiny import TinySize, build_model

    tokenizer, tiny = tokenizer_of(folder), config.model.tiny
    return build_model(len(tokenizer), TinySize(tiny.layers, tiny.hidden, tiny.heads, tiny.max_length), config.seed, tokenizer), tokenizer


def load_tokenizer(config: Config, folder: str | Path | None = None, limits: Limits | None = None) -> Any:
    """The tokenizer of the recipe's model without its weights; if it names none, one made from the environment's words, about one token
    per word: good enough for counting."""
    path = folder or config.model.path
    if path is not None:
        return tokenizer_of(path)
    from turnwise.agent.prompts import load_template
    from turnwise.learn.tiny import build_tokenizer, environment_texts

    own = config.agent
    words = environment_texts(config.env.name, n=WORDS_FROM, options=config.env.options, limits=limits)
    texts = [*words, own.system, own.instructions or "", load_template(own.prompt).source]
    return build_tokenizer(texts, names=config.model.tiny.names)


def tokenizer_of(path: str | Path) -> Any:
    """The tokenizer in a model's folder."""
    from transformers import AutoTokenizer

    where = find_model(path)
    try:
        return AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except Exception as error:
        if not Path(where).exists():
            raise TurnwiseError(f"model {path}: there is no such folder here, and no hub gave it ({_line(error)})") from error
        raise TurnwiseError(
            f"model {path}: its tokenizer cannot be loaded ({_line(error)}). A model folder needs its tokenizer's files"
        ) from error


def load_folder(path: str | Path) -> tuple[Any, Any]:
    """A causal language model, with or without vision, and its tokenizer from a folder (or a hub's name, if a hub can be reached)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from turnwise.learn.saving import no_progress_bar

    folder = Path(path)
    if folder.exists() and not (folder / "config.json").is_file():
        raise TurnwiseError(f"{folder} is not a model folder: it has no config.json")
    tokenizer = tokenizer_of(path)
    try:
        kind = AutoModelForImageTextToText if sees(path) else AutoModelForCausalLM
        with no_progress_bar():
            model = kind.from_pretrained(find_model(path), dtype=torch.float32, use_safetensors=True, trust_remote_code=False)
    except Exception as error:
        raise TurnwiseError(f"model {path} cannot be loaded: {_line(error)}") from error
    return model.eval(), tokenizer


def sees(path: str | Path) -> bool:
    """Whether the model in a folder takes images in addition to text."""
    from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoConfig

    config = AutoConfig.from_pretrained(find_model(path), trust_remote_code=False)
    return hasattr(config, "vision_config") and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def load_vision(path: str | Path | None) -> Vision | None:
    """The processor of a vision-language model; None for other models."""
    from transformers import AutoProcessor

    from turnwise.agent.vision import Vision

    try:
        if path is None or not sees(path):
            return None
        processor = AutoProcessor.from_pretrained(find_model(path), trust_remote_code=False)
    except TurnwiseError:
        raise
    except Exception as error:
        raise TurnwiseError(
            f"model {path}: it takes images, and its processor cannot be loaded ({_line(error)}). "
            "Most processors need: pip install 'turnwise[images]'"
        ) from error
    if not hasattr(processor, "image_processor"):
        raise TurnwiseError(f"model {path}: it takes images, but its folder has no image processor (preprocessor_config.json)")
    return Vision(processor)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
