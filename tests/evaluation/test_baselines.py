"""Baselines by prompting: what each agent is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from openai_server import serving
from test_eval_server import COUNTER, served
from train_cases import start

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.cli.evaluate import PROMPTED


def said(body: dict[str, Any]) -> str:
    return "\n".join(message["content"] for message in body["messages"])


@pytest.mark.parametrize(
    ("agent", "answer", "words", "not_words"),
    [
        ("plain", "add one", "Answer with one action and nothing else.", "<think>"),
        ("react", "<think>on</think><action>add one</action>", "<think>the thought</think>", "nothing else"),
    ],
)
def test_each_agent_asks_in_its_own_way(agent: str, answer: str, words: str, not_words: str) -> None:
    with serving(lambda handler, body, before: handler.complete(answer)) as server:
        found = tw.evaluate(env=COUNTER, n=2, **PROMPTED[agent], **served(server.url))
        first = said(server.seen[0][1])
        last = server.seen[-1][1]["messages"]
    assert found.success.rate == 1.0 and found.invalid == 0.0
    assert words in first and not_words not in first and "Bring the counter to three." in first
    roles = [message["role"] for message in last]
    assert (roles == ["user"]) == (agent == "plain")  # react keeps its thoughts in a dialogue
    if agent == "react":
        assert last[1]["content"] == answer


@pytest.mark.parametrize("agent", ["plain", "react"])
def test_a_model_here_is_prompted_too(tmp_path: Path, agent: str) -> None:
    run = start(tmp_path, iterations=0).folder
    changes = {**PROMPTED[agent], "agent.max_prompt_tokens": 900, "model.tiny.max_length": 1024, "engine.max_tokens": 8}
    found = tw.evaluate(run, n=2, **changes)
    assert found.success.n == 2 and len(found.trajectories) == 2
    assert found.to_dict() == tw.evaluate(run, n=2, **changes).to_dict()


def test_from_the_command_line(tmp_path: Path, here: Cli) -> None:
    with serving(lambda handler, body, before: handler.complete("<action>add one</action>")) as server:
        asked = ["--url", server.url, "--model", "a-model", "--env", COUNTER, "--n", "2", "--agent", "react"]
        done = here("eval", *asked, "--save", "out.json")
    assert done.returncode == 0, done.stderr
    assert "100.0 % (2/2" in done.stdout and json.loads((tmp_path / "out.json").read_text())["player"] == "react"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["eval", "some-model", "--agent", "reakt"], "unknown agent 'reakt'. Did you mean 'react'"),
        (["eval", "--agent", "reflexion", "--env", COUNTER], "--agent react --repeats N"),
        (["eval", "--agent", "react", "--trials", "2"], "--agent react --repeats N"),
        (["eval", "--agent", "react", "--examples", "2"], "agent.instructions"),
        (["replay", "runs/mine", "--update"], "a replay compares credit"),
        (["rescore", "runs/mine"], "turnwise trajectories RUN --evals"),
    ],
)
def test_mistakes_and_what_is_gone_are_named(here: Cli, words: list[str], problem: str) -> None:
    done = here(*words)
    assert done.returncode == 2 and problem in done.stderr


def test_prompts_that_never_fit_are_an_error_and_no_failure_of_the_model(tmp_path: Path) -> None:
    run = start(tmp_path, iterations=0).folder
    with pytest.raises(TurnwiseError, match="2 of 2 attempts were ended by a prompt that did not fit"):
        tw.evaluate(run, n=2, **PROMPTED["react"], **{"agent.max_prompt_tokens": 8})
