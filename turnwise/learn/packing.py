"""Packs trajectories into sequences without padding.

A turn whose prompt begins with everything the turn before it held (prompt and response) continues the same sequence, so that a dialogue
that only grows is one sequence in which each token occurs once. Any other prompt starts a new sequence. Nothing here knows the name of a
context: the token ids decide. Ids are taken as they were sampled, text is never tokenised again.

Everything is flat. `ids` are all tokens of all sequences, one sequence after another. The tokens to train on (the response tokens) have
separate columns, in the same order: where each is predicted from, its turn, its index in the rollouts' per-token columns. A part of the
batch is `take(sequences)`: a gather, linear in what is taken.

Images belong to the sequence whose prompts show them: a turn continues a sequence only if its images do too.

A sequence is never cut: one that is longer than the token budget becomes a separate batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.images import Picture, starts_with
from turnwise.data.rollouts import Floats, Ints, Rollouts, Trajectory, Turn, ragged
from turnwise.util.errors import TurnwiseError
from turnwise.util.prefix import Prefix, extend_to


@dataclass(frozen=True, eq=False)
class Packed:
    """Sequences one after another, and the columns of their response tokens and turns.

    ids, position                 every token: its id, its position in its sequence
    offsets                       where each sequence starts in them; one more entry than sequences
    sequence_trajectory           each sequence's trajectory (the rollouts' number for it)
    source                        every response token: the index in `ids` of the token that it is predicted from
    turn, trajectory, index       its row in the rollouts, its trajectory, its index in the rollouts' per-token columns
    engine_logprob                what the engine reported for it; None if some turn has none
    token_offsets                 where each sequence's response tokens start in the columns above
    turn_row, turn_source         every turn: its row in the rollouts, the index in `ids` of its last prompt token
    turn_offsets                  where each sequence's turns start in them
    columns, turn_columns         further columns by name, one entry per response token or per turn
    images                        every sequence: its images; None if no sequence has any
    unlearned                     every token: whether it is in a prompt and is not learned even if prompts are
                                  (`info["chance"]` of a turn lists the spans in its prompt); None if there are no such tokens
    """

    ids: Ints
    position: Ints
    offsets: Ints
    sequence_trajectory: Ints
    source: Ints
    turn: Ints
    trajectory: Ints
    index: Ints
    engine_logprob: Floats | None
    token_offsets: Ints
    turn_row: Ints
    turn_source: Ints
    turn_offsets: Ints
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    turn_columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    images: tuple[tuple[Picture, ...], ...] | None = None
    unlearned: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Tokens of each sequence."""
        return np.diff(self.offsets)

    @property
    def target(self) -> Ints:
        """The id of each response token."""
        return self.ids[self.source + 1]

    def with_columns(self, **columns: NDArray[Any]) -> Packed:
        """The same with further columns, one entry per response token."""
        return replace(self, columns={**self.columns, **_sized(columns, len(self.source), "response token")})

    def with_turn_columns(self, **columns: NDArray[Any]) -> Packed:
        """The same with further columns, one entry per turn."""
        return replace(self, turn_columns={**self.turn_columns, **_sized(columns, len(self.turn_row), "turn")})

    def take(self, sequences: Any) -> Packed:
        """These sequences, in this order, with all that belongs to them."""
        which = np.asarray(sequences, np.int64)
        lengths = self.lengths[which]
        offsets = starts_of(lengths)
        token, turn = ragged(self.token_offsets, which), ragged(self.turn_offsets, which)
        tokens, turns = np.diff(self.token_offsets)[which], np.diff(self.turn_offsets)[which]
        moved = offsets[:-1] - self.offsets[:-1][which]
        flat = ragged(self.offsets, which)
        return Packed(
            ids=self.ids[flat],
            position=self.position[flat],
            offsets=offsets,
            sequence_trajectory=self.sequence_trajectory[which],
            source=self.source[token] + np.repeat(moved, tokens),
            turn=self.turn[token],
            trajectory=self.trajectory[token],
            index=self.index[token],
            engine_logprob=None if self.engine_logprob is None else self.engine_logprob[token],
            token_offsets=starts_of(tokens),
            turn_row=self.turn_row[turn],
            turn_source=self.turn_source[turn] + np.repeat(moved, turns),
            turn_offsets=starts_of(turns),
            columns={name: column[token] for name, column in self.columns.items()},
            turn_columns={name: column[turn] for name, column in self.turn_columns.items()},
            images=None if self.images is None else tuple(self.images[number] for number in which.tolist()),
            unlearned=None if self.unlearned is None else self.unlearned[flat],
        )


