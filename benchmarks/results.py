"""The end of every benchmark: its result is printed as JSON and, if a path is given, written there. And the beginning of those that need a
GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from turnwise.util.files import write_text_atomically


def need_gpu(without: str = "") -> None:
    """End with a sentence if there is no GPU. `without`: what runs on a CPU."""
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"This measurement needs an NVIDIA GPU, and torch sees none here.{f' On a CPU: {without}.' if without else ''}")


def publish(result: Any, path: Path | None, indent: int = 1) -> None:
    """Print the result as JSON, and write the same text to `path` unless it is None."""
    text = json.dumps(result, indent=indent, ensure_ascii=False) + "\n"
    print(text, end="")
    if path is not None:
        write_text_atomically(path, text)
