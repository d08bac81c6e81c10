"""Requests about a phone, in the words of an agent: which of the user's tools does a message ask for?

Only the scripted user needs this. A sentence is read by key words: what it is about (airplane mode, SIM card, APN …) and whether it wants
something done or checked. Nothing of the message reaches a tool except for choices from fixed lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
OWN = re.compile(r"^\W*(?:i|we)(?:'ll|'ve|'m|'re)?\b(?! (?:would like|want|need) you)", re.IGNORECASE)  # what the agent itself does
DO = re.compile(
    r"\b(turn|toggle|switch|enable|disable|activate|deactivate|set|change|reset|re-?seat|re-?insert|remove|disconnect|connect|grant|allow"
    r"|give|reboot|restart|pay|make|accept)\b"
)
OFF = re.compile(r"\b(off|disable|deactivate|disconnect)\b")
ON = re.compile(r"\b(on|enable|activate)\b")
MODES = (("4g_5g_preferred", r"5g|prefer"), ("4g_only", r"4g"), ("3g_only", r"3g"), ("2g_only", r"2g"))
PERMISSIONS = ("storage", "sms", "phone", "network")
APPS = ("messaging", "browser", "phone")


class Topic(NamedTuple):
    """Something about a phone. `does`: the tool that changes it; `checks`: the tool that shows it; `shows`: the field of the device that
    says whether it is on, if it can be on or off."""

    words: str
    checks: str
    does: str = ""
    shows: str = ""


class Request(NamedTuple):
    """A tool with its arguments. `wanted`: on or off, if the message says so; `topic.shows` then tells whether it is so already."""

    tool: str
    arguments: Mapping[str, Any]
    topic: Topic
    wanted: bool | None = None


TOPICS = (  # the more specific first
    Topic(r"data[- ]saver", "check_data_restriction_status", "toggle_data_saver_mode", "data_saver_mode"),
    Topic(r"wi-?fi calling", "check_wifi_calling_status", "toggle_wifi_calling", "wifi_calling_enabled"),
    Topic(r"wi-?fi", "check_wifi_status", "toggle_wifi", "wifi_enabled"),
    Topic(r"airplane|flight mode", "check_network_status", "toggle_airplane_mode", "airplane_mode"),
    Topic(r"roaming", "check_network_status", "toggle_roaming", "roaming_enabled"),
    Topic(r"\bsim\b", "check_sim_status", "reseat_sim_card"),
    Topic(r"network (mode|preference)|preferred network|\b[2345]g\b", "check_network_mode_preference", "set_network_mode_preference"),
    Topic(r"\bapn\b", "check_apn_settings", "reset_apn_settings"),
    Topic(r"\bvpn\b", "check_vpn_status", "disconnect_vpn"),
    Topic(r"permission", "check_app_permissions", "grant_app_permission"),
    Topic(r"speed", "run_speed_test"),
    Topic(r"\bmms\b|picture message|group message", "can_send_mms"),
    Topic(r"payment|\bpay\b|\bbill\b", "check_payment_request", "make_payment"),
    Topic(r"reboot|restart", "reboot_device", "reboot_device"),
    Topic(r"installed apps|which apps", "check_installed_apps"),
    Topic(r"status bar", "check_status_bar"),
    Topic(r"(mobile|cellular) data", "check_network_status", "toggle_data", "data_enabled"),
    Topic(r"network status|signal|service|connection|internet", "check_network_status"),
)
ASKS = {  # how an agent asks for each of them, for the expert
    "toggle_data_saver_mode": "Please toggle the data saver mode.",
    "toggle_wifi_calling": "Please toggle Wi-Fi calling.",
    "toggle_airplane_mode": "Please toggle airplane mode.",
    "toggle_roaming": "Please toggle data roaming.",
    "toggle_data": "Please toggle mobile data.",
    "reseat_sim_card": "Please reseat your SIM card.",
    "set_network_mode_preference": "Please set the network mode to {mode}.",
    "reset_apn_settings": "Please reset the APN settings.",
    "disconnect_vpn": "Please disconnect the VPN.",
    "grant_app_permission": "Please grant the {app_name} app the {permission} permission.",
    "reboot_device": "Please reboot your phone.",
    "make_payment": "Please make the payment.",
    "can_send_mms": "Please check whether you can send an MMS.",
    "run_speed_test": "Please run a speed test.",
    "check_status_bar": "Please look at the status bar.",
}


def requests(message: str) -> list[Request]:
    """What a message asks the user to do or to check, in its order."""
    found = (_request(sentence.lower()) for sentence in SENTENCE.split(message) if not OWN.match(sentence))
    return [request for request in found if request is not None]


def ask_for(tool: str, arguments: Mapping[str, Any]) -> str:
    """A message that asks for a tool."""
    words = {name: str(value).replace("_", " ") for name, value in arguments.items()}
    return ASKS[tool].format(**words) if tool in ASKS else f"Please use {tool.replace('_', ' ')}."


def _request(sentence: str) -> Request | None:
    topic = next((topic for topic in TOPICS if re.search(topic.words, sentence)), None)
    if topic is None:
        return None
    if not topic.does or not DO.search(sentence):
        arguments = {"app_name": _first(APPS, sentence)} if topic.checks == "check_app_permissions" else {}
        return Request(topic.checks, arguments, topic)
    if topic.does == "set_network_mode_preference":
        mode = next((mode for mode, words in MODES if re.search(words, sentence)), MODES[0][0])
        return Request(topic.does, {"mode": mode}, topic)
    if topic.does == "grant_app_permission":
        return Request(topic.does, {"app_name": _first(APPS, sentence), "permission": _first(PERMISSIONS, sentence)}, topic)
    if topic.does == "disconnect_vpn" and not OFF.search(sentence):
        return Request("connect_vpn", {}, topic)
    wanted = False if OFF.search(sentence) else True if ON.search(sentence) else None
    return Request(topic.does, {}, topic, wanted if topic.shows else None)


def _first(names: tuple[str, ...], sentence: str) -> str:
    return next((name for name in names if name in sentence), names[0])
