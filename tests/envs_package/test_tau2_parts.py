"""The parts of τ² that need no package: what a scripted user hears and says, and how a model is named."""

from __future__ import annotations

import pytest

from turnwise.util.errors import TurnwiseError
from turnwise.util.transport import Failure
from turnwise_envs.tau2.models import UserServer, read_user
from turnwise_envs.tau2.phone import ASKS, ask_for, requests
from turnwise_envs.tau2.scoring import matches, same
from turnwise_envs.tau2.users import first_person, sentences
from turnwise_envs.tau2.worlds import Done, Overlay


@pytest.mark.parametrize(
    ("message", "tool", "arguments", "wanted"),
    [
        ("Please turn off airplane mode.", "toggle_airplane_mode", {}, False),
        ("Could you enable data roaming on your phone?", "toggle_roaming", {}, True),
        ("Is data roaming on?", "check_network_status", {}, None),
        ("Turn Wi-Fi calling off, please", "toggle_wifi_calling", {}, False),
        ("Switch your network mode to 4G only.", "set_network_mode_preference", {"mode": "4g_only"}, None),
        ("Set it to prefer 5G.", "set_network_mode_preference", {"mode": "4g_5g_preferred"}, None),
        ("Take the SIM card out and reinsert it.", "reseat_sim_card", {}, None),
        ("What does your SIM card status say?", "check_sim_status", {}, None),
        ("Give your messaging app the SMS permission.", "grant_app_permission", {"app_name": "messaging", "permission": "sms"}, None),
        ("Which permissions does the browser have?", "check_app_permissions", {"app_name": "browser"}, None),
        ("I have enabled roaming on your line. Please run a speed test.", "run_speed_test", {}, None),
        ("I would like you to restart the phone.", "reboot_device", {}, None),
    ],
)
def test_a_request_about_the_phone_is_understood(message, tool, arguments, wanted):
    found = requests(message)[0]
    assert (found.tool, dict(found.arguments), found.wanted) == (tool, arguments, wanted)


@pytest.mark.parametrize("message", ["", "Thank you for calling.", "I will enable roaming now.", "Do you confirm?"])
def test_what_is_no_request_is_none(message):
    assert requests(message) == []


def test_every_question_of_the_expert_is_understood():
    arguments = {"mode": "4g_5g_preferred", "app_name": "messaging", "permission": "storage"}
    for tool in ASKS:
        (found,) = requests(ask_for(tool, arguments))
        assert found.tool == tool
        assert all(found.arguments[name] == arguments[name] for name in found.arguments)


def test_instructions_become_what_a_user_says():
    assert first_person("You want your bag back. If the agent says no, you're sad.") == "I want my bag back. If you say no, I'm sad."
    assert first_person("Ask the agent to send you the agent's name.") == "Ask you to send me your name."
    assert sentences("You are Mia.\n\n- Your id is mia_1.\n.") == ["I am Mia.", "My id is mia_1."]


def test_actions_are_compared_without_the_order_of_lists():
    assert same({"a": [1, {"b": 2}]}, {"a": [{"b": 2}, 1]}) and not same({"a": [1, 1]}, {"a": [1, 2]}) and same(2, 2.0)
    gold = {"name": "refuel", "arguments": {"gb": 2.0, "note": "x"}, "compare_args": ["gb"]}
    assert matches(gold, Done("assistant", "refuel", {"gb": 2, "note": "y"}, "", False))
    assert not matches(gold, Done("user", "refuel", {"gb": 2}, "", False))


def test_an_overlay_copies_an_entry_before_it_can_change():
    class Entry:
        def __init__(self, value):
            self.value = value

        def model_copy(self, deep):
            assert deep
            return Entry(self.value)

        def model_dump(self, warnings):
            return {"value": self.value}

    shared = {"a": Entry(1), "b": Entry(2)}
    own = Overlay(shared)
    assert own["a"].value == 1 and own.changes({}) == {}
    own["a"].value = 5
    own["c"] = Entry(7)
    assert own.changes({}) == {"a": '{"value": 5}', "c": '{"value": 7}'}
    assert shared["a"].value == 1 and set(shared) == {"a", "b"} and set(own) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "given",
    ["nobody", "http://127.0.0.1:1/v1", 3, {"url": "http://127.0.0.1:1/v1"}, {"url": "u", "model": "m", "speed": 1}],
)
def test_a_user_that_cannot_be_one_is_refused(given):
    with pytest.raises(TurnwiseError, match="user"):
        read_user(given)


def test_a_server_needs_sensible_numbers_and_its_key(monkeypatch):
    for wrong in ({"timeout": 0}, {"retries": -1}, {"max_tokens": "many"}):
        with pytest.raises(TurnwiseError):
            UserServer("http://127.0.0.1:1/v1", "m", **wrong)
    monkeypatch.delenv("TAU2_KEY", raising=False)
    with pytest.raises(TurnwiseError, match="TAU2_KEY"):
        UserServer("http://127.0.0.1:1/v1", "m", key_variable="TAU2_KEY").speaker()
    assert read_user("scripted") is None


def test_a_server_that_wants_a_key_is_answered_with_how_to_give_it_one():
    class Closed:
        def post(self, path, body):
            raise Failure("HTTP 401: no key", status=401)

    with pytest.raises(TurnwiseError, match=r"HTTP 401: no key.*key_variable"):
        UserServer("http://127.0.0.1:1/v1", "m")._posted(Closed(), {})
