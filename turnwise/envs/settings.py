"""`[env]`: the environment and its tasks."""

from __future__ import annotations

from pydantic import Field

from turnwise.config.section import Options, Section


class Env(Section):
    """The environment and its tasks."""

    name: str = "household"
    """A name from `turnwise envs`, or your own class: path/to/my_env.py:MyEnv."""
    options: Options = {}
    """Options of the environment, for example size = "tiny"."""
    split: str = "train"
    """The split of the training tasks."""
    tasks: int | None = Field(None, ge=1)
    """Use the first N tasks of the split; none: all. Generated tasks are unlimited and need a number."""
    max_turns: int | None = Field(None, ge=1)
    """The turn limit; none: the environment's."""
    reward_scale: float = 1.0
    """Factor applied to the environment's reward. Use 10 for the paper's success reward of 10 if the environment gives 1."""
    workers: int = Field(0, ge=0)
    """Number of worker processes for the environments; 0 runs them in this process."""
    timeout: float | None = Field(60.0, gt=0)
    """Time limit in seconds for one reset or step (with workers); exceeding it ends the attempt with that stop reason."""
    memory_mb: int | None = Field(None, ge=1)
    """Memory limit in megabytes for a worker process, and for each process it starts (needs workers; Linux); none: no limit."""
    in_order: bool = True
    """With workers: process results in the order in which they were requested, so that a repeated run gives the same weights. false is
    faster if steps are slow and vary a lot, but not exactly reproducible."""
    own_seeds: bool = False
    """Give each attempt of a group its own seed, instead of one seed for the whole group."""
