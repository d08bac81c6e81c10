"""The airline, retail and telecom domains of τ²-bench: tools, a policy, and a simulated user."""

from __future__ import annotations

from turnwise.envs.registry import Need, register


def _present() -> bool:
    from turnwise.envs.tau2.package import folder

    return folder() is not None


register(
    "tau2",
    "turnwise.envs.tau2.env:Tau2Env",
    summary="τ²-bench: customer service in airline, retail and telecom, with tools, a policy and a simulated user",
    splits={"train": 178, "valid": 100},
    max_turns=40,
    needs=[Need("package inspect-evals", _present, "pip install --no-deps 'inspect-evals>=0.26'")],
)
