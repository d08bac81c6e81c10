"""Loading a model from a Hugging Face folder, and whether it can be trained. For a vision-language model also the processor that turns
images into its inputs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.learn.shapes import KNOWN
from turnwise.util.errors import TurnwiseError, install_command
from turnwise.util.hub import base_of, find_model
from turnwise.util.threads import request, threads_for

if TYPE_CHECKING:
    from turnwise.agent.vision import Vision

INDEX = "model.safetensors.index.json"  # of weights in several files


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


def tokenizer_of(path: str | Path) -> Any:
    """The tokenizer in a model's folder."""
    from transformers import AutoTokenizer

    where = find_model(base_of(path))
    try:
        return AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except Exception as error:
        if not Path(where).exists():
            raise TurnwiseError(f"model {path}: there is no such folder here, and no hub gave it ({_line(error)})") from error
        raise TurnwiseError(
            f"model {path}: its tokenizer cannot be loaded ({_line(error)}). A model folder needs its tokenizer's files"
        ) from error


def load_folder(path: str | Path) -> tuple[Any, Any]:
    """A causal language model, with or without vision, and its tokenizer from a folder (or a hub's name, if a hub can be reached). LoRA
    adapters in it are merged into the model that they are for."""
    import torch

    from turnwise.learn.saving import no_progress_bar

    kind = class_of(config_of(path))
    tokenizer = tokenizer_of(path)
    try:
        with no_progress_bar():
            model, found = kind.from_pretrained(
                find_model(base_of(path)), dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:
        raise TurnwiseError(f"model {path} cannot be loaded: {_line(error)}") from error
    if missing := sorted(found["missing_keys"]):
        raise TurnwiseError(
            f"model {path}: its files have no weights for {len(missing)} of the parameters of {type(model).__name__}, among them "
            f"{missing[0]}. They would be random numbers: give the folder of a complete causal language model"
        )
    if base_of(path) != str(path):
        from turnwise.learn.lora import merged

        model = merged(model, find_model(path))
    return model.eval(), tokenizer


def config_of(path: str | Path) -> Any:
    """What transformers reads in the config.json of a model's folder; or of such a file, if that is the path."""
    from transformers import AutoConfig

    where = Path(find_model(base_of(path)))
    if where.is_dir() and not (where / "config.json").is_file():
        raise TurnwiseError(f"model {path}: this is not a model folder, because it has no config.json")
    try:
        return AutoConfig.from_pretrained(str(where), trust_remote_code=False)
    except Exception as error:
        raise TurnwiseError(
            f"model {path}: its config.json cannot be loaded ({_line(error)}). It has to describe a model that transformers knows"
        ) from error


def class_of(config: Any) -> Any:
    """The class of transformers that makes or loads models of a configuration."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if _sees(config) else AutoModelForCausalLM


def sees(path: str | Path) -> bool:
    """Whether the model in a folder takes images in addition to text."""
    return _sees(config_of(path))


def _sees(config: Any) -> bool:
    from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    return hasattr(config, "vision_config") and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def check_family(path: str | Path, sampled: bool = True) -> None:
    """Reports a model that cannot be trained, or cannot be `sampled` by an engine of this process. Its weights are not read."""
    if reason := unfit(config_of(path), sampled) or _incomplete(Path(find_model(path))):
        raise TurnwiseError(f"model {path}: {reason}")


def _incomplete(folder: Path) -> str | None:
    """Which files of weights are missing in a model's folder."""
    if not folder.is_dir() or (folder / "adapter_config.json").is_file():  # a name on a hub; adapters on a base that is elsewhere
        return None
    found = {file.name for file in folder.glob("*.safetensors")}
    try:
        listed = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values() if (folder / INDEX).is_file() else ()
        missing = sorted(set(listed) - found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / INDEX} cannot be read ({_line(error)})"
    if missing:
        return f"{len(missing)} of the files that {INDEX} lists are missing, among them {missing[0]}: copy or download the whole folder"
    if not found:
        return "this folder has no weights (*.safetensors; weights in other formats are not loaded)"
    return None


def unfit(config: Any, sampled: bool) -> str | None:
    """Why a model of this configuration cannot be used."""
    if config.model_type in KNOWN:
        return None
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    from turnwise.engines.module import lacks_cache

    kinds = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING if _sees(config) else MODEL_FOR_CAUSAL_LM_MAPPING
    if getattr(config, "is_encoder_decoder", False):
        problem = "an encoder with a decoder"
    elif type(config) not in kinds:
        problem = "no causal language model of transformers"
    elif type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
        problem = "an encoder, whose attention looks ahead"
    else:
        return lacks_cache(kinds[type(config)]) if sampled else None
    return (
        f"a model of the type {config.model_type} is {problem}. What is trained and played here predicts one token after another: use a "
        "causal language model, for example of a family in docs/guides/models.md"
    )


def load_vision(path: str | Path | None) -> Vision | None:
    """The processor of a vision-language model; None for other models."""
    from transformers import AutoProcessor

    from turnwise.agent.vision import Vision

    if path is None or not sees(path):
        return None
    try:
        processor = AutoProcessor.from_pretrained(find_model(base_of(path)), trust_remote_code=False)
    except Exception as error:
        raise TurnwiseError(
            f"model {path}: it takes images, and its processor cannot be loaded ({_line(error)}). "
            f"Most processors need: {install_command('images')}"
        ) from error
    if not hasattr(processor, "image_processor"):
        raise TurnwiseError(f"model {path}: it takes images, but its folder has no image processor (preprocessor_config.json)")
    return Vision(processor)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
