"""A run on a GPU that is too small for its recipe: settings that the recipe leaves open are chosen, said and kept before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from turnwise.learn.models import choose_device
from turnwise.planner.fit import GB, Found, find, with_settings
from turnwise.planner.memory import CONTEXT
from turnwise.planner.tables import NEARLY, fit_as_data, lines, refusal
from turnwise.recipe.schema import Config
from turnwise.runs.folder import Run
from turnwise.util.errors import TurnwiseError
from turnwise.util.threads import all_memory

TIGHT = 0.85  # of the memory: a run that needs more has its tensors in segments that grow
HOST_PART = 0.6  # of the host's memory: the model is loaded there too, and checkpoints are made there
MOST = 10**6  # gigabytes: more is a mistake
ON_A_CPU = "--memory limits a GPU's memory, and this run is on a CPU: leave it out. `turnwise fit RECIPE --memory GB` needs no GPU"
MEMORY = "memory.json"  # in the folder of a run whose settings were chosen


def fitted(found: Found, say: Callable[[str], None] = lambda text: None) -> Config:
    """The recipe, with settings that make it fit if it would not. Raises an error if nothing that the recipe leaves open is enough."""
    memory, fit = found.memory, found.fit
    if fit.peak > NEARLY * memory:
        raise TurnwiseError(refusal(found))
    peak, near = f"{fit.peak / GB:.1f} GB", fit.peak > memory
    doubt = f"the predicted peak is {peak}, so the run may run out of memory; it is tried because the estimate may be off by 5 %"
    if not fit.changed:
        if near:
            say(f"this GPU has {memory / GB:.1f} GB, and no setting that saves memory is left: {doubt}")
        return found.config
    chosen = f"Chosen to save memory; {doubt}:" if near else f"Chosen so that it fits (predicted peak {peak}):"
    say(f"this GPU has {memory / GB:.1f} GB, and the recipe would need about {found.plain.peak / GB:.1f} GB. {chosen}")
    for line in lines(found):
        say(f"  {line}")
    return with_settings(found.config, found.settings)


@contextmanager
def fitted_to_gpu(
    config: Config, memory: float | None, say: Callable[[str], None], resumed: bool = False
) -> Iterator[tuple[Config, Found | None]]:
    """Inside, this process takes no more than `memory` gigabytes of its GPU, as on a card of that size (None: no limit), and memory grows
    in segments if the run will nearly fill it. Gives the recipe as it runs here, and what was chosen for it. Only a GPU that is too small
    changes anything; a resumed run keeps its settings, and processes of a cluster decide for themselves."""
    if memory is not None:
        _check_limit(config)
    on_gpu = config.cluster is None and choose_device(config.device) == "cuda"
    if memory is not None and not on_gpu:
        raise TurnwiseError(ON_A_CPU)
    if not on_gpu:
        yield config, None
        return
    import torch

    from turnwise.engines.native.memory import free_bytes

    with limited(memory) if memory is not None else nullcontext():
        changed, found = config, None
        with suppress(TurnwiseError):  # an unknown shape: nothing can be said, and the learner decides as it runs
            found = find(config, free_bytes(torch.device("cuda")) + CONTEXT, host=int(HOST_PART * all_memory()))
        if found is not None and not resumed:
            changed = fitted(found, say)
        if found is not None and config.engine.declared.shares_weights:
            prepared(found)
        yield changed, None if changed is config else found


@contextmanager
def limited(memory: float) -> Iterator[None]:
    """Inside, torch allocates so much that this process takes no more than `memory` gigabytes of its GPU."""
    import torch

    total = torch.cuda.mem_get_info()[1]
    if not CONTEXT < memory * GB <= total:
        raise TurnwiseError(f"--memory {memory:g}: this GPU has {total / GB:.1f} GB, and CUDA itself takes {CONTEXT / GB:.1f} GB")
    before = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.set_per_process_memory_fraction((memory * GB - CONTEXT) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before)


def _check_limit(config: Config) -> None:
    """Say why the memory of a run with this recipe cannot be limited."""
    if config.cluster is not None:
        raise TurnwiseError("--memory limits the GPU of a run in one process, and this recipe has a [cluster] section: leave it out")
    if not config.engine.declared.shares_weights:
        raise TurnwiseError(
            f"--memory limits what torch allocates, and the engine {config.engine.name} takes memory outside it: leave it out"
        )
    if config.device == "cpu":
        raise TurnwiseError(ON_A_CPU)


def foreseen(config: Config, memory: float) -> list[str]:
    """What a run that is limited to so many gigabytes would choose, without a GPU."""
    _check_limit(config)
    if not CONTEXT < memory * GB <= MOST * GB:
        raise TurnwiseError(f"--memory {memory:g}: give gigabytes up to {MOST:,}; CUDA itself takes {CONTEXT / GB:.1f} GB")
    said: list[str] = []
    try:
        found = find(config, int(memory * GB))
    except TurnwiseError as error:
        return [f"whether it fits into {memory:g} GB is not known: {error}"]
    fitted(found, said.append)
    return said or [f"it fits into {memory:g} GB as it is: the predicted peak is {found.fit.peak / GB:.1f} GB"]


def prepared(found: Found) -> bool:
    """Let memory grow in segments if this run will nearly fill its GPU; whether it does. Before anything is allocated there."""
    return found.fit.peak > TIGHT * found.memory and grow_segments()


# torch's allocator usually asks for one block of memory after another and never moves anything: a gap between two tensors serves only what
# is smaller. Expandable segments are ranges of addresses to which pages are added, and whose empty pages are given back: a gap of several
# pages is no loss. Their tensors cannot be shared with other processes through CUDA's handles on every machine, so runs on a cluster and
# engines of other libraries do without.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # in which a user sets up the allocator
DECIDED = ("expandable_segments", "backend")  # if the user has said anything about these, nothing is changed


def grow_segments() -> bool:
    """From now on, what is allocated is in expandable segments. Returns whether it is so: not if the user has set it up differently."""
    import torch

    setup = ",".join(os.environ.get(name, "") for name in VARIABLES)
    if any(word in setup for word in DECIDED):
        return "expandable_segments:true" in setup.lower()
    private: Any = torch._C
    change = getattr(private, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    change("expandable_segments:True")
    return True


def keep_choice(run: Run, found: Found | None) -> None:
    """Keep next to the recipe of a run what was chosen for it, and why."""
    if found is not None:
        run.write_facts(MEMORY, fit_as_data(found))