def starts_of(lengths: Any) -> Ints:
    """Offsets of parts with these lengths: 0, then the running sums."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))])


def pack(trajectories: Iterable[Trajectory], rollouts: Rollouts | None = None) -> Packed:
    """Pack the turns of these trajectories. Row numbers count the turns of all trajectories one after another, as in a batch. `rollouts`,
    if given, are those of the same batch and define the trajectories' numbers; otherwise they are counted."""
    builder = _Builder()
    kept = [trajectory for trajectory in trajectories if trajectory.turns]
    row = token = 0
    for trajectory, number in zip(kept, _numbers_of(kept, rollouts), strict=True):
        builder.start(number)
        for t, turn in enumerate(trajectory.turns):
            builder.add(turn, row, token, f"trajectory {trajectory.id!r}, turn {t}")
            row, token = row + 1, token + len(turn.response_ids)
    return builder.packed()


class _Builder:
    """Appends turns; one Python step per turn, none per token."""

    def __init__(self) -> None:
        self.pieces: list[Ints] = []  # ids in order
        self.size = 0
        self.sequence_starts: list[int] = []
        self.sequence_trajectory: list[int] = []
        self.images: list[tuple[Picture, ...]] = []
        self.unlearned: list[tuple[int, int]] = []  # spans of `ids`
        self.turns: list[
            tuple[int, int, int, int, int, int]
        ] = []  # row, last prompt token, response tokens, first flat index, sequence, traj.
        self.logprobs: list[float] = []
        self.complete = True  # whether every response token so far came with a log-prob
        self.trajectory = -1
        self.past: list[int] | Ints | None = None  # prompt and response of the turn before,
        self.shared: tuple[Prefix, Any] | None = None  # or both, where the dialogue's prompts share their tokens

    def start(self, trajectory: int) -> None:
        """A new trajectory: nothing to continue."""
        self.trajectory, self.past, self.shared = trajectory, None, None

    def add(self, turn: Turn, row: int, first_index: int, where: str) -> None:
        given, response = turn.prompt_ids, turn.response_ids
        prompt = given if isinstance(given, (list, Prefix)) else as_ids(given, where)
        if len(prompt) == 0:
            if len(response):
                raise TurnwiseError(f"{where}: a response without a prompt cannot be trained on, its first token is predicted from nothing")
            self.past = self.shared = None
            return
        held = self._held(prompt)
        prompt = prompt.listed() if isinstance(prompt, Prefix) and not held else prompt
        if held and starts_with(turn.images, self.images[-1]):
            fresh: Sequence[int] | Ints = prompt[held:]
            self.images[-1] = tuple(turn.images)
        else:
            fresh = prompt
            self.sequence_starts.append(self.size)
            self.sequence_trajectory.append(self.trajectory)
            self.images.append(tuple(turn.images))
        for start, stop in turn.info.get("chance", ()):
            shift = self.size - (len(prompt) - len(fresh))
            self.unlearned.append((max(start + shift, self.size), stop + shift))
        self.pieces += [as_ids(fresh, where), as_ids(response, where)]
        self.size += len(fresh)
        entry = (row, self.size - 1, len(response), first_index, len(self.sequence_starts) - 1, self.trajectory)
        self.turns.append(entry)
        self.size += len(response)
        self._remember(given if isinstance(given, Prefix) else prompt, response, held > 0, where)
        given_logprobs, tokens = len(turn.logprobs), len(response)
        if given_logprobs not in (0, tokens):
            raise TurnwiseError(f"{where}: {given_logprobs} log-probs for {tokens} response tokens; give one per token, or none")
        self.complete = self.complete and given_logprobs == tokens
        if self.complete:
            self.logprobs += turn.logprobs

    def _held(self, prompt: list[int] | Prefix | Ints) -> int:
        """How many tokens the turn before held, if the prompt begins with all of them; otherwise 0. Lists, as a dialogue gives them, are
        compared without making arrays."""
        if self.shared is not None:
            if isinstance(prompt, Prefix):
                return prompt.held(*self.shared)
            self.past, self.shared = [*self.shared[0], *self.shared[1]], None
        past, prompt = self.past, prompt.listed() if isinstance(prompt, Prefix) else prompt
        if past is None or len(prompt) < len(past):
            return 0
        held = len(past)
        if isinstance(prompt, list) and isinstance(past, list):
            return held if extend_to(past, prompt) else 0
        return held if np.array_equal(prompt[:held], past) else 0

    def _remember(self, prompt: Sequence[int] | Ints, response: Sequence[int] | Ints, held: bool, where: str) -> None:
        """What the next turn may continue. The past of a dialogue that grows is equal to the prompt by now."""
        if isinstance(prompt, Prefix):
            self.shared, self.past = (prompt, response), None
        elif not isinstance(prompt, list):
            self.past = np.concatenate([prompt, as_ids(response, where)])
        elif held and isinstance(self.past, list):
            self.past += response
        else:
            self.past = [*prompt, *response]

    def packed(self) -> Packed:
        ids = np.concatenate([np.zeros(0, np.int64), *self.pieces])
        offsets = np.asarray([*self.sequence_starts, self.size], np.int64)
        table = np.asarray(self.turns, np.int64).reshape(-1, 6)
        row, source, tokens, first_index, sequence, trajectory = table.T
        inside = np.arange(int(tokens.sum())) - np.repeat(starts_of(tokens)[:-1], tokens)  # position of each token in its turn
        sequences = len(self.sequence_starts)
        return Packed(
            ids=ids,
            position=np.arange(len(ids)) - np.repeat(offsets[:-1], np.diff(offsets)),
            offsets=offsets,
            sequence_trajectory=np.asarray(self.sequence_trajectory, np.int64),
            source=np.repeat(source, tokens) + inside,
            turn=np.repeat(row, tokens),
            trajectory=np.repeat(trajectory, tokens),
            index=np.repeat(first_index, tokens) + inside,
            engine_logprob=np.asarray(self.logprobs, np.float64) if self.complete else None,
            token_offsets=starts_of(np.bincount(sequence, weights=tokens, minlength=sequences)),
            turn_row=row.copy(),
            turn_source=source.copy(),
            turn_offsets=starts_of(np.bincount(sequence, minlength=sequences)),
            images=tuple(self.images) if any(self.images) else None,
            unlearned=_marked(self.unlearned, len(ids)) if self.unlearned else None,
        )


