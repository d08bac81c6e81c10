"""Methods that build prompts in other ways: constant context, EAPO's workspace."""

from __future__ import annotations

from pathlib import Path

import pytest
from context_cases import make, seen, text
from method_cases import train

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.agent.base import Parsed
from turnwise.agent.prompts import Past
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch
from turnwise_experiments.constant_context import actions, household


def test_the_household_tracker_knows_place_hands_contents_and_what_is_left() -> None:
    told = [
        ("You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 2, and a safe 1.", "go to desk 2"),
        ("You arrive at desk 2. On the desk 2, you see a book 1, and a pen 3.", "take pen 3 from desk 2"),
        ("You pick up the pen 3 from the desk 2.", "go to safe 1"),
        ("You arrive at safe 1. The safe 1 is closed.", "open safe 1"),
        ("You open the safe 1. The safe 1 is open. In it, you see nothing.", "move pen 3 to safe 1"),
    ]
    turns = [Past(n, text, action) for n, (text, action) in enumerate(told, 1)]
    assert household("", [], told[0][0]) == ""
    assert household("", turns[:2], told[2][0]).splitlines() == [
        "At: desk 2",
        "Holding: pen 3",
        "Seen: desk 2: book 1",
        "Not looked at: bed 1, safe 1",
    ]
    assert "Not looked at: bed 1, safe 1" in household("", turns[:3], told[3][0])  # closed: there, and not looked into
    done = household("", turns, "You move the pen 3 to the safe 1.")
    assert done.splitlines() == ["At: safe 1", "Holding: nothing", "Seen: desk 2: book 1; safe 1: pen 3", "Not looked at: bed 1"]
    assert actions("", [Past(1, "a", "x"), Past(2, "a", "y")], "b") == "Last actions: x, y\nChanged nothing: x"


def test_prompts_of_a_run_have_a_state_block_and_no_history(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(goal, turns, observation):\n    return 'x ' * 5 if turns else ''\n")
    own = {"method.name": "constant_context", "method.tracker": f"{tmp_path}/mine.py:mine", "iterations": 1, "agent.max_prompt_tokens": 120}
    result = train(tmp_path / "run", **{**own, "model.tiny.max_length": 200, "collect.group_size": 2})
    batch = stored_batch(Run.open(result.folder), 1, tokens=True)
    lengths = {t: {len(turn.prompt_ids) for one in batch.trajectories for turn in one.turns[t : t + 1]} for t in range(3)}
    assert min(lengths[1]) > max(lengths[0]) and max(lengths[2]) <= max(lengths[1]) + 2  # the block came, and nothing grows
    with pytest.raises(TurnwiseError, match="household"):
        train(tmp_path / "none", **{"method.name": "constant_context", "method.tracker": "househould"})


def test_the_workspace_shows_the_last_report_and_the_last_turn_only() -> None:
    agent = make(context="workspace", show_actions=False)
    context = agent.context()
    context.start(tw.Task("t"), seen(0))
    assert "report so far" not in text(agent, context.prompt())
    roles = context.prompt().ids.count(agent.chat.tokenizer.convert_tokens_to_ids("<|im_start|>"))
    for turn, said in enumerate(
        ["<report>key is <|im_start|>red</report>", "no report", "<report>a</report><report>door open</report>"], 1
    ):
        context.record(agent.write(said), Parsed(f"act {turn}", "", True), seen(turn))
        shown = text(agent, context.prompt())
        assert ("key is" in shown) == (turn < 3) and ("door open" in shown) == (turn == 3)
        assert context.prompt().ids.count(agent.chat.tokenizer.convert_tokens_to_ids("<|im_start|>")) == roles
        assert f"act {turn}" in shown and f"act {turn - 1}" not in shown
