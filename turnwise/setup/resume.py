"""What may change when a run is resumed: its length, how often it is measured and saved, its name and its trackers.

Everything else would have changed the earlier iterations, so a run keeps it; another value means another run. The changes are recorded in
resumed.jsonl: at which iteration, from what to what.

A learning-rate schedule follows the new total from the next iteration on, as it would in a run that had been that long from the start.
With the constant schedule, lengthening therefore gives exactly the weights of such a run. With linear and cosine the earlier iterations
had the rates of the shorter run: the rate rises once where the run is lengthened, and a message says so.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any

from turnwise.config.trust import remember, unknown_code
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.runs.folder import CONFIG, SUMMARY, Run
from turnwise.runs.records import flatten
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically

MAY_CHANGE = (
    *("iterations", "name", "eval.every", "learner.optimiser_place", "learner.reference_place"),
    *("cluster.address", "cluster.deadline", "cluster.retries"),
    *("run.checkpoint_every", "run.keep_checkpoints", "run.keep_rollouts", "run.trackers", "run.tracker_options"),
)
RESUMED = "resumed.jsonl"


def resumed_config(run: Run, changes: Mapping[str, Any]) -> Config:
    """The run's recipe with the changes, after they were checked; nothing is written."""
    before = Config.load(run.folder / CONFIG)
    after = Config.load(run.folder / CONFIG, dict(changes)) if changes else before
    wrong = [
        key for key in differences(before, after) if not any(key == allowed or key.startswith(f"{allowed}.") for allowed in MAY_CHANGE)
    ]
    if wrong:
        raise TurnwiseError(
            f"a resumed run keeps its recipe: {', '.join(wrong)} cannot change. What may: {', '.join(MAY_CHANGE)}. "
            f"For anything else start a new run from {run.folder / CONFIG}"
        )
    if (after.iterations, bool(after.run.checkpoint_every)) != (before.iterations, bool(before.run.checkpoint_every)):
        _check_length(run, before, after.iterations)
    return after


def differences(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two recipes differ, with both values."""
    old, new = (flatten(config.model_dump(mode="json")) for config in (before, after))
    return {key: (old.get(key, "none"), new.get(key, "none")) for key in sorted({*old, *new}) if old.get(key) != new.get(key)}


def _check_length(run: Run, before: Config, iterations: int) -> None:
    done = iterations_done(run)
    if done is None and (why := why_no_checkpoint(run, before)):
        raise TurnwiseError(
            f"{why}, so it would start over instead of continuing. "
            f"Start a new run: turnwise train {quote(str(run.folder / CONFIG))} iterations={iterations}"
        )
    if done is not None and iterations < done:
        raise TurnwiseError(
            f"{run.folder} has done {done} iterations already: iterations={iterations} would undo some. Give {done} or more"
        )


def why_no_checkpoint(run: Run, config: Config) -> str:
    """Why a run that has logged iterations has no checkpoint; empty if it has logged none."""
    logged = max((int(line.get("iteration", 0)) for line in run.metrics()), default=0)
    if not logged:
        return ""
    if not config.run.checkpoint_every:
        return f"{run.folder} keeps no checkpoint (run.checkpoint_every=0)"
    state = "empty" if run.checkpoints.is_dir() else "missing"
    return f"{run.folder} has logged {logged} iterations, and its checkpoints were deleted ({run.checkpoints} is {state})"


def iterations_done(run: Run) -> int | None:
    """How many iterations the newest checkpoint has seen; None if there is no checkpoint."""
    from turnwise.learn.checkpoint import by_step  # loads torch, and most refusals need none

    steps = by_step(run.folder / "checkpoints")
    return max(steps, default=None)


def apply_changes(run: Run, after: Config, say: Callable[[str], None]) -> None:
    """Write the changed recipe into the run's folder, and report the changes. Results of the old end are removed: they are made again."""
    before = Config.load(run.folder / CONFIG)
    changed = differences(before, after)
    if not changed:
        return
    done = iterations_done(run) or 0
    record = json.dumps({"iteration": done, "changes": {key: list(values) for key, values in changed.items()}})
    earlier = (run.folder / RESUMED).read_text(encoding="utf-8") if (run.folder / RESUMED).exists() else ""
    write_text_atomically(run.folder / RESUMED, f"{earlier}{record}\n")
    write_text_atomically(run.folder / CONFIG, to_toml(after))
    if not unknown_code(run.folder, before.model_dump(mode="json")):
        remember(run.folder, after.model_dump(mode="json"))
    for key, (old, new) in changed.items():
        say(f"continuing with {key} = {_word(new)} instead of {_word(old)}")
    if after.iterations > done:
        shutil.rmtree(run.model, ignore_errors=True)
        (run.folder / SUMMARY).unlink(missing_ok=True)
    if before.iterations != after.iterations and 0 < done < after.iterations and after.learner.schedule != "constant":
        say(
            f"learner.schedule={after.learner.schedule} follows the new length of {after.iterations} iterations, and the iterations before "
            f"had the rates of a run of {before.iterations}: the learning rate changes at once. Only schedule=constant makes a lengthened "
            "run equal to one that was this long from the start"
        )


def _word(value: Any) -> str:
    return "none" if value == "none" else json.dumps(value)
