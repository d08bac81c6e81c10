"""Tasks for an agent with tools: Python functions and MCP servers, without writing an environment."""

from turnwise.envs.registry import Need, register

register(
    "tools",
    "turnwise.envs.tools.env:ToolsEnv",
    summary="your own tasks (JSONL) with tools: Python functions and MCP servers; a function or a command scores the answer",
    splits={"train": None, "valid": None, "test": None},
    needs=[
        Need(
            "tasks, tools and a reward",
            lambda: False,
            "options file, functions or servers, reward or check: see docs/environments/tools.md",
        )
    ],
)
