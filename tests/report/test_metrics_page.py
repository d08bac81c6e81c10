"""docs/reference/metrics.md names every metric that a run logs, and none that no run logs."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from metrics_cases import CLUSTER, PAGE, documented, pattern
from train_cases import BANDIT, start

from turnwise import objectives
from turnwise.report import warnings

TERM = "def brief(turn, transition, trajectory):\n    return -0.1\n"
ROOMY = {"agent.max_prompt_tokens": 400, "model.tiny.max_length": 512}
NUMBERS = {**ROOMY, "env.name": "numberline", "env.tasks": 18, "env.max_turns": 4}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {**ROOMY, "eval.every": 1, "agent.prompt": "think", "agent.context": "window"},
    "several steps, the engine's log-probs": {"learner.minibatches": 2, "learner.old_logprobs": "auto", "objective.dual_clip": 3.0},
    "credit of 0 is left out": {"learner.skip_zero_credit": True, "credit.omega": 0.0, "collect.groups": 8, "collect.group_size": 2},
    "value head": {"credit.name": "gae", "learner.value.level": "turn", "objective.kl": "reward"},
    "KL in the loss, stopped early": {"objective.kl": "loss", "learner.kl_stop": 1e-9, "learner.epochs": 2, "learner.lr": 0.01},
    "dynamic sampling": {"plan.name": "dynamic", "engine.name": "transformers"},
    "filtered groups": {"plan.name": "filtered", "plan.zero": True},
    "resampled batches": {"plan.name": "gpg", "plan.attempts": 2},
    "a credit that is chosen": {"credit.name": "auto"},
    "importance": {"objective.importance": "truncate", "learner.minibatches": 2},
    "rejection": {"objective.importance": "reject", "objective.importance_options": {"k3_high": 0.01}},
    "faults": {"env.name": BANDIT.replace(":Bandit", ":Fickle"), "env.tasks": 40, "collect.groups": 8},
    "reward term": {"reward": True},
    "warm start": {**NUMBERS, "sft.tasks": 8, "sft.epochs": 1, "agent.valid": "admissible"},
    "task types and a context that is too small": {
        "env.name": "household",
        "env.options": {"size": "tiny"},
        "env.max_turns": 2,
        "agent.max_prompt_tokens": 100,
        "model.tiny.max_length": 512,
        "agent.show_actions": False,
        "agent.prompt": "action",
    },
    "a program": {
        "env.name": "program",
        "env.options": {
            "function": f"{ROOT / 'tests' / 'support' / 'program_cases.py'}:two_turns",
            "file": [{"prompt": str(number), "split": "train" if number < 4 else "valid"} for number in range(6)],
        },
        "env.tasks": 4,
        **ROOMY,
    },
}
LEARNED = {"token.old_logprob", "token.ref_logprob"}  # what the learner itself gives an objective; methods bring the rest
KINDS |= {
    f"objective {entry.name}": {"objective.name": entry.name, "iterations": 1}
    for entry in objectives.algorithms
    if entry.name != "clip" and set(entry.needs) <= LEARNED
}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out = tmp_path_factory.mktemp("runs")
    (out / "terms.py").write_text(TERM)
    found: set[str] = set()
    adapters = {"adapters": {"model.lora.rank": 2, "objective.kl": "loss"}} if find_spec("peft") else {}
    for changes in (KINDS | adapters).values():
        if changes.get("reward"):
            changes = {"reward": [{"name": "brief", "function": f"{out / 'terms.py'}:brief"}]}
        result = start(out, **{"iterations": 2, "eval.n": 2, "run.checkpoint_every": 100, **changes})
        found |= {name for line in result.metrics for name in line}
    return found


def test_every_logged_metric_is_in_the_page(logged: set[str]) -> None:
    assert len(documented()) == len(set(documented())), "no metric is explained twice"
    known = [pattern(name) for name in documented()]
    missing = sorted(name for name in logged if not any(each.fullmatch(name) for each in known))
    assert not missing, f"docs/reference/metrics.md does not explain {missing}"


def test_the_page_names_no_metric_that_is_never_logged(logged: set[str]) -> None:
    logged = logged | {f"learner/{name}" for name in ("memory_peak_gib", "memory_held_gib")}  # on a GPU alone: see test_learn_gpu.py
    logged |= set(CLUSTER)
    unknown = [name for name in documented() if not any(pattern(name).fullmatch(each) for each in logged)]
    assert not unknown, f"no run logs {unknown}"


def test_warnings_read_metrics_that_are_logged(logged: set[str]) -> None:
    read = set(re.findall(r'"((?:collect|credit|learner|eval|cluster)/\w+)"', Path(warnings.__file__).read_text()))
    assert len(read) > 15 and read <= logged | set(CLUSTER)


def test_every_warning_is_in_the_page() -> None:
    section = PAGE.read_text().split("\n## Warnings")[1].split("\n## ")[0]
    assert re.findall(r"^\| ([a-zA-Z ]+) \|", section, re.MULTILINE)[1:] == list(warnings.RULES)
