"""BFCL's multi-turn tool tasks."""

from importlib.util import find_spec

from turnwise.envs.registry import Need, register

register(
    "bfcl",
    "turnwise.envs.bfcl.env:BfclEnv",
    summary="BFCL's 800 multi-turn tool tasks: files, trading, travel, a vehicle, messages, tickets; scored by its own checks",
    splits={"train": 620, "valid": 180},
    max_turns=40,
    needs=[
        Need(f"package {name}", lambda name=name: find_spec(name) is not None, "pip install --no-deps bfcl-eval mpmath")  # type: ignore[misc]
        for name in ("bfcl_eval", "mpmath")
    ],
)
