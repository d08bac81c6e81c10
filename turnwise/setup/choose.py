"""Where the parts of a run are: in this process, with engines on a cluster, or with engines and learners there."""

from __future__ import annotations

from typing import Any

from turnwise.recipe.schema import Config
from turnwise.setup.cluster import ClusterSystem
from turnwise.setup.correcting import check_old_logprobs, with_8bit_cache, with_staleness
from turnwise.setup.gang import GangSystem
from turnwise.setup.system import System


def make_system(config: Config, **shown: Any) -> System:
    """The parts of a run, as its recipe says."""
    say = shown.get("say")
    config = with_staleness(with_8bit_cache(config, say), say)
    check_old_logprobs(config)
    if config.cluster is None:
        return System(config, **shown)
    kind = ClusterSystem if config.cluster.learners == 1 else GangSystem
    return kind(config, **shown)
