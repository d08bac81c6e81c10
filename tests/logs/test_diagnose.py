"""`turnwise diagnose`: what a person reads, what a program reads, and the example that both are shown with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Cli

from turnwise.logs.findings import diagnose
from turnwise.logs.reading import read_logs
from turnwise.logs.text import diagnosis_text, percent

EXAMPLE = ROOT / "examples" / "logs" / "household.jsonl"


def test_the_example_is_what_its_script_writes(tmp_path: Path) -> None:
    script = tmp_path / "make.py"
    script.write_text((EXAMPLE.parent / "make.py").read_text())
    subprocess.run([sys.executable, str(script)], check=True, cwd=ROOT)
    assert (tmp_path / "household.jsonl").read_text() == EXAMPLE.read_text() and EXAMPLE.stat().st_size < 300_000


def test_the_weakness_of_the_examples_agent_is_found() -> None:
    findings = diagnose(read_logs([EXAMPLE]).trajectories).findings
    states = [finding for finding in findings if finding.kind == "state" and finding.where.startswith("You pick up")]
    assert len(states) >= 4 and all(finding.worse.won == 0 for finding in states)
    assert any("sinkbasin" in finding.better.text for finding in states)


def test_the_tour_shows_what_the_command_prints(here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "tour" / "202-logs.md").read_text(encoding="utf-8")
    block = re.search(r"\$ turnwise diagnose examples/logs/household.jsonl\n(.*?)```", page, re.DOTALL)
    assert block
    monkeypatch.setenv("COLUMNS", "80")
    printed = here("diagnose", str(EXAMPLE)).stdout
    at = 0
    for part in block[1].split("…\n"):
        assert part in printed[at:], part
        at = printed.index(part, at) + len(part)


def test_json_has_everything_and_nothing_else_is_printed(here: Cli) -> None:
    done = here("diagnose", str(EXAMPLE), "--json")
    told = json.loads(done.stdout)
    assert told == json.loads(json.dumps(diagnose(read_logs([EXAMPLE]).trajectories).to_json())) and told["attempts"] == 108


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = diagnosis_text(diagnose(read_logs([EXAMPLE]).trajectories), width)
    assert max(map(len, text.splitlines())) <= width


def test_text_of_a_log_cannot_act_on_the_terminal(tmp_path: Path, here: Cli) -> None:
    lines = []
    for number in range(40):
        said = "\x1b]0;owned\x07bad" if number % 2 else "good"
        messages = [{"role": "user", "content": "\x1b[31mPick\u202e one."}, {"role": "assistant", "content": said}]
        lines.append(json.dumps({"messages": messages, "success": not number % 2}))
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    done = here("diagnose", "log.jsonl")
    assert "✗ bad: 0 of 20" in done.stdout and not {"\x1b", "\x07", "\u202e"} & set(done.stdout)


def test_a_log_in_which_nothing_decides_says_so_and_what_is_missing(tmp_path: Path, here: Cli) -> None:
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Gone."}]
    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps({"messages": messages, "success": number < 2}) for number in range(4)))
    done = here("diagnose", "log.jsonl")
    assert "Nothing that chance does not explain, in 0 comparisons." in done.stdout and "WHAT IS NOT SAID" in done.stdout
    assert here("diagnose", "nothing-*.jsonl").returncode == 2


@pytest.mark.parametrize(("share", "text"), [(0, "0 %"), (1, "100 %"), (0.05, "5 %"), (0.004, "0.4 %"), (0.592, "59 %"), (0.0962, "10 %")])
def test_shares_are_short(share: float, text: str) -> None:
    assert percent(share) == text
