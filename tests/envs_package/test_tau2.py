"""τ²-bench on the real package: tools, scores, users, faults."""

from __future__ import annotations

import json
import socket
import sys
import threading

import pytest
from needing import ready
from openai_server import serving

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver
from turnwise.envs.pool import Pool
from turnwise.util.errors import TurnwiseError

ready("tau2")

from turnwise_envs.tau2.agents import call  # noqa: E402
from turnwise_envs.tau2.package import modules  # noqa: E402
from turnwise_envs.tau2.scoring import gold_of, score, side_of  # noqa: E402
from turnwise_envs.tau2.worlds import DOMAINS, World, domain_of  # noqa: E402

BARE = {"policy": "none", "show_tools": "none"}


def play(env, task, agent="expert", seed=0):
    """One attempt: its observations, actions and last transition."""
    seen, actions = [env.reset(task, seed)], []
    while True:
        actions.append(getattr(env, f"{agent}_action")())
        assert actions[-1] is not None, f"{task.id}: {agent} has no action at turn {len(actions)}"
        last = env.step(actions[-1])
        seen.append(last.observation)
        if last.done:
            return seen, actions, last


def task_of(domain, key, split="train"):
    return Task(f"{domain}-{key}", split, {"domain": domain, "id": key})


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_expert_wins_every_task_of_a_domain(domain):
    env = tw.make("tau2", domain=domain, **BARE)
    lost = []
    for split in ("train", "valid"):
        for task in tw.tasks("tau2", split=split, domain=domain):
            _, actions, last = play(env, task)
            assert len(actions) <= env.max_turns
            if not (last.success and last.reward == 1):
                lost.append(task.id)
    assert lost == []


def test_an_agent_that_hands_over_at_once_wins_some_tasks_and_evaluations_show_it():
    counts = {domain: sum(gold_of(domain, key).idle for key in domain_of(domain).splits["base"]) for domain in DOMAINS}
    assert counts == {"airline": 19, "retail": 7, "telecom": 20}
    env = tw.make("tau2", domain="airline", **BARE)
    for task in tw.tasks("tau2", split="valid", domain="airline"):
        _, _, last = play(env, task, "scripted")  # outside telecom, it hands over without a change
        assert last.success == gold_of("airline", task.data["id"]).idle == bool(last.info["measures"]["do_nothing"])
    kept = tw.tasks("tau2", split="valid", domain="airline", must_act=True)
    assert len(kept) == 14 and not any(gold_of("airline", task.data["id"]).idle for task in kept)


def test_splits_are_those_of_the_benchmark_and_share_no_problem():
    sizes = {split: len(tw.tasks("tau2", split=split)) for split in ("train", "valid")}
    assert sizes == {"train": 178, "valid": 100}
    full = tw.tasks("tau2", split="train", domain="telecom", telecom_tasks="full")
    held = {task.data["id"].partition("[PERSONA")[0] for task in tw.tasks("tau2", split="valid", domain="telecom")}
    assert len(full) == 2245
    assert not held & {task.data["id"].partition("[PERSONA")[0] for task in full}


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_differences_are_equal_exactly_if_the_packages_hashes_are(domain):
    own = domain_of(domain)
    records = [own.records[key] for key in own.splits["test"][:4]]
    hashes, states = [], []
    for record in (records[0], *records):
        world = World(own, record)
        for action in record["evaluation_criteria"]["actions"] if len(hashes) else ():
            world.call("assistant", action["name"], action["arguments"])
        hashes.append(next(iter(world.store.values())).db.get_hash())
        states.append(json.dumps(world.state(), sort_keys=True))
    assert len(set(hashes)) > 2
    assert [hashes.index(one) for one in hashes] == [states.index(one) for one in states]


def test_a_wrong_write_costs_the_task_and_the_expert_knows():
    env = tw.make("tau2", **BARE)
    env.reset(task_of("airline", "0"))  # gold changes nothing
    result = env.step(call("cancel_reservation", {"reservation_id": "EHGLP3"}))
    assert '"status":"cancelled"' in result.observation.text
    assert env.expert_action() is None
    last = env.step("You are being transferred to a human agent. Please hold on.")
    assert last.done and not last.success and last.info["parts"] == {"DB": False, "COMMUNICATE": True}


def test_information_that_was_not_given_costs_the_task():
    env = tw.make("tau2", **BARE)
    task = task_of("retail", "3")
    tell = gold_of("retail", "3").tell
    env.reset(task)
    for action in gold_of("retail", "3").actions:
        env.step(call(action["name"], action["arguments"]))
    assert tell == ("10",)
    last = env.step("Is there anything else?")
    while not last.done:
        last = env.step("Is there anything else?")
    assert last.info["parts"] == {"DB": True, "COMMUNICATE": False} and not last.success


