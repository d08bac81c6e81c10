"""Validation of what an environment's `reset` and `step` return, before any other code sees it.

Unambiguous values are accepted: numbers of any kind as a reward, a list as `actions`, numpy booleans, no `info`. Everything else is a
`BadAnswer`, which states what was returned and what to return instead. All other code can therefore rely on observations with text, finite
float rewards and hashable anchors. Numpy is imported only for what is none of Python's own types: most environments do not need it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnwise.data.limits import LARGEST_REWARD
from turnwise.envs.base import Observation, Share, Transition
from turnwise.envs.blame import place_of
from turnwise.util.errors import TurnwiseError

RESET = 'return Observation("what the agent sees")'
STEP = 'return Transition(Observation("what the agent sees"), reward=0.0, done=False, success=False)'
PLAIN_ANCHORS = (str, bytes, int)
MOST_SEATS = 1000


class BadAnswer(TurnwiseError):
    """An invalid return value. `rule` names the broken rule, `lines` the location of the method that returned it."""

    def __init__(self, rule: str, message: str):
        super().__init__(message)
        self.rule, self.lines = rule, ""


def read_observation(given: Any, env: Any, method: str = "reset") -> Observation:
    """The return value of `reset` (or `restore`) as a valid observation."""
    try:
        return _first(given, f"{type(env).__name__}.{method}()")
    except BadAnswer as error:
        error.lines = place_of(getattr(env, method))
        raise


def read_snapshot(given: Any, env: Any) -> bytes | None:
    """What `snapshot` returned: bytes, or None where the state cannot be kept."""
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    wrong = BadAnswer("snapshot() gives bytes", f"{type(env).__name__}.snapshot() returned {_what(given)}, not bytes (or None)")
    wrong.lines = place_of(env.snapshot)
    raise wrong


def read_transition(given: Any, env: Any) -> Transition:
    """The return value of `step` as a valid transition."""
    if type(given) is Transition and _is_plain(given):
        return given
    try:
        return _transition(given, f"{type(env).__name__}.step()")
    except BadAnswer as error:
        error.lines = place_of(env.step)
        raise


def _first(given: Any, where: str) -> Observation:
    if isinstance(given, Observation):
        return _observation(given, where)
    hint = ", as Gymnasium's environments do (observation, info)" if isinstance(given, tuple) and len(given) == 2 else ""
    raise BadAnswer("reset() and step() give an Observation", f"{where} returned {_what(given)}{hint}. It should: {RESET}")


def _transition(given: Any, where: str) -> Transition:
    if not isinstance(given, Transition):
        hint = ", as Gymnasium's environments do" if isinstance(given, tuple) and len(given) in (4, 5) else ""
        raise BadAnswer("step() returns a Transition", f"{where} returned {_what(given)}{hint}. It should: {STEP}")
    found: Any = given.observation
    if not isinstance(found, Observation):
        raise BadAnswer(
            "reset() and step() give an Observation", f"{where}: the observation is {_what(found)}. Give Observation(text), as in: {STEP}"
        )
    return replace(
        given,
        observation=_observation(found, where),
        reward=_reward(given.reward, where),
        done=_flag("done", given.done, where),
        success=_flag("success", given.success, where),
        info=_info(given.info, where),
        others=_others(given.others, where),
    )


def _is_plain(given: Transition) -> bool:
    """Whether a return value already has the exact types: the common case, in a microsecond."""
    seen = given.observation
    return (
        type(given.reward) is float
        and -LARGEST_REWARD <= given.reward <= LARGEST_REWARD
        and type(given.done) is bool
        and type(given.success) is bool
        and type(given.info) is dict
        and type(seen) is Observation
        and type(seen.text) is str
        and type(seen.images) is tuple
        and not seen.images
        and (seen.actions is None or (type(seen.actions) is tuple and set(map(type, seen.actions)) <= {str}))
        and (seen.anchor is None or type(seen.anchor) in PLAIN_ANCHORS)
        and type(seen.seat) is int
        and seen.seat >= 0
        and type(given.others) is dict
        and not given.others
    )


def _observation(given: Observation, where: str) -> Observation:
    text: Any = given.text
    if not isinstance(text, str):
        remedy = "Decode it: text.decode()" if isinstance(text, bytes | bytearray) else 'Where there is nothing to see: Observation("")'
        raise BadAnswer("the observation's text is a str", f"{where}: the observation's text is {_what(text)}, not a str. {remedy}")
    images, actions, anchor = _images(given.images, where), _actions(given.actions, where), _anchor(given.anchor, where)
    return Observation(str.__str__(text), images, actions, anchor, _seat(given.seat, where))


def _actions(given: Any, where: str) -> tuple[str, ...] | None:
    rule = "actions is None or a tuple of str"
    if given is None:
        return None
    if not isinstance(given, tuple | list):
        import numpy as np

        if isinstance(given, np.ndarray) and given.ndim == 1:
            given = given.tolist()
    if not isinstance(given, tuple | list):
        why = (
            "one text" if isinstance(given, str) else _what(given) + (", which has no order" if isinstance(given, set | frozenset) else "")
        )
        raise BadAnswer(rule, f'{where}: actions is {why}. Give a tuple of texts, as in actions=("left", "right"), or None')
    for action in given:
        if not isinstance(action, str):
            raise BadAnswer(rule, f"{where}: actions holds {_what(action)}. Every action is a text: write str(…)")
    return tuple(str.__str__(action) for action in given)


def _images(given: Any, where: str) -> tuple[Any, ...]:
    rule = "images is a tuple of RGB arrays (uint8)"
    if given is None:
        return ()
    if not isinstance(given, tuple | list):
        raise BadAnswer(rule, f"{where}: images is {_what(given)}. Give a tuple of arrays, of one image: images=(image,)")
    if not given:
        return ()
    import numpy as np

    from turnwise.data.images import Picture, check_pixels

    for image in given:
        try:
            if not isinstance(image, Picture):
                check_pixels(np.asarray(image))
        except Exception as error:
            raise BadAnswer(rule, f"{where}: {error}") from None
    return tuple(given)


def _anchor(given: Any, where: str) -> Any:
    if given is None or type(given) in PLAIN_ANCHORS:
        return given
    if isinstance(given, str | bytes | bytearray) or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    import numpy as np

    if isinstance(given, np.integer):
        return given
    if (hasattr(given, "__array_interface__") or hasattr(given, "__array__")) and np.asarray(given).dtype.kind in "biufc":
        return given
    example = " For example: anchor=str(anchor)"
    raise BadAnswer(
        "the anchor is text, bytes, an integer or an image",
        f"{where}: the anchor is {_what(given)}, not text, bytes, an integer or an image.{example}",
    )


def _reward(given: Any, where: str) -> float:
    try:
        if given is None or isinstance(given, str | bytes):
            raise TypeError
        value = float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
        value = math.nan
    if not abs(value) <= LARGEST_REWARD:
        raise BadAnswer(
            "the reward is a finite number",
            f"{where}: the reward is {_what(given)}, not a finite number (within ±{LARGEST_REWARD:g}). Give 0.0 where nothing was won",
        )
    return value


def _flag(name: str, given: Any, where: str) -> bool:
    if isinstance(given, bool):
        return given
    import numpy as np

    if isinstance(given, np.bool_) or (isinstance(given, int | float | np.number) and given in (0, 1)):
        return bool(given)
    raise BadAnswer(f"{name} is True or False", f"{where}: {name} is {_what(given)}, not True or False")


def _info(given: Any, where: str) -> Mapping[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    raise BadAnswer("info is a dict", f"{where}: info is {_what(given)}, not a dict")


def _seat(given: Any, where: str) -> int:
    if type(given) is int and 0 <= given < MOST_SEATS:
        return given
    import numpy as np

    if isinstance(given, int | np.integer) and not isinstance(given, bool) and 0 <= given < MOST_SEATS:
        return int(given)
    raise BadAnswer("a seat is a number from 0 on", f"{where}: the seat is {_what(given)}, not an integer from 0 to {MOST_SEATS - 1}")


def _others(given: Any, where: str) -> dict[int, Share]:
    if not given:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(share, Share) for share in given.values()):
        raise BadAnswer("others maps seats to a Share", f"{where}: others is {_what(given)}. Give {{seat: Share(reward, success)}}")
    return {
        _seat(seat, where): Share(_reward(share.reward, where), _flag("success", share.success, where)) for seat, share in given.items()
    }


def _what(given: Any) -> str:
    """A short description of a value: None, a tuple of 5, 'text' (str)."""
    kind = type(given).__name__
    if given is None or isinstance(given, bool):
        return repr(given)
    if kind in ("coroutine", "async_generator"):
        return f"a {kind}: reset and step must not be async"
    if isinstance(given, tuple | list):
        return f"a {kind} of {len(given)}"
    import numpy as np

    if isinstance(given, str | bytes | int | float | np.generic):
        words = repr(given)
        return f"{words if len(words) <= 60 else words[:57] + '…'} ({kind})"
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"
