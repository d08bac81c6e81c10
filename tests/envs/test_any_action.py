"""Models write anything: no text makes an environment raise, rewards stay in their range, and after the end a step is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_snapshots import CASES, choose, tasks_of

from turnwise.envs import EpisodeOver
from turnwise.envs.check import ODD_ACTIONS
from turnwise.envs.sokoban.env import REWARD_RANGE

FORMS = ("search[{}]", "click[{}]", "answer[{}]", "<search>{}</search>", "<answer>{}", "{}")
TEXTS = st.sampled_from(ODD_ACTIONS) | st.builds(str.format, st.sampled_from(FORMS), st.text(st.characters(), max_size=20))


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("household full", "prompts")])
@settings(max_examples=40)
@given(number=st.integers(0, 11), texts=st.lists(TEXTS, max_size=12), chance=st.randoms())
def test_no_text_raises_and_rewards_stay_in_their_range(case: str, number: int, texts: list[str], chance: Any) -> None:
    env, tasks = CASES[case](), tasks_of(case)
    observation = env.reset(tasks[number % len(tasks)], number)
    low, high = REWARD_RANGE if "sokoban" in case else getattr(env, "reward_range", (0.0, 1.0))
    for text in texts:
        transition = env.step(text if chance.random() < 0.5 else choose(chance, observation))
        observation = transition.observation
        assert low <= transition.reward <= high and transition.success <= transition.done
        assert len(set(observation.actions or ())) == len(observation.actions or ())
        json.dumps(dict(transition.info)).encode()
        if transition.done:
            with pytest.raises(EpisodeOver):
                env.step(text)
            break