def _marked(spans: Sequence[tuple[int, int]], size: int) -> NDArray[np.bool_]:
    marked = np.zeros(size, np.bool_)
    for start, stop in spans:
        marked[start:stop] = True
    return marked


def as_ids(ids: Sequence[int] | Ints, where: str) -> Ints:
    """Token ids as a flat array of integers ≥ 0."""
    array = np.asarray(ids)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0:
        raise TurnwiseError(f"{where}: token ids are a flat sequence of integers ≥ 0, not {str(ids)[:80]}")
    return array.astype(np.int64, copy=False)


def _numbers_of(trajectories: Sequence[Trajectory], rollouts: Rollouts | None) -> list[int]:
    """The rollouts' number for each trajectory. Rows are the trajectories' turns one after another, which is checked."""
    if rollouts is None:
        return list(range(len(trajectories)))
    sizes = np.asarray([len(trajectory.turns) for trajectory in trajectories], np.int64)
    if sizes.sum() != len(rollouts):
        raise TurnwiseError(
            f"the trajectories have {sizes.sum()} turns and the rollouts {len(rollouts)} rows: they are of different batches"
        )
    first = starts_of(sizes)[:-1]
    labels = rollouts.trajectory_labels[rollouts.trajectory[first]].tolist()
    for trajectory, label, row in zip(trajectories, labels, first.tolist(), strict=True):
        if trajectory.id != label or rollouts.t[row] != 0:
            raise TurnwiseError(
                f"row {row} of the rollouts belongs to trajectory {label!r}, not to {trajectory.id!r}: rows and turns have one order"
            )
    tokens = np.asarray([len(turn.response_ids) for trajectory in trajectories for turn in trajectory.turns], np.int64)
    if rollouts.tokens is not None and (wrong := rollouts.tokens != tokens).any():
        row = int(wrong.argmax())
        raise TurnwiseError(f"column 'tokens', row {row}: {rollouts.tokens[row]}, but the turn has {tokens[row]} response ids")
    found: list[int] = rollouts.trajectory[first].tolist()
    return found


def _sized(columns: Mapping[str, NDArray[Any]], size: int, what: str) -> dict[str, NDArray[Any]]:
    for name, column in columns.items():
        if np.shape(column) != (size,):
            raise TurnwiseError(f"column {name!r} has shape {np.shape(column)}; one entry per {what} ({size},) is needed")
    return dict(columns)


def microbatches(packed: Packed, sequences: Any, tokens: int, whole_trajectories: bool = False) -> list[Ints]:
    """Cut sequences into runs of at most `tokens` tokens. What must stay whole (a sequence, or with `whole_trajectories` all sequences of
    a trajectory) and is longer than that becomes a separate run."""
    which = np.asarray(sequences, np.int64)
    if whole_trajectories:
        _, first, code = np.unique(packed.sequence_trajectory[which], return_index=True, return_inverse=True)
        which = which[np.argsort(first[code], kind="stable")]  # together, in the order of their first
    owner = packed.sequence_trajectory[which] if whole_trajectories else np.arange(len(which))
    borders = np.flatnonzero(np.diff(owner, prepend=-1)) if len(which) else np.zeros(0, np.int64)
    lengths = np.add.reduceat(packed.lengths[which], borders) if len(borders) else np.zeros(0, np.int64)
    cuts, used = [], 0
    for border, length in zip(borders.tolist(), lengths.tolist(), strict=True):
        if used and used + length > tokens:
            cuts.append(border)
            used = 0
        used += length
    return [part for part in np.split(which, cuts) if len(part)]
