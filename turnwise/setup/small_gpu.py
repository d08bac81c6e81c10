"""A run on a GPU that is too small for its recipe: settings that the recipe leaves open are chosen, said and kept before it starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from turnwise.config.schema import Config
from turnwise.engines.registry import declared
from turnwise.learn.footprint import CONTEXT
from turnwise.learn.models import choose_device
from turnwise.learn.segments import grow_segments
from turnwise.runs.folder import Run
from turnwise.setup.fit import GB, Found, find, with_settings
from turnwise.setup.fit_words import NEARLY, is_near, lines, refusal
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically
from turnwise.util.machine import all_memory

TIGHT = 0.85  # of the memory: a run that needs more has its tensors in segments that grow
HOST_PART = 0.6  # of the host's memory: the model is loaded there too, and checkpoints are made there
MOST = 10**6  # gigabytes: more is a mistake
ON_A_CPU = "--memory limits a GPU's memory, and this run is on a CPU: leave it out. `turnwise fit RECIPE --memory GB` needs no GPU"
MEMORY = "memory.json"  # in the folder of a run whose settings were chosen


def fitted(
    config: Config, memory: int, say: Callable[[str], None] = lambda text: None, host: int | None = None
) -> tuple[Config, Found | None]:
    """The recipe, with settings that make it fit into so many bytes if it would not, and what was found; None if nothing had to change.
    Raises an error if nothing that the recipe leaves open is enough. `host`: bytes of the host's memory that may be used."""
    try:
        found = find(config, memory, host=host)
    except TurnwiseError:
        return config, None  # an unknown shape: nothing can be said, and the learner decides as it runs
    if found.fit.peak > NEARLY * memory:
        raise TurnwiseError(refusal(found))
    peak = f"{found.fit.peak / GB:.1f} GB"
    doubt = f"the predicted peak is {peak}, so the run may run out of memory; it is tried because the estimate may be off by 5 %"
    if not found.fit.changed:
        if is_near(found.fit):
            say(f"this GPU has {memory / GB:.1f} GB, and no setting that saves memory is left: {doubt}")
        return config, None
    chosen = f"Chosen to save memory; {doubt}:" if is_near(found.fit) else f"Chosen so that it fits (predicted peak {peak}):"
    say(f"this GPU has {memory / GB:.1f} GB, and the recipe would need about {found.plain.peak / GB:.1f} GB. {chosen}")
    for line in lines(found):
        say(f"  {line}")
    return with_settings(config, found.settings), found


def for_this_gpu(config: Config, say: Callable[[str], None]) -> tuple[Config, Found | None]:
    """The recipe as it runs here. Only a GPU that is too small changes anything; processes of a cluster decide for themselves."""
    if config.cluster is not None or choose_device(config.device) != "cuda":
        return config, None
    import torch

    from turnwise.engines.native.memory import free_bytes

    return fitted(config, free_bytes(torch.device("cuda")) + CONTEXT, say, int(HOST_PART * all_memory()))


@contextmanager
def limited(config: Config, memory: float | None) -> Iterator[None]:
    """Inside, this process takes no more than `memory` gigabytes of its GPU, and a run is as on a card of that size; None: no limit."""
    if memory is None:
        yield
        return
    _check_limit(config)
    if choose_device(config.device) != "cuda":
        raise TurnwiseError(ON_A_CPU)
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
    if not declared(config.engine.name).shares_weights:
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
    fitted(config, int(memory * GB), said.append)
    return said or [f"it fits into {memory:g} GB as it is: the predicted peak is {found.fit.peak / GB:.1f} GB"]


def prepare_allocator(config: Config) -> bool:
    """Let memory grow in segments if this run will nearly fill its GPU; whether it does. Before anything is allocated there."""
    if config.cluster is not None or not declared(config.engine.name).shares_weights or choose_device(config.device) != "cuda":
        return False
    import torch

    from turnwise.engines.native.memory import free_bytes

    try:
        found = find(config, free_bytes(torch.device("cuda")) + CONTEXT)
    except TurnwiseError:
        return False  # an unknown shape
    return prepared(found)


def prepared(found: Found) -> bool:
    """The same for a recipe whose memory is known."""
    return found.fit.peak > TIGHT * found.fit.memory and grow_segments()


def keep_choice(run: Run, found: Found | None) -> None:
    """Keep next to the recipe of a run what was chosen for it, and why."""
    if found is None:
        return
    record = {
        "memory_gb": found.fit.memory / GB,
        "as_it_is_gb": found.plain.peak / GB,
        "predicted_peak_gb": found.fit.peak / GB,
        "chosen": found.settings,
        "words": lines(found),
        "terms": {term.name: term.bytes for term in found.fit.terms},
    }
    with run.writing():
        write_text_atomically(run.folder / MEMORY, json.dumps(record, indent=1) + "\n")
