"""Texts as vectors: any sentence-transformers model, using only transformers and torch.

Such a model is a folder with a transformer, and `modules.json` lists what follows it (pooling, optionally a dense layer and normalisation).
A folder without `modules.json` is a plain transformer with mean pooling. Other kinds of modules are rejected by name, because slightly
wrong vectors would go unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.rotary import Stretching

Floats = NDArray[np.float32]
Step = Callable[[torch.Tensor], torch.Tensor]
DEFAULT_LENGTH = 512


class Encoder:
    """`model`: a folder or a name on the model hub. `max_length`: in tokens, none: the model's own. `device`: auto takes a GPU if there is
    one."""

    def __init__(self, model: str, device: str = "auto", max_length: int | None = None):
        from transformers import AutoConfig, AutoModel, AutoTokenizer, T5EncoderModel

        self.folder = _folder(model)
        modules = _modules(self.folder)
        inner = self.folder / modules[0][1]
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        try:
            config = AutoConfig.from_pretrained(inner, trust_remote_code=False)
            kind = T5EncoderModel if config.model_type in ("t5", "mt5") else AutoModel
            self._model = (
                kind.from_pretrained(inner, dtype=torch.float32, use_safetensors=True, trust_remote_code=False).to(self.device).eval()
            )
            self._tokenizer = AutoTokenizer.from_pretrained(inner, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise TurnwiseError(f"encoder {model!r}: {str(error).splitlines()[0]}") from None
        self._stretching = Stretching(self._model)
        self.max_length = max_length or _own_length(inner, config)
        self._pool = pooling(_read(self.folder / modules[1][1] / "config.json")) if len(modules) > 1 else pooling({"pooling_mode": "mean"})
        self._steps = [self._step(name, self.folder / path) for name, path in modules[2:]]
        self.width = int(self.encode(["width"]).shape[1])

    def _step(self, name: str, folder: Path) -> Step:
        if name == "normalize":
            return lambda vectors: torch.nn.functional.normalize(vectors, dim=1)
        return dense_layer(folder, self.device)

    def encode(self, texts: Sequence[str], batch: int = 64) -> Floats:
        """One row per text. Long texts are truncated to `max_length` tokens. Texts of similar length share a batch."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        rows: Floats | None = None
        for start in range(0, len(order), batch):
            places = order[start : start + batch]
            part = self._encode([texts[place] for place in places])
            if rows is None:
                rows = np.empty((len(texts), part.shape[1]), np.float32)
            rows[places] = part
        return np.empty((0, self.width), np.float32) if rows is None else rows

    def _encode(self, texts: list[str]) -> Floats:
        with torch.inference_mode():
            return self._vectors(texts)

    def _vectors(self, texts: list[str]) -> Floats:
        lengths: dict[str, Any] = {"padding": True, "truncation": True, "max_length": self.max_length, "return_tensors": "pt"}
        tokens = self._tokenizer(texts, split_special_tokens=True, **lengths).to(self.device)  # "[SEP]" in a passage is plain text
        vectors = self._pooled(dict(tokens))
        for step in self._steps:
            vectors = step(vectors)
        found: Floats = vectors.float().cpu().numpy()
        return found

    def _pooled(self, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
        """One vector per row. Rows with different rotary frequencies, because of their length, run separately."""
        mask = tokens["attention_mask"]
        if not self._stretching:
            return self._pool(self._model(**tokens).last_hidden_state, mask)
        keys = [self._stretching.key(length) for length in mask.sum(1).tolist()]
        parts: dict[int, torch.Tensor] = {}
        for key in dict.fromkeys(keys):
            rows = [row for row, own in enumerate(keys) if own == key]
            columns = mask[rows].any(0)
            part = {name: values[rows][:, columns] for name, values in tokens.items()}
            self._stretching.reset()
            parts |= dict(zip(rows, self._pool(self._model(**part).last_hidden_state, part["attention_mask"]), strict=True))
        return torch.stack([parts[row] for row in range(len(keys))])


def _folder(model: str) -> Path:
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, ignore_patterns=["*.onnx", "*.h5", "*.ot", "*.msgpack", "onnx/*", "openvino/*"]))
    except Exception as error:  # no network, no such name, no access: the same for the caller
        raise TurnwiseError(
            f"encoder {model!r}: neither a local folder nor a model that can be downloaded ({type(error).__name__})"
        ) from None


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module, in order: a transformer, pooling, and any of dense and normalize."""
    listed = _read(folder / "modules.json") if (folder / "modules.json").is_file() else [{"type": "Transformer", "path": ""}]
    found = [(str(module["type"]).rpartition(".")[2].lower(), str(module["path"])) for module in listed]
    kinds = [kind for kind, _ in found]
    fitting = kinds[:2] in (["transformer", "pooling"], ["transformer"]) and set(kinds[2:]) <= {"dense", "normalize"}
    if not fitting:
        raise TurnwiseError(f"{folder / 'modules.json'}: unknown modules {kinds}; supported are transformer, pooling, dense and normalize")
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TurnwiseError(f"{path}: cannot be read ({error})") from None


def _own_length(inner: Path, config: Any) -> int:
    path = inner / "sentence_bert_config.json"
    own = _read(path).get("max_seq_length") if path.is_file() else None
    return int(own or min(getattr(config, "max_position_embeddings", DEFAULT_LENGTH), DEFAULT_LENGTH))


def _mean(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)


def _cls(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    first = mask.argmax(1)  # not 0 with padding on the left
    return hidden[torch.arange(len(hidden), device=hidden.device), first]


def _last(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def _weighted(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    place = torch.arange(1, mask.shape[1] + 1, device=hidden.device)
    return _mean(hidden, (mask * place)[..., None].float())


def _mean_sqrt(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weight = mask[..., None].float()
    return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9).sqrt()


POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {  # in the order in which they are concatenated
    "cls": _cls,
    "max": lambda hidden, mask: hidden.masked_fill(mask[..., None] == 0, -1e9).max(1).values,
    "mean": lambda hidden, mask: _mean(hidden, mask[..., None].float()),
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted,
    "lasttoken": _last,
}
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def pooling(config: dict[str, Any]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The pooling modes in the model's pooling config: one name, or one flag per mode."""
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or [mode for flag, mode in FLAGS.items() if config.get(flag)])
    for mode in modes:
        if mode not in POOLINGS:
            raise unknown_name("pooling", str(mode), POOLINGS)
    ways = [POOLINGS[mode] for mode in sorted(modes or ["mean"], key=list(POOLINGS).index)]
    return lambda hidden, mask: torch.cat([way(hidden, mask) for way in ways], 1)


def dense_layer(folder: Path, device: str) -> Step:
    """A linear layer with its activation, as sentence-transformers stores it."""
    from safetensors.torch import load_file

    config = _read(folder / "config.json")
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    activations: dict[str, Step] = {"Identity": lambda x: x, "Tanh": torch.tanh, "ReLU": torch.relu, "GELU": torch.nn.functional.gelu}
    if name not in activations:
        raise unknown_name(f"activation of {folder}:", name, activations)
    if not (folder / "model.safetensors").is_file():
        raise TurnwiseError(f"{folder}: the layer's weights must be in model.safetensors")
    weights = {key: value.to(device, torch.float32) for key, value in load_file(folder / "model.safetensors").items()}
    act = activations[name]
    return lambda vectors: act(torch.nn.functional.linear(vectors, weights["linear.weight"], weights.get("linear.bias")))
