"""One page of the browser: loading a task, looking at it, and the mouse and the keyboard."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.util.errors import TurnwiseError
from turnwise_envs.miniwob.browser import HEIGHT, WIDTH, Browser, BrowserGone, Command, leave_browser, shared_browser
from turnwise_envs.miniwob.view import Look, read_look

PAUSE = 1000  # milliseconds of the page's clock that pass with every action
LONGEST = 500  # characters that one action types
AREA = (160, 210)  # pixels: the part of a page that tasks use
CONTROL = 2
Point = tuple[float, float]
AWAY: Point = (490, 310)  # where the mouse waits: on nothing
KEYS = {  # name → key, code, number, text
    "enter": ("Enter", "Enter", 13, "\r"),
    "tab": ("Tab", "Tab", 9, ""),
    "escape": ("Escape", "Escape", 27, ""),
    "backspace": ("Backspace", "Backspace", 8, ""),
    "delete": ("Delete", "Delete", 46, ""),
    "space": (" ", "Space", 32, " "),
    "home": ("Home", "Home", 36, ""),
    "end": ("End", "End", 35, ""),
    "pageup": ("PageUp", "PageUp", 33, ""),
    "pagedown": ("PageDown", "PageDown", 34, ""),
    "up": ("ArrowUp", "ArrowUp", 38, ""),
    "down": ("ArrowDown", "ArrowDown", 40, ""),
    "left": ("ArrowLeft", "ArrowLeft", 37, ""),
    "right": ("ArrowRight", "ArrowRight", 39, ""),
}


@cache
def _script() -> str:
    return (Path(__file__).parent / "page.js").read_text()


class Page:
    """A page of the shared browser. `painted` opens it as a window, which can be photographed; a tab takes half the memory."""

    def __init__(self, painted: bool = False):
        self.browser: Browser = shared_browser()
        self._open, self._api, self._mouse = True, "", AWAY
        try:
            self._target = self.browser.call("Target.createTarget", url="about:blank", newWindow=painted)["targetId"]
            self._session = self.browser.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            self._all(
                Command("Page.enable", {}),
                Command("Page.addScriptToEvaluateOnNewDocument", {"source": _script()}),
                Command("Emulation.setFocusEmulationEnabled", {"enabled": True}),
                Command("Emulation.setDeviceMetricsOverride", size),
            )
        except BaseException:
            self.close()
            raise

    def _all(self, *commands: Command) -> list[dict[str, Any]]:
        return self.browser.call_all(commands, self._session)

    def load(self, url: str, seed: str, mode: str, later: str) -> Look:
        """A fresh document with the problem of this seed; `later` seeds what is random after its start."""
        self._mouse = AWAY
        _, answer = self._all(_mouse("mouseMoved", AWAY), Command("Page.navigate", {"url": url}))
        if answer.get("errorText"):
            raise TurnwiseError(f"miniwob: {url} cannot be opened: {answer['errorText']}")
        ready = 'new Promise(go => document.readyState === "complete" ? go(__turnwise) : addEventListener("load", () => go(__turnwise)))'
        (found,) = self._all(Command("Runtime.evaluate", {"expression": ready, "awaitPromise": True}))
        self._api = found["result"].get("objectId", "")
        if not self._api:
            raise TurnwiseError(f"miniwob: {url} did not load. Is the package `miniwob` complete?")
        return self._settled(self.run("begin", seed, mode, later, PAUSE, *AWAY))

    def look(self, span: int = PAUSE) -> Look:
        """The page after this many milliseconds of its clock."""
        return self._settled(self.run("look", span, *self._mouse))

    def _settled(self, seen: dict[str, Any] | None) -> Look:
        """What came to be under the mouse notices it now, not at some later frame."""
        if seen is None:
            self.hover(self._mouse)
            seen = self.run("look", 0, *self._mouse)
        return read_look(seen or {})

    def run(self, name: str, *given: Any) -> Any:
        """Call a function of page.js. Arguments travel as values, never as code."""
        call = {
            "functionDeclaration": "function (name, ...given) { return this[name](...given) }",
            "objectId": self._api,
            "arguments": [{"value": name}, *({"value": value} for value in given)],
            "returnByValue": True,
            "awaitPromise": True,
        }
        answer = self._all(Command("Runtime.callFunctionOn", call))[0]
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"].get("exception", {}).get("description", "an error")
            raise TurnwiseError(f"miniwob: the page failed in {name}: {thrown.splitlines()[0]}")
        return answer["result"].get("value")

    # -- mouse and keyboard -------------------------------------------------------------------------------------------------------

    def click(self, at: Point) -> None:
        self._mouse = at
        self._all(_mouse("mouseMoved", at), _mouse("mousePressed", at), _mouse("mouseReleased", at))

    def hover(self, at: Point) -> None:
        self._mouse = at
        self._all(_mouse("mouseMoved", at))

    def drag(self, start: Point, end: Point) -> None:
        """Press, move in a few steps, let go. Each event is answered before the next one: moves must not be merged."""
        self._all(_mouse("mouseMoved", start))
        self._all(_mouse("mousePressed", start))
        for part in (0.2, 0.4, 0.6, 0.8, 1.0):
            x, y = (a + (b - a) * part for a, b in zip(start, end, strict=True))
            self._all(_mouse("mouseMoved", (x, y), held=True))
        self._all(_mouse("mouseMoved", end, held=True))
        self._all(_mouse("mouseReleased", end))
        self._mouse = end

    def type(self, text: str) -> None:
        """Keys for each character."""
        commands: list[Command] = []
        for character in text[:LONGEST]:
            commands += _stroke("enter") if character == "\n" else _letter(character)
        if commands:
            self._all(*commands)

    def press(self, key: str) -> None:
        """A key of `KEYS` or one character, or `control+` a, c, x or v."""
        if not key.startswith("control+"):
            self._all(*(_stroke(key) if key in KEYS else _letter(key)))
            return
        letter = key.removeprefix("control+")
        if letter == "v":
            self._all(Command("Input.insertText", {"text": self.run("pasted")}))
        elif letter == "a":
            self._all(*_letter("a", modifiers=CONTROL, commands=["selectAll"]))
        else:
            self.run("copy")
            if letter == "x":
                self._all(*_stroke("delete"))

    def screenshot(self, form: str, scale: int = 1, quality: int | None = None) -> bytes:
        """The area of the task as an image file, "png" or "webp"."""
        clip = {"x": 0, "y": 0, "width": AREA[0], "height": AREA[1], "scale": scale}
        given = {"format": form, "clip": clip} | ({} if quality is None else {"quality": quality})
        return b64decode(self._all(Command("Page.captureScreenshot", given))[0]["data"])

    def close(self) -> None:
        """Close the page; with the last one the browser ends."""
        if not self._open:
            return
        self._open = False
        try:
            if self.browser.alive and self.browser.pages > 1:
                self.browser.call("Target.closeTarget", targetId=self._target)
        except (BrowserGone, TurnwiseError, AttributeError):
            pass
        finally:
            leave_browser(self.browser)


def _mouse(kind: str, at: Point, held: bool = False) -> Command:
    down = kind != "mouseMoved" or held
    given = {"type": kind, "x": at[0], "y": at[1], "button": "left" if down else "none", "clickCount": int(kind != "mouseMoved")}
    return Command("Input.dispatchMouseEvent", given | {"buttons": int(held or kind == "mousePressed")})


def _stroke(name: str) -> list[Command]:
    key, code, number, text = KEYS[name]
    shared = {"key": key, "code": code, "windowsVirtualKeyCode": number}
    down = {"type": "keyDown", "text": text, "unmodifiedText": text} if text else {"type": "rawKeyDown"}
    return [Command("Input.dispatchKeyEvent", shared | down), Command("Input.dispatchKeyEvent", shared | {"type": "keyUp"})]


def _letter(character: str, modifiers: int = 0, commands: Sequence[str] = ()) -> list[Command]:
    plain = character.isascii() and character.isalnum()
    shared = {
        "key": character,
        "code": "" if not plain else f"Digit{character}" if character.isdigit() else f"Key{character.upper()}",
        "windowsVirtualKeyCode": ord(character.upper()) if plain else 0,
        "modifiers": modifiers,
    }
    text = {} if modifiers else {"text": character, "unmodifiedText": character}
    down = shared | text | {"type": "rawKeyDown" if modifiers else "keyDown", "commands": list(commands)}
    return [Command("Input.dispatchKeyEvent", down), Command("Input.dispatchKeyEvent", shared | {"type": "keyUp"})]
