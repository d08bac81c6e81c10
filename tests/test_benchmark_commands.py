"""Commands of benchmarks that the pages show have the options that they name, and say what they need."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launching import python

ROOT = Path(__file__).parent.parent
PAGES = ("performance", "engines", "learner", "models", "cluster-learner")
OF_KERNELS = ("engine_balance", "engine_products", "engine_steps", "engine_tuning", "gate_tiles", "learner_kernels", "packed_products")


def commands(page: str) -> list[tuple[str, str]]:
    """Benchmarks with the words that follow them, in code of one or several lines."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))]
    blocks = [line.split("#")[0] for line in re.findall(r"^    (.+)$", text, re.MULTILINE)]
    found = [re.search(r"(benchmarks/\w+\.py)(.*)", code) for code in inline + blocks]
    return [(match[1], match[2]) for match in found if match]


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_a_command_exists(page: str) -> None:
    wrong = [
        f"{script} {option}"
        for script, words in commands(page)
        for option in re.findall(r"--[a-z][a-z-]*", words)
        if f'"{option}"' not in (ROOT / script).read_text(encoding="utf-8")
    ]
    assert not wrong


def test_commands_with_options_are_found() -> None:
    assert sum("--" in words for page in PAGES for _, words in commands(page)) > 15


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="kernels can be run here")
@pytest.mark.parametrize("name", OF_KERNELS)
def test_a_benchmark_of_kernels_says_what_it_needs(name: str) -> None:
    said = subprocess.run([sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--help"], capture_output=True, text=True, check=False)
    assert said.returncode == 1 and said.stderr.strip().startswith("This benchmark measures kernels. It needs an NVIDIA GPU"), said.stderr
    assert "benchmarks/" in said.stdout, "what it measures is shown"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "words", ["iteration.py", "learner.py --size 1.5b", "overlap.py", "learner_profile.py", "attention.py", "engine.py", "read_rate.py"]
)
def test_a_benchmark_that_needs_a_gpu_says_so(words: str) -> None:
    name, *options = words.split()
    said = python(str(ROOT / "benchmarks" / name), *options)
    assert said.returncode == 1 and said.stderr.startswith("This measurement needs an NVIDIA GPU"), said.stderr[-300:]
