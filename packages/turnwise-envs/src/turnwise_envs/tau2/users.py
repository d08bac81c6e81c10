"""The simulated user: the protocol, and the scripted one.

The scripted user plays from the task's instructions: it opens with the reason for the call, gives what it knows when it is asked, says the
parts of its instructions that a question touches, agrees to every proposal, performs one request about its phone per turn (telecom), and
leaves when nothing is left to say. It does not understand the agent: it never refuses a wrong proposal, never chooses among offers, and
follows no instruction that depends on what the agent says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from turnwise_envs.tau2.phone import SENTENCE, Request, requests
from turnwise_envs.tau2.scoring import Gold, resolved
from turnwise_envs.tau2.worlds import World

PATIENCE = 3  # messages without anything new, after which the user leaves
HANDED_OVER = re.compile(r"\b(being|been|be) transferred\b|\btransferring you\b|hold on")
IDENTITY = re.compile(r"\b(name|user ?id|id|e-?mail|zip|phone|number|birth|identity|verify|account|reservation|order|who)\b")
ASKING = re.compile(r"\?|\b(please|could|can|may|provide|tell|share|give|need)\b")
CLOSING = re.compile(r"anything else|something else|further (help|assist)|other (question|request)|goodbye|\bbye\b|(nice|great|good) day")
AGREE = re.compile(r"\b(confirm|proceed|go ahead|yes|shall i|should i|would you like|do you want|agree|correct|okay|ok)\b")
RESOLVED = re.compile(r"resolved|fixed|solved|work(s|ing)?\b")
WORD = re.compile(r"[a-z0-9]{4,}")
COMMON = re.compile(
    "able about also another been before both cannot could does else give have help here just know like make more much need only other"
    " over please provide same should sure take tell than thank that their them then there these they this want were what when where"
    " which will with would your yours agent user".replace(" ", "|")
)
PERSON = (  # instructions speak to the user; the user speaks of itself, and to the agent
    (r"\byou are\b", "I am"),
    (r"\byou were\b", "I was"),
    (r"\byou['’]re\b", "I'm"),
    (r"\byourself\b", "myself"),
    (r"\byours\b", "mine"),
    (r"\byour\b", "my"),
    (
        r"\b(to|for|with|of|(?:give|tell|allow|let|correct|ask|make|refund|help|offer|charge|send|inform|remind)s?|made|told|gave) you\b",
        r"\1 me",
    ),
    (r"\byou\b", "I"),
    (r"\bthe (?:customer service )?(?:agent|representative)['’]s\b", "your"),
    (r"\bthe (?:customer service )?(?:agent|representative) (is|has|does)\b", r"you \1"),
    (r"\bthe (?:customer service )?(?:agent|representative) (\w+)ies\b", r"you \1y"),
    (r"\bthe (?:customer service )?(?:agent|representative) (\w\w+[^s\W])s\b", r"you \1"),
    (r"\bthe (?:customer service )?(?:agent|representative)\b", "you"),
    (r"\byou is\b", "you are"),
    (r"\byou has\b", "you have"),
    (r"\byou does\b", "you do"),
)
CHARACTER = re.compile(r"^You(?:['’]re| are)\b(?!.*(?:\d|willing|fine|ok|happy|flexible|open|sure|not sure|looking|trying))", re.IGNORECASE)
CHECKS = {  # the tool with which a user sees whether an assertion holds
    "assert_can_send_mms": "can_send_mms",
    "assert_internet_speed": "run_speed_test",
    "assert_mobile_data_status": "run_speed_test",
    "assert_service_status": "check_status_bar",
}


class Reply(NamedTuple):
    """What the user says. `ends`: why the conversation is over ("stop", "transfer", "out of scope"); empty if it is not."""

    text: str
    ends: str = ""


class User(Protocol):
    """Someone who talks to the agent. `kept` is all that the next replies depend on besides the databases, and `shown` the part of it
    that belongs to the state of the conversation (no counters), as JSON values."""

    def open(self) -> Reply: ...

    def answer(self, message: str) -> Reply: ...

    def shown(self) -> Any: ...

    def kept(self) -> dict[str, Any]: ...

    def restore(self, kept: Mapping[str, Any]) -> None: ...


class ScriptedUser:
    """A user without a model."""

    def __init__(self, world: World, gold: Gold):
        self.world, self.gold = world, gold
        told = world.record["user_scenario"]["instructions"]
        told = {"task_instructions": told} if isinstance(told, str) else told
        self.reason, self.known = sentences(told.get("reason_for_call")), sentences(told.get("known_info"))
        # Telecom's instructions tell the user how to use the phone; elsewhere they are wishes, except for those about the character.
        self.wishes = [] if world.domain.user_tools else sentences(told.get("task_instructions"), leave_out=CHARACTER)
        self.spoken: set[int] = set()  # of the wishes
        self.identified, self.silent, self.seen = False, 0, 0

    def open(self) -> Reply:
        return Reply(" ".join(self.reason) or "Hello, I need help.")

    def answer(self, message: str) -> Reply:
        if len(self.world.calls) > self.seen:  # the agent has done something since
            self.silent = 0
        reply = self._answer(message, message.lower())
        self.seen = len(self.world.calls)
        return reply

    def _answer(self, message: str, text: str) -> Reply:
        if self.world.transferred or HANDED_OVER.search(text):
            return Reply("Thank you, I will wait.", "transfer")
        if self.world.domain.user_tools and (reply := self._at_the_phone(message, text)) is not None:
            return reply
        if IDENTITY.search(text) and ASKING.search(text) and not self.identified:
            self.identified = True
            return self._news(self.known or ["I have told you all I know."])
        if CLOSING.search(text):
            return self._leave()
        touched = self._touched(text)
        agreed = bool(AGREE.search(text))
        if touched or agreed:
            return self._news([*(["Yes, please go ahead."] if agreed else []), *self._say(touched)], new=bool(touched))
        if rest := self._unspoken():
            return self._news(self._say(rest[:1]))
        return self._nothing_new(" ".join(self.known) if IDENTITY.search(text) else "I have told you all I know.")

    def shown(self) -> Any:
        return [sorted(self.spoken), self.identified]

    def kept(self) -> dict[str, Any]:
        return {"spoken": sorted(self.spoken), "identified": self.identified, "silent": self.silent, "seen": self.seen}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.spoken, self.identified = set(map(int, kept["spoken"])), bool(kept["identified"])
        self.silent, self.seen = int(kept["silent"]), int(kept["seen"])

    def _at_the_phone(self, message: str, text: str) -> Reply | None:
        """Perform the first request of a message; None if there is none."""
        asked = requests(message)
        if not asked and (CLOSING.search(text) or ("?" in text and RESOLVED.search(text))):
            return self._look()
        if not asked:
            return None
        shown = self._perform(asked[0])
        if asked[0].tool in CHECKS.values() and self._is_resolved():
            return Reply(f"{shown}\nEverything works now, thank you.", "stop")
        more = "\nI can only do one thing at a time." if len(asked) > 1 else ""
        return self._news([f"{shown}{more}"])

    def _perform(self, request: Request) -> str:
        """Use the phone; what is as wanted already is only looked at."""
        tool, arguments = request.tool, request.arguments
        if request.wanted is not None and getattr(self.world.store["TelecomUserTools"].db.device, request.topic.shows) is request.wanted:
            tool, arguments = request.topic.checks, {}
        return first_person(self.world.call("user", tool, arguments).result)

    def _look(self) -> Reply:
        """See whether the problem is gone."""
        names = [str(one["func_name"]) for one in self.gold.assertions]
        tool = next((CHECKS[name] for name in names if name in CHECKS), "check_status_bar")
        shown = first_person(self.world.call("user", tool, {}).result)
        if self._is_resolved():
            return Reply(f"{shown}\nEverything works now, thank you.", "stop")
        return self._nothing_new(f"{shown}\nMy problem is not resolved.")

    def _is_resolved(self) -> bool:
        """A user whom only a human can help is never satisfied."""
        return "ACTION" not in self.gold.basis and resolved(self.gold, self.world)

    def _leave(self) -> Reply:
        if rest := self._unspoken():
            return self._news(self._say(rest))
        return Reply("No, that is all. Thank you.", "stop")

    def _news(self, parts: list[str], new: bool = True) -> Reply:
        if not new:
            return self._nothing_new(" ".join(parts))
        self.silent = 0
        return Reply(" ".join(parts))

    def _nothing_new(self, text: str) -> Reply:
        self.silent += 1
        return Reply(text) if self.silent < PATIENCE else Reply(f"{text}\nI have to go now.", "stop")

    def _say(self, places: list[int]) -> list[str]:
        self.spoken.update(places)
        return [self.wishes[place] for place in places]

    def _unspoken(self) -> list[int]:
        return [place for place in range(len(self.wishes)) if place not in self.spoken]

    def _touched(self, text: str) -> list[int]:
        """The two wishes not yet spoken that have the most words in common with a question."""
        if not ASKING.search(text):
            return []
        asked = _words(text)
        common = {place: len(asked & _words(self.wishes[place].lower())) for place in self._unspoken()}
        best = sorted((place for place, count in common.items() if count), key=lambda place: (-common[place], place))
        return sorted(best[:2])


def sentences(text: str | None, leave_out: re.Pattern[str] | None = None) -> list[str]:
    """Instructions to a user, as sentences that the user could say."""
    parts = (part.strip(" \t-•*") for part in SENTENCE.split(text or ""))
    return [first_person(part) for part in parts if re.search(r"\w", part) and not (leave_out and leave_out.search(part))]


def first_person(text: str) -> str:
    """What is said to the user, as the user would say it: `You want to fly` becomes `I want to fly`."""
    for pattern, words in PERSON:
        text = re.sub(pattern, words, text, flags=re.IGNORECASE)
    return text[:1].upper() + text[1:]


def _words(text: str) -> set[str]:
    return {word.rstrip("s") for word in WORD.findall(text) if not COMMON.fullmatch(word)}
