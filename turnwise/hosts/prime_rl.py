"""Credit in prime-rl 0.8: an algorithm whose advantages are per turn or per token.

prime-rl has no entry point for algorithms: `algo.type` names one of a closed list, and the list's classes are in a dictionary. `install`
replaces a class there by one that inherits everything from it but `score_group`. It has to run in the orchestrator's process before
algorithms are built. What prime-rl imports there that early, because a configuration names it, is the taskset's package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turnwise.hosts.traces import Turns, is_scored
from turnwise.hosts.versions import need_version
from turnwise.util.errors import TurnwiseError

VERSION = "0.8"
COMMIT = "559b447"  # of 2026-08-21, where it was tried


def install(
    name: str | Callable[..., Any] = "gigpo",
    *,
    algorithm: str = "grpo",
    anchor: str | None = None,
    reward: str | None = None,
    columns: Mapping[str, str] | None = None,
    **options: Any,
) -> type:
    """From now on, `algo.type` ALGORITHM gives this credit. `anchor`, `reward` and `columns` are explained in `traces.Turns`; other
    options are those of the credit. Returns the new class."""
    need_version("prime-rl", VERSION, f"git checkout {COMMIT} in a clone of PrimeIntellect-ai/prime-rl, then uv sync")
    from prime_rl.orchestrator.algo import ALGORITHM_CLASSES, assign_advantages

    if algorithm not in ALGORITHM_CLASSES or ALGORITHM_CLASSES[algorithm].action_loss_type != "rl":
        fitting = [key for key, value in ALGORITHM_CLASSES.items() if value.action_loss_type == "rl"]
        raise TurnwiseError(f"prime-rl's algorithm {algorithm!r} does not learn from advantages; take one of {', '.join(fitting)}")
    replaced: Any = ALGORITHM_CLASSES[algorithm]

    class TurnCredit(replaced):  # type: ignore[misc]
        def __init__(self, config: Any, policy_pool: Any):
            super().__init__(config, policy_pool)
            if getattr(config, "length_penalty", None) is not None:
                raise TurnwiseError("algo.length_penalty is for advantages of whole rollouts: leave it out with credit of Turnwise")

        async def score_group(self, episodes: list[Any]) -> None:
            turns = Turns(anchor, reward, columns)
            traces = [(episode, trace) for episode in episodes for trace in episode.traces if is_scored(trace)]
            for number, (episode, trace) in enumerate(traces):
                turns.add(episode, trace, [number] * len(trace.nodes))
            of_trace: list[list[float]] = [[] for _ in traces]
            for number, values in zip(turns.places, turns.credit(name, **options)[0], strict=True):
                of_trace[number] += values
            for (_, trace), values in zip(traces, of_trace, strict=True):
                assign_advantages(trace, values)

    ALGORITHM_CLASSES[algorithm] = TurnCredit
    return TurnCredit
