"""What all benchmarks share, and the figures that they give to the pages.

    python benchmarks/SCRIPT.py PART [--write [SECTION]] …      measure; the result is printed as JSON
    python benchmarks/bench.py                                  put the results that are here into the pages
    python benchmarks/bench.py --check                          exit code 1 if a page shows other figures

A script has one result file, SCRIPT.json, with one section per part; `--write` replaces a section. A page shows figures between two marks.
The first one is an HTML comment with the text to be filled in:

    <!-- figures
    | rows | ms per step |
    |---|---|
    | 128 | {engine > 1.5b > decode128 > ms_per_step : .2f} |
    -->
    …
    <!-- end of figures -->

In braces: a result file, the keys that lead to a value, and how to format it. `{SCRIPT.FUNCTION ARGUMENT}` calls a function of a script
that returns lines.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.util.files import write_text_atomically

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORDS = 151936
SHAPES = {  # of Qwen2.5
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2},
    "7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4},
}


# -- parts of a script --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A measurement: the function that returns its result, and the function that adds its options to a parser."""

    measure: Callable[[argparse.Namespace], Any]
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def parser_of(script: str, about: str, parts: Mapping[str, Part]) -> argparse.ArgumentParser:
    """The command line of a script: a command for each part."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, part in parts.items():
        text = (part.measure.__doc__ or "").strip()
        one = commands.add_parser(name, help=text.splitlines()[0], description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        one.add_argument("--write", nargs="?", const=name, metavar="SECTION", help=f"write the section {name} of {Path(script).stem}.json")
        part.options(one)
    return parser


def main(script: str, about: str, parts: Mapping[str, Part]) -> None:
    """Run one part, print its result, and write it if that is wanted. A result of None is not printed."""
    options = parser_of(script, about, parts).parse_args()
    result = parts[options.part].measure(options)
    if result is None:
        return
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if options.write:
        write_section(script, options.write, result)


def write_section(script: str, section: str, result: Any) -> None:
    """Replace one section of a script's result file."""
    path = HERE / f"{Path(script).stem}.json"
    sections = read_results(Path(script).stem) | {section: result}
    write_text_atomically(path, json.dumps(dict(sorted(sections.items())), indent=1, ensure_ascii=False) + "\n")


def read_results(script: str) -> dict[str, Any]:
    """All sections of a script's result file; none if it does not exist."""
    path = HERE / f"{script}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


# -- machines and models ------------------------------------------------------------------------------------------------------------------


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def need_gpu(without: str = "") -> None:
    """End with a sentence if there is no GPU. `without`: what runs on a CPU."""
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"This measurement needs an NVIDIA GPU, and torch sees none here.{f' On a CPU: {without}.' if without else ''}")


def seconds(work: Callable[[], Any]) -> float:
    """Wall-clock seconds, with everything that the work started on a GPU."""
    import torch

    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def ceilings() -> dict[str, float]:
    """Bytes and operations per second that this GPU reaches at best: a large copy and a large matrix product in bfloat16."""
    import torch

    source, target = (torch.randn(2**30, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    target.copy_(source)
    left @ right
    copy = min(seconds(lambda: target.copy_(source)) for _ in range(5))
    product = min(seconds(lambda: [left @ right for _ in range(10)]) for _ in range(3)) / 10
    return {"copy_bytes_per_s": 2 * source.nbytes / copy, "matmul_flop_per_s": 2 * 8192**3 / product}


def random_model(shape: str, device: str = "cuda", half: bool = True, vocabulary: int = WORDS) -> Any:
    """A model of this shape with random weights, made on the device: bfloat16, or float32 if not `half`."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        **SHAPES[shape],
        vocab_size=vocabulary,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=shape != "7b",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if half else torch.float32)
    try:
        with torch.device(device):
            return Qwen2ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


# -- figures in the pages -----------------------------------------------------------------------------------------------------------------

FIGURES = re.compile(r"(<!-- figures\n(.*?)-->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
CALL = re.compile(r"\{(\w+)\.(\w+)(?: ([^{}]*))?\}")
VALUE = re.compile(r"\{([^{}:]+?)(?: : ([^{}]*))?\}")


def fill_in(template: str) -> str:
    """The text of a template with all figures."""

    def call(match: re.Match[str]) -> str:
        script, function, argument = match.groups()
        return "\n".join(getattr(importlib.import_module(script), function)(argument))

    def value(match: re.Match[str]) -> str:
        script, *keys = re.split(" ?> ?", match[1])
        found: Any = read_results(script)
        for key in keys:
            found = found[int(key)] if isinstance(found, list) else found[key]
        return format(found, match[2] or "").replace("-", "−").replace("%", " %")

    return VALUE.sub(value, CALL.sub(call, template))


def renewed(page: str) -> str:
    """A page with the figures of the result files."""
    return FIGURES.sub(lambda match: match[1] + fill_in(match[2]) + match[4], page)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def stale_pages() -> dict[Path, str]:
    """The pages that show other figures than the result files, with their renewed text."""
    texts = {path: path.read_text(encoding="utf-8") for path in pages()}
    return {path: new for path, text in texts.items() if (new := renewed(text)) != text}


def update_pages() -> int:
    """Put the results into the pages, or say which pages are stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page shows other figures")
    check = parser.parse_args().check
    stale = stale_pages()
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)}: {'shows other figures than the result files' if check else 'updated'}")
        if not check:
            write_text_atomically(path, text)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(update_pages())
