"""Credit on verifiers' own traces, recorded by its message graph and stored by its trace store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

vf = pytest.importorskip("verifiers.v1", reason="needs verifiers 0.4 in an environment of its own: make test-hosts ONLY=verifiers")

from batches import METHODS, NEED_VALUES, Attempt, expected, random_attempts  # noqa: E402
from episodes import episode_of, episodes_of, new_trace, say  # noqa: E402
from pages import example_of  # noqa: E402
from verifiers.v1.utils.trace_store import append_episode, read_episodes  # noqa: E402

from turnwise.hosts import verifiers  # noqa: E402
from turnwise.util.errors import TurnwiseError  # noqa: E402

VALUES = {"turn.value": "values", "token.value": "token_values"}


def by_turn(episodes: list[Any], attempts: list[Attempt]) -> dict[tuple[int, int], Any]:
    """The advantages of each turn, from the branch that a trainer would train on."""
    result = {}
    for episode, attempt in zip(episodes, attempts, strict=True):
        (branch,) = episode.traces[0].branches
        spread = np.array(branch.advantages)
        assert len(spread) == len(branch.token_ids) and (spread[~np.array(branch.sampled_mask)] == 0).all()
        sampled = spread[np.array(branch.sampled_mask)]
        ends = np.cumsum([len(turn.response) for turn in attempt.turns])
        result |= {(attempt.number, t): values for t, values in enumerate(np.split(sampled, ends[:-1]))}
    return result


def check_equal(got: dict[tuple[int, int], Any], wanted: dict[tuple[int, int], Any]) -> None:
    assert got.keys() == wanted.keys()
    for turn, values in wanted.items():
        np.testing.assert_allclose(got[turn], values, rtol=0, atol=1e-6)


def with_tokens(attempts: list[Attempt]) -> list[Attempt]:
    """An attempt without any sampled token cannot be trained on, and takes no part."""
    return [attempt for attempt in attempts if any(turn.response for turn in attempt.turns)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", METHODS)
def test_every_sampled_token_gets_the_advantage_of_its_turn(name: str, seed: int) -> None:
    least = 1 if name == "bi_level_gae" else seed % 2  # it needs a token in every turn
    attempts = with_tokens(random_attempts(seed, least=least))
    episodes = episodes_of(attempts)
    options: dict[str, Any] = {"columns": VALUES} if name in NEED_VALUES else {}
    verifiers.give(episodes, name, reward="turn_rewards", **METHODS[name], **options)
    check_equal(by_turn(episodes, attempts), expected(name, attempts))


@pytest.mark.parametrize("seed", range(3))
def test_without_names_the_outcome_is_the_reward_of_the_last_turn_and_the_observation_the_state(seed: int) -> None:
    attempts = random_attempts(seed, outcome_only=True)
    episodes = episodes_of(attempts)
    metrics = verifiers.give(episodes, "gigpo", gamma=0.9)
    assert metrics["anchor_groups"] > 1
    check_equal(by_turn(episodes, attempts), expected("gigpo", attempts))


def test_a_metric_can_be_the_outcome() -> None:
    attempts = random_attempts(5, outcome_only=True)
    episodes = [episode_of(attempt, rewards={}, metrics={"progress": attempt.outcome}) for attempt in attempts]
    verifiers.give(episodes, "gigpo", gamma=0.9, reward="progress")
    check_equal(by_turn(episodes, attempts), expected("gigpo", attempts))


def test_states_and_the_validity_of_responses_are_read_from_the_trace() -> None:
    attempts = random_attempts(6)
    episodes = episodes_of(attempts)
    for episode in episodes:  # observations say nothing about the state
        for node in episode.traces[0].nodes:
            node.message.content = "?"
    options = {"gamma": 0.9, "invalid_penalty": 0.3}
    verifiers.give(episodes, "gigpo", anchor="states", reward="turn_rewards", columns={"turn.valid": "valid"}, **options)
    check_equal(by_turn(episodes, attempts), expected("gigpo", attempts, **options))


def test_a_node_that_branches_share_is_one_turn() -> None:
    forked, other = random_attempts(7, groups=1, attempts=2, longest=1), random_attempts(8, groups=1, longest=1)
    attempt = Attempt("task 0", 0, [forked[0].turns[0], *other[0].turns[:1], *other[0].turns[:1]])
    trace = new_trace(attempt)
    first = [vf.UserMessage(content="hall")]
    say(trace, first, [], [1, 2], [3, 4])
    shared = [*first, vf.AssistantMessage(content="ok")]
    say(trace, [*shared, vf.UserMessage(content="cellar")], [1, 2, 3, 4], [5], [6])
    say(trace, [*shared, vf.UserMessage(content="garden")], [1, 2, 3, 4], [7], [8, 9])  # history was rewritten
    assert len(trace.branches) == 2
    trace.info["turn_rewards"] = [0.0, 1.0, 3.0]
    episode = vf.WireEpisode(task=trace.task, traces=[trace], ok=True)
    verifiers.give([episode], lambda rollouts: rollouts.reward + 10 * rollouts.t, reward="turn_rewards")
    assert trace.branches[0].advantages == [0, 0, 0, 0, 0, 11]
    assert trace.branches[1].advantages == [0, 0, 0, 0, 0, 23, 23]


def test_an_observation_is_every_message_since_the_response_before() -> None:
    trace = new_trace(Attempt("task 0", 0, []))
    messages: list[Any] = [vf.SystemMessage(content="Walk."), vf.UserMessage(content=[{"type": "text", "text": "To the hall."}])]
    say(trace, messages, [], [1], [2])
    calls = [vf.ToolMessage(content=content, tool_call_id="1") for content in ("door open", "light off")]
    messages += [vf.AssistantMessage(content="ok"), *calls]
    say(trace, messages, [1, 2], [3], [4])
    say(trace, [*messages, vf.AssistantMessage(content="ok")], [1, 2, 3, 4], [5], [6])  # it went on without a message in between
    seen: list[str] = []

    def look(rollouts: Any) -> Any:
        seen.extend(rollouts.anchor_table.texts[code] for code in rollouts.anchor)
        return rollouts.reward

    verifiers.give([vf.WireEpisode(task=trace.task, traces=[trace], ok=True)], look)
    assert seen[:2] == ["system:\nWalk.\nuser:\nTo the hall.", "tool:\ndoor open\ntool:\nlight off"]
    assert seen[2] == f"{seen[1]}\nassistant:\nok"


def test_traces_of_an_episode_are_compared_by_agent_and_task() -> None:
    attempts = random_attempts(9, groups=2, longest=1, attempts=4)[:4]
    scores = {"proposer": (1.0, 2.0), "solver": (0.0, 1.0, 5.0, 9.0)}
    episodes, traces = [], []
    for number in range(2):
        parts = [("critic", "source", 50.0), ("proposer", "source", scores["proposer"][number])]
        parts += [("solver", f"proposal {number}", score) for score in scores["solver"][2 * number : 2 * number + 2]]
        for agent, task, score in parts:
            trace = episode_of(attempts[0], rewards={"goal": vf.Reward(score=score)}).traces[0]
            trace.agent.name, trace.task.key = agent, task
            traces.append(trace)
        episodes.append(vf.WireEpisode(task=traces[0].task, group=vf.GroupInfo(id="g"), traces=traces[-4:], ok=True))
    verifiers.give(episodes, "grpo", norm="none")
    found = [{value for node in trace.nodes for value in node.advantages or []} for trace in traces]
    assert found == [{0.0}, {-0.5}, {-0.5}, {0.5}, {0.0}, {0.5}, {-2.0}, {2.0}]


def test_traces_that_cannot_be_trained_on_take_no_part() -> None:
    attempts = random_attempts(10, groups=2)
    episodes = episodes_of(attempts)
    for changes in ({"ok": False}, {"agent": {"config": {}, "trainable": False}}):
        episodes.append(episode_of(attempts[0], **changes))
    silent = Attempt(attempts[0].group, 99, [attempts[0].turns[0]])
    trace = new_trace(silent)
    say(trace, [vf.UserMessage(content="hall")], [], [1], [])
    episodes.append(vf.WireEpisode(task=trace.task, group=vf.GroupInfo(id=silent.group), traces=[trace], ok=True))
    episodes.append(vf.WireEpisode(task=trace.task, ok=False))
    verifiers.give(episodes, "gigpo", reward="turn_rewards", gamma=0.9)
    check_equal(by_turn(episodes[: len(attempts)], attempts), expected("gigpo", attempts))
    left = [node.advantages for episode in episodes[len(attempts) :] for trace in episode.traces for node in trace.nodes]
    assert left and set(left) == {None}
    assert verifiers.give(episodes[len(attempts) :], "gigpo") == {}


def stored(folder: Path, episodes: list[Any]) -> Path:
    async def store() -> None:
        for episode in episodes:
            await append_episode(folder, episode, asyncio.Lock())

    asyncio.run(store())
    return folder / "traces.jsonl"


@pytest.mark.parametrize("name", METHODS)
def test_a_file_gets_the_same_advantages_and_nothing_else_changes(name: str, tmp_path: Path) -> None:
    attempts = random_attempts(11)
    failed = episode_of(attempts[0], ok=False, info={"text": "é \u2028 \U0001f600", "tiny": 1e-9})
    source = stored(tmp_path, [*episodes_of(attempts), failed])
    before = source.read_bytes()
    (tmp_path / "new").mkdir()
    options: dict[str, Any] = {"columns": VALUES} if name in NEED_VALUES else {}
    verifiers.give_in_file(source, tmp_path / "new" / "traces.jsonl", name, reward="turn_rewards", **METHODS[name], **options)
    check_equal(by_turn(read_episodes(tmp_path / "new", vf.WireTrace)[:-1], attempts), expected(name, attempts))
    assert source.read_bytes() == before
    rows = [json.loads(line) for line in (tmp_path / "new" / "traces.jsonl").read_bytes().splitlines()]
    for row in rows:
        for node in row["traces"][0]["nodes"]:
            node.pop("advantages", None)
    assert rows == [json.loads(line) for line in before.splitlines()]


def test_the_example_of_the_page_credits_episodes_and_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = random_attempts(16, outcome_only=True)
    episodes = episodes_of(attempts)
    stored(tmp_path, episodes)
    monkeypatch.chdir(tmp_path)
    exec(example_of("verifiers"), {"episodes": episodes})
    wanted = expected("gigpo", attempts, gamma=0.95)
    check_equal(by_turn(episodes, attempts), wanted)
    Path("credited.jsonl").rename("traces.jsonl")
    check_equal(by_turn(read_episodes(tmp_path, vf.WireTrace), attempts), wanted)


def test_a_file_can_be_replaced_by_itself_and_credited_again(tmp_path: Path) -> None:
    attempts = random_attempts(12)
    path = stored(tmp_path, episodes_of(attempts))
    verifiers.give_in_file(path, path, "grpo", reward="turn_rewards")
    verifiers.give_in_file(path, path, "gigpo", reward="turn_rewards", gamma=0.9)
    check_equal(by_turn(read_episodes(tmp_path, vf.WireTrace), attempts), expected("gigpo", attempts))


def test_what_is_wrong_in_a_file_is_named_with_its_episode_and_nothing_is_written(tmp_path: Path) -> None:
    attempts = random_attempts(13)
    path = stored(tmp_path, episodes_of(attempts))
    target = tmp_path / "target.jsonl"
    good = path.read_text()
    a_trace = json.dumps(json.loads(good.splitlines()[0])["traces"][0])
    for line, message in (
        (a_trace, "not an episode"),
        ("[1]", "not an episode"),
        ('{"traces": 3}', "not an episode"),
        ('{"traces": [3]}', "not an episode"),
        ("{", "not JSON"),
    ):
        path.write_text(good + line + "\n")
        with pytest.raises(TurnwiseError, match=rf"(episode|line) {len(attempts) + 1}.*{message}"):
            verifiers.give_in_file(path, target, "gigpo")
    path.write_text(good)
    with pytest.raises(TurnwiseError, match=r"info\['rooms'\]: a list with one entry for each of the \d+ turns is needed, not NoneType"):
        verifiers.give_in_file(path, target, "gigpo", anchor="rooms")
    assert not target.exists()


def test_a_file_of_another_release_is_read_if_it_has_what_credit_reads(tmp_path: Path) -> None:
    attempts = random_attempts(17)
    path = stored(tmp_path, episodes_of(attempts))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:  # as prime-rl 0.8 writes them
        row["traces"][0]["agent"]["config"]["runtime"] = {"type": "prime", "vm": True}
        row["traces"][0]["calls"] = [{"unknown": 1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    verifiers.give_in_file(path, path, "gigpo", reward="turn_rewards", gamma=0.9)
    written = [json.loads(line)["traces"][0] for line in path.read_text().splitlines()]
    got = {}
    for attempt, trace in zip(attempts, written, strict=True):
        got |= {(attempt.number, t): node["advantages"] for t, node in enumerate(node for node in trace["nodes"] if node["sampled"])}
    check_equal(got, expected("gigpo", attempts))
    assert all(trace["agent"]["config"]["runtime"]["vm"] for trace in written)


def test_a_loop_of_parents_in_a_file_ends(tmp_path: Path) -> None:
    path = stored(tmp_path, episodes_of(random_attempts(14)))
    row = json.loads(path.read_text().splitlines()[0])
    for node in row["traces"][0]["nodes"]:
        node["parent"] = len(row["traces"][0]["nodes"]) - 1
    path.write_text(json.dumps(row))
    verifiers.give_in_file(path, path, "gigpo")
    nodes = json.loads(path.read_text())["traces"][0]["nodes"]
    assert all(len(node["advantages"]) == sum(node["mask"]) for node in nodes if node["sampled"])


def test_lists_of_the_wrong_length_are_refused() -> None:
    attempts = random_attempts(15)
    episodes = episodes_of(attempts)
    episodes[3].traces[0].info["states"].append("attic")
    with pytest.raises(TurnwiseError, match=rf"trace {episodes[3].traces[0].id}, info\['states'\]"):
        verifiers.give(episodes, "gigpo", anchor="states")
    episodes[2].traces[0].info["token_values"][0].append(0.0)
    with pytest.raises(TurnwiseError, match=r"info\['token_values'\]\[0\]: a list with one number for each of \d+ tokens"):
        verifiers.give(episodes, "bi_level_gae", columns=VALUES)
