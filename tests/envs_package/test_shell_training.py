"""A training run whose policy attacks the sandbox of its shell."""

from __future__ import annotations

from pathlib import Path

from conftest import ROOT
from hostile_shell import HostileShell
from small_runs import UNTAUGHT
from test_shell import sandboxed, sandboxes

import turnwise as tw
from turnwise.runs.folder import Run


@sandboxed
def test_training_goes_on_under_attack_and_nothing_outside_changes(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("alive\n")
    before = sandboxes()
    small = UNTAUGHT | {"iterations": 1, "collect.groups": 1, "engine.max_tokens": 2, "env.tasks": 8, "model.tiny.vocabulary_tasks": 2}
    result = tw.train(ROOT / "recipes" / "own-env.toml", env=HostileShell, out=str(tmp_path / "runs"), quiet=True, **small)
    assert result.summary["finished"] and canary.read_text() == "alive\n" and sandboxes() <= before
    run = Run.open(result.folder)
    assert run.environment() == {"name": run.environment()["name"], "shows": "terminal"}
    attempts = run.trajectories(1)
    infos = [turn["info"]["env"] for attempt in attempts for turn in attempt["turns"]]
    assert len(attempts) == 4 and not any(attempt["success"] for attempt in attempts)
    assert any("took longer" in info.get("limit", "") for info in infos) and any(
        "broke a limit" in info.get("reason", "") for info in infos
    )
