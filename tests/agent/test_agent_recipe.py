"""Every key of a recipe's [agent] section reaches the agent, and does there what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from turnwise import TurnwiseError
from turnwise.agent import Agent
from turnwise.config.loading import load_reference
from turnwise.envs import registry
from turnwise.envs.base import Observation
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.setup.build import build_agent, load_model

COUNTER = f"{ROOT / 'tests' / 'support' / 'counter_env.py'}:Counter"
SIZES = {f"model.tiny.{name}": size for name, size in {"layers": 1, "hidden": 32, "heads": 2, "vocabulary_tasks": 1}.items()}
SEEN = Observation("The counter shows 0.", actions=("add one", "wait", "help"))


def agent(**settings: Any) -> Agent:
    keys = {f"agent.{name}": value for name, value in {"max_prompt_tokens": 500, **settings}.items()}
    config = Config.load(None, {"env.name": COUNTER, "device": "cpu", **SIZES, **keys})
    return build_agent(config, load_model(config))


def first_prompt(made: Agent) -> str:
    context = made.context()
    context.start(registry.tasks(COUNTER, "train", n=1)[0], SEEN)
    return str(made.chat.tokenizer.decode(context.prompt().ids))


def test_hidden_actions_are_not_listed() -> None:
    assert "help" not in first_prompt(agent()) and "wait" in first_prompt(agent())
    shown = first_prompt(agent(hide_actions=["wait"]))
    assert "help" in shown and "wait" not in shown
    assert "wait" not in first_prompt(agent(show_actions=False))


def test_instructions_are_the_environments_own_or_the_recipes() -> None:
    assert "Bring the counter to three." in first_prompt(agent())
    other = first_prompt(agent(instructions="Count slowly."))
    assert "Count slowly." in other and "to three" not in other
    assert "to three" not in first_prompt(agent(instructions=""))


CALL = '<tool_call>\n{"name": "add", "arguments": {"amount": 3}}\n</tool_call>'


def test_tools_are_the_environments_own_where_the_recipe_names_none() -> None:
    made = agent(prompt="tool")
    assert '"name": "add"' in first_prompt(made) and '"name": "act"' not in first_prompt(made)
    parsed = made.read_text(CALL, SEEN)
    assert parsed.valid and json.loads(parsed.action) == {"name": "add", "arguments": {"amount": 3}}
    env = registry.make(COUNTER)
    env.reset(registry.tasks(COUNTER, "train", n=1)[0])
    assert env.step(parsed.action).success
    assert agent(prompt="think").settings.offered_tools == ()


def test_tools_of_the_recipe_replace_them_given_there_or_in_a_file(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "wave", "parameters": {"type": "object", "properties": {}}}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    for tools in ([tool], str(tmp_path / "tools.json")):
        made = agent(prompt="tool", tools=tools)
        assert made.read_text(CALL, SEEN).problem == "unknown tool"
        assert made.read_text('<tool_call>{"name": "wave", "arguments": {}}</tool_call>', SEEN).valid
    plain = agent(prompt="tool", tools=[])
    assert plain.read_text('<tool_call>{"name": "act", "arguments": {"action": "wait"}}</tool_call>', SEEN).action == "wait"


def test_tools_survive_the_saved_recipe(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "wave", "parameters": {"type": "object", "properties": {}, "required": []}}}
    config = Config.load(None, {"agent.max_prompt_tokens": 500, "agent.tools": [tool], "agent.hide_actions": []})
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert Config.load(tmp_path / "config.toml") == config


@pytest.mark.parametrize("tools", [[{"description": "no name"}], "nowhere.json", [{"function": {"name": ""}}]])
def test_tools_that_are_none_are_refused_with_a_reason(tools: Any) -> None:
    with pytest.raises(TurnwiseError, match="tools"):
        agent(prompt="tool", tools=tools)


def test_the_tools_in_the_page_are_those_of_the_counter(tmp_path: Path) -> None:
    [recipe] = re.findall(
        r"^```toml\n(\[agent\]\nprompt = .tool.*?)^```$", (ROOT / "docs" / "guides" / "agent.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "tools.toml").write_text(recipe)
    tools = Config.load(tmp_path / "tools.toml", {"agent.max_prompt_tokens": 500}).agent.tools
    assert tools == [dict(tool) for tool in load_reference(COUNTER).tools]