def test_the_turn_limit_is_worth_nothing_even_in_the_right_state():
    env = tw.make("tau2", max_turns=2, **BARE)
    env.reset(task_of("airline", "0"))
    env.step("{")
    last = env.step("{")
    assert last.done and not last.success and last.reward == 0 and last.info["ends"] == "turn limit"
    with pytest.raises(EpisodeOver):
        env.step("hello")


def test_ids_of_new_bills_follow_from_the_state():
    own = domain_of("telecom")
    key = next(key for key in own.splits["train"] if any(one["name"] == "refuel_data" for one in gold_of("telecom", key).actions))
    worlds = [World(own, own.record(key)) for _ in range(2)]
    for world in worlds:
        assert not world.call("assistant", "refuel_data", {"customer_id": "C1001", "line_id": "L1002", "gb_amount": 2}).failed
    assert worlds[0].state() == worlds[1].state()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ('{"name": "cancel_reservation"}', "needs the argument 'reservation_id'"),
        ('{"name": "cancel_reservatio", "arguments": {}}', "cancel_reservation"),
        ('{"name": "__class__", "arguments": {}}', "unknown tool"),
        ('{"name": "get_user_details", "arguments": {"user_id": 3}}', "of type string"),
        ('{"name": "send_certificate", "arguments": {"user_id": "emma_kim_9957", "amount": NaN}}', "finite"),
        ('{"name": "calculate", "arguments": {"expression": "__import__(\'os\')"}}', "Invalid characters"),
        ('{"name": "update_reservation_passengers", "arguments": {"reservation_id": "EHGLP3", "passengers": [1]}}', "of type object"),
        ('{"name": "update_reservation_passengers", "arguments": {"reservation_id": "EHGLP3", "passengers": [{"x": 1}]}}', "Error"),
        ('{"name": "get_user_details", "arguments": {"user_id": "\\ud800"}}', "not found"),
        ("{not json", "plain text"),
        ("", "empty"),
    ],
)
def test_a_malformed_call_is_answered_and_changes_nothing(action, words):
    env = tw.make("tau2", **BARE)
    env.reset(task_of("airline", "0"))
    last = env.step(action)
    assert words in last.observation.text and not last.done
    assert env._world.state() == {}
    fresh = tw.make("tau2", **BARE)
    assert fresh.restore(env.snapshot()) == last.observation


def test_the_anchor_is_the_state_and_not_the_path():
    env = tw.make("tau2", **BARE)
    reads = [call("get_user_details", {"user_id": "emma_kim_9957"}), call("get_reservation_details", {"reservation_id": "EHGLP3"})]
    task = task_of("airline", "0")
    env.reset(task)
    straight = env.step(reads[1]).observation
    env.reset(task)
    env.step(reads[0])
    assert env.step(reads[1]).observation.anchor == straight.anchor
    changed = env.step(call("cancel_reservation", {"reservation_id": "EHGLP3"})).observation
    assert env.step(reads[1]).observation.anchor == changed.anchor != straight.anchor  # both show the reservation as it is now


def test_the_first_observation_has_policy_and_tools_as_asked():
    long, short, none = (
        tw.make("tau2", policy=policy, show_tools=tools).reset(task_of("telecom", domain_of("telecom").splits["train"][0])).text
        for policy, tools in (("full", "schemas"), ("short", "signatures"), ("none", "none"))
    )
    assert len(long) > 20_000 > 8_000 > len(short) > len(none)
    assert '"name": "refuel_data"' in long and "refuel_data(customer_id, line_id, gb_amount): Refuels data" in short
    assert none.startswith("Call a tool as") and "refuel_data" not in none


def test_the_packages_modules_are_not_left_behind():
    modules("telecom")
    assert not [name for name in sys.modules if name.startswith(("inspect_ai", "inspect_evals"))]


# -- a model as the user ----------------------------------------------------------------------------------------------------------------


class Speaker:
    """A server that plays back messages, or hangs."""

    def __init__(self):
        self.says, self.hangs, self.asked = [], None, []

    def __call__(self, handler, body, before):
        self.asked.append(body)
        if self.hangs is not None:
            self.hangs.wait(20)
            return
        said = self.says[min(len(self.asked), len(self.says)) - 1]
        handler.answer({"choices": [{"message": said}]} if isinstance(said, dict) else said, Content_Type="application/json")


