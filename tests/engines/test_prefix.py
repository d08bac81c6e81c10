"""Prompts of a dialogue share one list of tokens, and nobody can tell: they read, travel, pack and are kept like lists."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.tokens import write_tokens
from turnwise.learn.packing import pack
from turnwise.util.prefix import Prefix


def test_a_prompt_reads_like_a_list_while_the_dialogue_grows() -> None:
    whole = [5, 6, 7, 8]
    prompt, plain = Prefix(whole), list(whole)
    whole += [9, 10]
    assert len(prompt) == 4 and list(prompt) == plain and prompt[-1] == 8 and prompt[0] == 5 and bool(prompt) and 9 not in prompt
    bounds = [None, -9, -2, 0, 1, 3, 4, 5, 9]
    for start in bounds:
        for stop in bounds:
            for step in (None, 1, 2, -1, -2):
                assert prompt[start:stop:step] == plain[start:stop:step]
    for index in (4, -5):
        with pytest.raises(IndexError):
            prompt[index]
    assert prompt == plain and plain == prompt and prompt == tuple(plain) and prompt != whole and prompt != [5, 6, 7] and prompt != "5678"
    one = [1]
    assert prompt == Prefix(plain) and prompt != Prefix(whole) and prompt + one == [*plain, 1] and one + prompt == [1, *plain]
    assert np.asarray(prompt).tolist() == plain and np.asarray(prompt, np.int32).dtype == np.int32 and repr(prompt) == repr(plain)
    for other in (pickle.loads(pickle.dumps(prompt)), copy.copy(prompt), copy.deepcopy(prompt)):
        assert type(other) is Prefix and other == plain


def test_what_a_turn_held_is_found_only_where_the_next_prompt_begins_with_it() -> None:
    whole = [1, 2]
    first = Prefix(whole)
    whole += [3, 4]
    second = Prefix(whole)
    assert second.held(first, (3,)) == 3 and second.held(first, ()) == 2 and second.held(first, (3, 4)) == 4
    assert second.held(first, (9,)) == 0 and second.held(first, (3, 4, 5)) == 0 and first.held(second, ()) == 0
    assert second.held(Prefix([1, 2]), (3,)) == 3 and second.held(Prefix([1, 9]), (3,)) == 0


def dialogues(seed: int) -> list[Trajectory]:
    """Dialogues that grow, start again in the middle, forget what was said, or branch from another one."""
    rng, found = random.Random(seed), list[Trajectory]()

    def tokens(most: int, least: int = 1) -> list[int]:
        return [rng.randrange(300, 305) for _ in range(rng.randint(least, most))]

    for number in range(5):
        turns = [replace(turn) for turn in rng.choice(found).turns[: rng.randint(0, 3)]] if found and rng.random() < 0.4 else []
        whole = [*turns[-1].prompt_ids, *turns[-1].response_ids, *tokens(3)] if turns else tokens(6)
        for _ in range(rng.randint(1, 5)):
            prompt = Prefix(whole) if rng.random() < 0.9 else list(whole)
            turns.append(Turn("seen", prompt_ids=prompt, response_ids=tuple(tokens(3, 0)), logprobs=()))
            if rng.random() < 0.2:
                whole = tokens(6)
            elif rng.random() < 0.2:
                whole += tokens(4)  # not what was sampled
            else:
                whole += [*turns[-1].response_ids, *tokens(3)]
        found.append(Trajectory(0, number, "task", turns))
    return found


def listed(trajectories: list[Trajectory]) -> list[Trajectory]:
    return [replace(one, turns=[replace(turn, prompt_ids=list(turn.prompt_ids)) for turn in one.turns]) for one in trajectories]


@pytest.mark.parametrize("seed", range(20))
def test_shared_prompts_are_packed_sent_and_written_like_lists(seed: int, tmp_path: Path) -> None:
    shared = dialogues(seed)
    plain = listed(shared)
    first, second = pack(shared), pack(plain)
    for name in ("ids", "position", "offsets", "sequence_trajectory", "source", "turn", "turn_source", "turn_offsets"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    files = [write_tokens(tmp_path / str(number), given).read_bytes() for number, given in enumerate((shared, plain))]
    assert files[0] == files[1]
    assert pickle.loads(pickle.dumps(shared)) == plain
