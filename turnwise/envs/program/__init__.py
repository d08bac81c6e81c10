"""A program that you already have as an environment: it calls the model itself, through an endpoint that records every call."""

from turnwise.envs.registry import Need, needs_package, register

register(
    "program",
    "turnwise.envs.program.env:ProgramEnv",
    summary="a program that calls the model itself: a Python function, a command in any language, or a server",
    splits={"train": None, "valid": None, "test": None},
    needs=[
        needs_package("starlette", "serve"),
        Need("a program", lambda: False, "one of the options function, command and url: see docs/guides/own-agents.md"),
    ],
)