@pytest.fixture
def server():
    speaker = Speaker()
    with serving(speaker) as listening:
        speaker.url = listening.url
        yield speaker
        if speaker.hangs is not None:
            speaker.hangs.set()


def user_at(server, **more):
    return {"url": server.url, "model": "someone", **more}


def test_a_served_model_plays_the_user_with_its_own_tools(server):
    server.says = [
        {"content": "My phone has no data."},
        {"content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "toggle_roaming", "arguments": "{}"}}]},
        {"content": "Done. ###STOP###"},
    ]
    key = "[mobile_data_issue]user_abroad_roaming_enabled_off[PERSONA:None]"
    env = tw.make("tau2", user=user_at(server), **BARE)
    assert env.reset(task_of("telecom", key), seed=5).text.endswith("User: My phone has no data.")
    last = env.step("Please toggle roaming.")
    assert last.done and last.success and last.observation.text == "User: Done."
    first, *_, final = server.asked
    assert "# User Simulation Guidelines" in first["messages"][0]["content"] and "555-123-2002" in first["messages"][0]["content"]
    assert (
        len(first["tools"]) == 30
        and final["messages"][-1]["role"] == "tool"
        and "Data Roaming is now ON" in final["messages"][-1]["content"]
    )
    seeds = [body["seed"] for body in server.asked]
    assert len(set(seeds)) == 3
    server.asked.clear()
    env.reset(task_of("telecom", key), seed=5)
    assert server.asked[0]["seed"] == seeds[0]


def test_a_function_plays_the_user_and_snapshots_keep_the_conversation():
    def speak(messages, tools, seed):
        return f"message {len(messages)} with seed {seed}"

    env, other = (tw.make("tau2", user=speak, **BARE) for _ in range(2))
    env.reset(task_of("airline", "0"), seed=3)
    seen = env.step("hello").observation
    assert seen.text.startswith("User: message 4")
    assert other.restore(env.snapshot()) == seen
    assert other.step("more") == env.step("more")


def test_a_user_that_does_not_answer_ends_the_attempt_with_a_reason(server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dead = {"url": f"http://127.0.0.1:{port}/v1", "model": "someone", "retries": 0}
    server.hangs = threading.Event()
    for user in (dead, user_at(server, timeout=0.3, retries=1)):
        with Pool("tau2", size=1, options={"user": user, **BARE}) as pool:
            result = pool.reset(0, task_of("airline", "0"), seed=1)
            assert result.over and "the simulated user did not answer" in result.message
    assert len(server.asked) == 2
    server.hangs.set()
    server.hangs, server.says = None, [{"content": "Hello"}, {"nothing": 1}]
    server.asked.clear()
    with Pool("tau2", size=1, options={"user": user_at(server), **BARE}) as pool:
        assert pool.reset(0, task_of("airline", "0"), seed=1).fault is None
        server.says[1] = ["not a message"]
        assert "did not answer" in pool.step(0, "hi").message
        server.asked.clear()
        assert pool.reset(0, task_of("airline", "0"), seed=1).fault is None  # the slot plays again


def test_assertions_and_actions_are_part_of_the_score_in_telecom():
    own = domain_of("telecom")
    key = next(key for key in own.splits["test"] if "ACTION" in gold_of("telecom", key).basis)
    gold, world = gold_of("telecom", key), World(own, own.record(key))
    assert score(gold, world, ()) == {"ENV_ASSERTION": True, "ACTION": False}
    for action in gold.actions:
        world.call(side_of(action), action["name"], {**action["arguments"], "summary": "in other words"})
    assert all(score(gold, world, ()).values())


def test_a_message_is_plain_text_or_a_call_of_the_tool_for_it():
    tools = tw.envs.registry.spec("tau2").load().offered_tools(domain="airline")
    assert [tool["function"]["name"] for tool in tools][-1] == "message_user" and len(tools) == 15
    plain, called = tw.make("tau2", policy="none", show_tools="signatures"), tw.make("tau2", **BARE)
    texts = []
    for env in (plain, called):
        env.reset(task_of("airline", "0"))
        texts.append(env.expert_action())
        assert env.step(texts[-1]).observation.text == "User: I am Emma Kim. My user id is emma_kim_9957."
    assert json.loads(texts[1]) == {"name": "message_user", "arguments": {"message": texts[0]}}
    assert "A message is a text" in called.step('{"name": "message_user", "arguments": {}}').observation.text


def test_the_tools_are_those_of_one_domain():
    with pytest.raises(TurnwiseError, match="one domain"):
        tw.envs.registry.spec("tau2").load().offered_tools()
