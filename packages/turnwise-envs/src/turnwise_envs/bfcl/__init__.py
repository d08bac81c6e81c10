"""BFCL's multi-turn tool tasks."""

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import needs_private, register

# The package pins an older numpy, so it is installed without its dependencies. Of those, its multi-turn part imports mpmath alone.
register(
    "bfcl",
    "turnwise_envs.bfcl.env:BfclEnv",
    summary=ENVIRONMENTS["bfcl"],
    splits={"train": 620, "valid": 180},
    max_turns=40,
    needs=[needs_private("bfcl_eval", "bfcl", "bfcl-eval==2026.3.23", "mpmath>=1.3")],
)
