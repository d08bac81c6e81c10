"""The airline, retail and telecom domains of τ²-bench: tools, a policy, and a simulated user."""

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import needs_private, register

register(
    "tau2",
    "turnwise_envs.tau2.env:Tau2Env",
    summary=ENVIRONMENTS["tau2"],
    splits={"train": 178, "valid": 100},
    max_turns=40,
    needs=[needs_private("inspect_evals", "tau2", "inspect-evals==0.26.0")],
)
