"""Trajectories as objects again, from what a run keeps of them: texts, columns and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from turnwise.data.anchors import INTEGER_TAG, UNKNOWN, AnchorTable
from turnwise.data.batch import Batch
from turnwise.data.images import Picture
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.schema import from_record
from turnwise.runs.folder import Run
from turnwise.util.errors import TurnwiseError


def stored_batch(run: Run, iteration: int, tokens: bool = False) -> Batch:
    """What one iteration was learned from, with every column that was known: advantages, targets, what signals added."""
    trajectories = stored_trajectories(run, iteration, tokens=tokens)
    return Batch(tuple(trajectory for trajectory in trajectories if trajectory.turns), run.columns(iteration), run.tasks(iteration))


def stored_trajectories(run: Run, iteration: int, part: str = "rollouts", tokens: bool = False) -> list[Trajectory]:
    """What was trained on in one iteration, or (`part="evals"`) what its evaluation played. Of an evaluation a run keeps only the texts:
    its turns have no anchors, no tokens and no log-probs. With `tokens`, rollouts without a file of tokens raise an error."""
    records = run.trajectories(iteration, part)
    pictures = {name: Picture(pixels, name) for name, pixels in run.images(iteration).items()} if part == "rollouts" else {}
    try:
        trajectories = [from_record(record, pictures) for record in records]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"has another form ({error})"
        raise TurnwiseError(
            f"{run.folder}, {part} of iteration {iteration}: an attempt {what}; the file was damaged, or another Turnwise wrote it"
        ) from None
    if part != "rollouts":
        return trajectories
    rollouts = run.columns(iteration)
    labels = [(trajectory.id, t) for trajectory, t, _ in _turns(trajectories)]
    if labels != list(zip(rollouts.trajectory_labels[rollouts.trajectory].tolist(), rollouts.t.tolist(), strict=True)):
        raise TurnwiseError(f"{run.folder}, iteration {iteration}: columns and texts are not of the same attempts")
    versions = rollouts.extra.get("version")
    for row, (trajectory, _, turn) in enumerate(_turns(trajectories)):
        turn.anchor = anchor_at(rollouts.anchor_table, int(rollouts.anchor[row]))
        if rollouts.next_anchor is not None:
            trajectory.final_anchor = anchor_at(rollouts.anchor_table, int(rollouts.next_anchor[row]))
        if versions is not None:
            turn.version = int(versions[row])
        if rollouts.token_logprob is not None:
            turn.logprobs = tuple(rollouts.token_logprob[rollouts.token_offsets[row] : rollouts.token_offsets[row + 1]].tolist())
    if tokens or (run.folder / "rollouts" / f"{iteration:06d}.tokens.npz").is_file():
        turns = run.tokens(iteration)
        if len(turns) != len(labels):
            raise TurnwiseError(f"{run.folder}, iteration {iteration}: {len(turns)} turns have tokens, and {len(labels)} have texts")
        for (_, _, turn), (prompt_ids, response_ids) in zip(_turns(trajectories), turns, strict=True):
            turn.prompt_ids, turn.response_ids = prompt_ids, response_ids
    return trajectories


def _turns(trajectories: list[Trajectory]) -> Iterator[tuple[Trajectory, int, Turn]]:
    for trajectory in trajectories:
        for t, turn in enumerate(trajectory.turns):
            yield trajectory, t, turn


def anchor_at(table: AnchorTable, code: int) -> Any:
    """The anchor of a code: text and integers as they were; for anything else (bytes, images) the hash, which keeps equal states
    equal."""
    if code == UNKNOWN:
        return None
    if (text := table.texts[code]) is not None:
        return text
    high, low = (int(half) for half in table.hashes[code])
    if high == int(INTEGER_TAG):
        return int(np.uint64(low).astype(np.int64))
    return high.to_bytes(8, "big") + low.to_bytes(8, "big")
