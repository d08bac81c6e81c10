"""ScienceWorld's simulator in a Java process that many environments share, and the same every time.

The simulator keeps three things for the whole process: a random generator, a counter of objects, and the simplifications in use. An
environment that plays after another one puts its own back first. The order of objects in a room is that of a hash set whose keys are
addresses, and animals choose by it; the process is told to give all objects the same hash, so that the order is that of their arrival. The
same task and actions then give the same answers in any process, whatever was played before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.util.errors import TurnwiseError
from turnwise_envs.shared.java import Java, lease
from turnwise_envs.shared.java_wire import Ref
from turnwise_envs.shared.packages import load

NAME = "scienceworld"
OPTIONS = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2", "-XX:+ExitOnOutOfMemoryError")
OPEN = {"JDK_JAVA_OPTIONS": "--add-opens=java.base/java.util=ALL-UNNAMED"}  # of Java 9 and later; older ones need and know neither
SCRAMBLE = 0x5DEECE66D  # of java.util.Random: setSeed(s) keeps s ^ SCRAMBLE
FULL_SCORE = 100
SOLVING = 10  # a solution may take this many times the limit of a call
SPLITS = {"train": "Train", "dev": "Dev", "valid": "Dev", "test": "Test"}
RANDOM, COUNTER, SIMPLIFIER = "scala.util.Random$", "util.UniqueIdentifier", "main.scala.scienceworld.runtime.SimplifierProcessor"


class Seen(NamedTuple):
    """What the simulator says after an action; the score is of 100."""

    text: str
    score: int
    completed: bool
    look: str
    inventory: str
    actions: tuple[str, ...] | None


class Own(NamedTuple):
    """What the simulator keeps for the whole process, of one environment."""

    seed: int
    objects: int
    simplifications: str


class Simulator:
    """One simulated house. `seconds` limits every call."""

    def __init__(self, seconds: float, heap_mb: int):
        jar = Path(load("scienceworld.constants", "the adapter for ScienceWorld", NAME).JAR_PATH)
        self._java: Java = lease(NAME, str(jar), (*OPTIONS, f"-Xmx{heap_mb}m"), self, OPEN)
        self._java.seconds = seconds
        self._own: Own | None = None
        try:
            _prepared(self._java)
            self._server: Ref = self._java.new("scienceworld.runtime.pythonapi.PythonInterface")
        except BaseException:
            self._java.leave(self)
            raise

    @property
    def lost(self) -> bool:
        """Whether another environment's call has ended the process."""
        return self._java.closed

    @property
    def process_id(self) -> int:
        return self._java.process_id

    def kinds(self) -> list[str]:
        return self._java.texts(self._server, "getTaskNames")

    def variations(self, kind: str, split: str) -> list[int]:
        """The variations of a kind in a split, as the package has them."""
        self._java.call(self._server, "taskStr_$eq", kind)
        found = self._java.call(self._server, f"getVariations{SPLITS[split]}")
        numbers = json.loads(str(self._java.call(found, "toString")))
        self._java.forget(found)
        return [int(number) for number in numbers]

    def load(self, kind: str, variation: int, simplifications: str, gold: bool = False) -> None:
        """Start a task. With `gold`, its solution is computed first."""
        self._enter()
        if gold:  # it remembers ways through the first house that it saw
            paths = self._java.static("scienceworld.goldagent.PathFinder", "precomputedExhaustivePaths")
            self._java.call(paths, "clear")
            self._java.forget(paths)
        message = str(self._java.call(self._server, "load", kind, variation, simplifications, gold) or "")
        if message:
            raise TurnwiseError(f"scienceworld: {kind}, variation {variation}: {message}")

    def solution(self, kind: str, variation: int, simplifications: str) -> list[str]:
        """The package's solution of a task, up to the action that wins: it often goes on after that."""
        seconds, self._java.seconds = self._java.seconds, self._java.seconds * SOLVING
        try:
            self.load(kind, variation, simplifications, gold=True)
            plan = self._java.texts(self._server, "getGoldActionSequence")
            self.step("look around")
            for turn, action in enumerate(plan, 1):
                self.step(action)
                if float(self._java.call(self._server, "getScore")) >= 1.0:
                    return plan[:turn]
        finally:
            self._java.seconds = seconds
        return plan

    def description(self) -> str:
        return str(self._java.call(self._server, "getTaskDescription"))

    def step(self, command: str) -> None:
        """Play a command whose answer is not needed."""
        self._enter()
        self._java.call(self._server, "step", command)

    def play(self, command: str, actions: bool) -> Seen:
        """Play a command and see what there is."""
        self._enter()
        java, server = self._java, self._server
        text = str(java.call(server, "step", command))
        score = round(FULL_SCORE * float(java.call(server, "getScore")))
        completed = bool(java.call(server, "getCompleted")) or score < 0
        look, inventory = (str(java.call(server, f"freeAction{what}")) for what in ("Look", "Inventory"))
        valid = ordered(java.texts(server, "getValidActionObjectCombinations")) if actions else None
        return Seen(text, score, completed, look, inventory, valid)

    def _enter(self) -> None:
        """Let the simulator have what it kept for this environment when it played last."""
        last = self._java.active
        if last == [self]:
            return
        for other in last:
            other._own = other._kept()
        self._java.active = [self]
        if self._own is None:
            return
        shelf = self._java.shelf
        self._java.call(shelf["random"], "setSeed", self._own.seed ^ SCRAMBLE)
        self._java.call(shelf["count"], "set", shelf["counter"], self._own.objects)
        self._java.static(SIMPLIFIER, "parseSimplificationStr", self._own.simplifications)

    def _kept(self) -> Own:
        java, shelf = self._java, self._java.shelf
        found = java.call(self._server, "agentInterface")
        inside = java.call(found, "get") if java.call(found, "isDefined") else None
        simplifications = str(java.call(inside, "simplificationStr")) if inside is not None else ""
        for ref in (found, inside):
            if ref is not None:
                java.forget(ref)
        return Own(int(java.call(shelf["seed"], "get", shelf["random"])), int(java.static(COUNTER, "count")), simplifications)

    def close(self) -> None:
        self._java.forget(self._server)
        self._java.leave(self)


def ordered(actions: list[str]) -> tuple[str, ...]:
    """Actions, each once, in an order that does not depend on the simulator; numbered choices by number."""
    return tuple(sorted(set(actions), key=lambda action: (not action.isdecimal(), int(action) if action.isdecimal() else 0, action)))


def _prepared(java: Java) -> None:
    """What every environment of the process uses, and whether the process does as it was told."""
    if java.shelf:
        return
    marks = [java.static("java.lang.System", "identityHashCode", java.new("java.util.ArrayList")) for _ in range(2)]
    if marks[0] != marks[1]:
        raise TurnwiseError(
            "scienceworld: this Java cannot give all objects the same hash (-XX:hashCode=2), so no episode would be the same twice. "
            "Install OpenJDK, as with: apt install default-jre-headless"
        )
    module = java.field(f"z:{RANDOM}", "MODULE$")
    shelf: dict[str, Any] = {"random": java.call(module, "self")}
    shelf["seed"] = _accessible(java, "java.util.Random", "seed")
    shelf["counter"] = java.field(f"z:{COUNTER}$", "MODULE$")
    shelf["count"] = _accessible(java, f"{COUNTER}$", "count")
    java.shelf.update(shelf)


def _accessible(java: Java, name: str, field: str) -> Ref:
    kind = java.static("java.lang.Class", "forName", name)
    found: Ref = java.call(kind, "getDeclaredField", field)
    java.call(found, "setAccessible", True)
    java.forget(kind)
    return found
