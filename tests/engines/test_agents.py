"""Real clients, as they come from their makers, use a tool through the endpoint and train a tiny model.

`make test-agents` runs this file with all five clients in a virtual environment of their own (`TURNWISE_AGENTS` names its Python). Without
that, those run that this Python can import.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from endpoint_cases import Scripted, qwen_chat

import turnwise as tw
from turnwise.agent.chat import Chat
from turnwise.collect.programs import ProgramCollector
from turnwise.config.loading import load_file
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Stop, Trajectory
from turnwise.engines.base import Sampling
from turnwise.envs.program.env import ProgramEnv
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_trajectories

AGENTS = ROOT / "examples" / "agents"
SHOP = load_file(AGENTS / "shop.py")
PYTHON = os.environ.get("TURNWISE_AGENTS")  # with all five clients
PACKAGES = {
    "openai": "openai",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
    "langchain": "langchain_openai",
    "smolagents": "smolagents",
}
TASK = next(task for task in (ProgramEnv(command=["x"], file=list(SHOP.tasks())).tasks("train")) if task.id == "price-bread")
CALL = '<tool_call>\n{"name": "price", "arguments": {"item": "bread"}}\n</tool_call>'
REQUIRED = (  # smolagents insists on calls, so their beginning is written for the model, and the answer is one of them
    '{"name": "price", "arguments": {"item": "bread"}}\n</tool_call>',
    '{"name": "final_answer", "arguments": {"answer": "4"}}\n</tool_call>',
)


def program(name: str) -> dict[str, Any]:
    """The options of a client's program: a function in this process, or a command in the clients' own environment."""
    if PYTHON is None and name == "openai":
        return {"function": f"{AGENTS / 'openai_agent.py'}:solve"}
    if PYTHON is None and find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed: make test-agents runs it in an environment of its own")
    return {"command": [PYTHON or sys.executable, str(AGENTS / f"{name}_agent.py")]}


def played(name: str, engine: Any, chat: Chat, max_tokens: int, n: int = 1) -> list[Trajectory]:
    env = ProgramEnv(file=[{"id": "x"}], crash_reward=0.0, **program(name))
    starts = [Start(TASK, 0, number, 0, number) for number in range(n)]
    return ProgramCollector(env, engine, chat, Sampling(max_tokens=max_tokens), 20).run(starts)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_client_calls_its_tool_and_continues_its_conversation(name: str) -> None:
    texts = REQUIRED if name == "smolagents" else (CALL, "4")
    chat = qwen_chat()
    engine = Scripted(chat, *texts)
    found = played(name, engine, chat, 256)
    assert {(one.stop, one.stop_detail, one.success) for one in found} == {(Stop.DONE, "", True)}
    turns = [turn for one in found for turn in one.turns]
    assert [turn.info["call"]["number"] for turn in turns] == [0, 1] and turns[0].action == 'price({"item": "bread"})'
    assert "4" in turns[1].observation, "the tool's result"
    assert [list(turn.prompt_ids) for turn in turns] == [list(request.prompt_ids) for request in engine.requests]
    rewrites = name == "smolagents"  # it sends the assistant's turn again as other text: that is a conversation of its own
    assert len(found) == (2 if rewrites else 1)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_client_trains_a_tiny_model(name: str, tmp_path: Path) -> None:
    options = {"file": list(SHOP.tasks()), "crash_reward": 0.0, "at_once": 4, **program(name)}
    changes: dict[str, Any] = {
        "env": {"name": "program", "options": options},
        "agent": {"max_prompt_tokens": 8000},
        "model.tiny": {"layers": 1, "hidden": 32, "heads": 2, "max_length": 8192, "vocabulary_tasks": 4},
        "engine": {"name": "native", "max_tokens": 8},
        "collect": {"groups": 2, "group_size": 2},
        "sft": None,
        "eval": {"n": 1},
    }
    run = Run.open(tw.train(iterations=1, out=str(tmp_path), quiet=True, **changes).folder)
    found = stored_trajectories(run, 1, tokens=True)
    assert len({turn.info["attempt"] for one in found for turn in one.turns}) == 4
    assert all(len(turn.response_ids) == len(turn.logprobs) > 0 for one in found for turn in one.turns)
    assert np.isfinite(run.metrics()[-1]["learner/loss"])
