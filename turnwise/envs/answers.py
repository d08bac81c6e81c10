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

from turnwise.data.tasks import LARGEST_REWARD
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


def read_observation(returned: Any, env: Any, method: str = "reset") -> Observation:
    """The return value of `reset` (or `restore`) as a valid observation."""
    where = f"{type(env).__name__}.{method}()"
    try:
        if isinstance(returned, Observation):
            return _observation(returned, where)
        hint = ", as Gymnasium's environments do (observation, info)" if isinstance(returned, tuple) and len(returned) == 2 else ""
        raise BadAnswer("reset() and step() give an Observation", f"{where} returned {_what(returned)}{hint}. It should: {RESET}")
    except BadAnswer as error:
        error.lines = place_of(getattr(env, method))
        raise


def read_snapshot(returned: Any, env: Any) -> bytes | None:
    """What `snapshot` returned: bytes, or None where the state cannot be kept."""
    if returned is None or type(returned) is bytes:
        return returned
    if isinstance(returned, bytearray | memoryview):
        return bytes(returned)
    wrong = BadAnswer("snapshot() gives bytes", f"{type(env).__name__}.snapshot() returned {_what(returned)}, not bytes (or None)")
    wrong.lines = place_of(env.snapshot)
    raise wrong


def read_transition(returned: Any, env: Any) -> Transition:
    """The return value of `step` as a valid transition."""
    if type(returned) is Transition and _is_plain(returned):
        return returned
    where = f"{type(env).__name__}.step()"
    try:
        if not isinstance(returned, Transition):
            hint = ", as Gymnasium's environments do" if isinstance(returned, tuple) and len(returned) in (4, 5) else ""
            raise BadAnswer("step() returns a Transition", f"{where} returned {_what(returned)}{hint}. It should: {STEP}")
        observation: Any = returned.observation
        if not isinstance(observation, Observation):
            raise BadAnswer(
                "reset() and step() give an Observation",
                f"{where}: the observation is {_what(observation)}. Give Observation(text), as in: {STEP}",
            )
        return replace(
            returned,
            observation=_observation(observation, where),
            reward=_reward(returned.reward, where),
            done=_flag("done", returned.done, where),
            success=_flag("success", returned.success, where),
            info=_info(returned.info, where),
            others=_others(returned.others, where),
        )
    except BadAnswer as error:
        error.lines = place_of(env.step)
        raise


def _is_plain(returned: Transition) -> bool:
    """Whether a return value already has the exact types: the common case, in a microsecond."""
    seen = returned.observation
    return (
        type(returned.reward) is float
        and -LARGEST_REWARD <= returned.reward <= LARGEST_REWARD
        and type(returned.done) is bool
        and type(returned.success) is bool
        and type(returned.info) is dict
        and type(seen) is Observation
        and type(seen.text) is str
        and type(seen.images) is tuple
        and not seen.images
        and (seen.actions is None or (type(seen.actions) is tuple and set(map(type, seen.actions)) <= {str}))
        and (seen.anchor is None or type(seen.anchor) in PLAIN_ANCHORS)
        and type(seen.seat) is int
        and seen.seat >= 0
        and type(returned.others) is dict
        and not returned.others
    )


def _observation(returned: Observation, where: str) -> Observation:
    text: Any = returned.text
    if not isinstance(text, str):
        remedy = "Decode it: text.decode()" if isinstance(text, bytes | bytearray) else 'Where there is nothing to see: Observation("")'
        raise BadAnswer("the observation's text is a str", f"{where}: the observation's text is {_what(text)}, not a str. {remedy}")
    images, actions, anchor = _images(returned.images, where), _actions(returned.actions, where), _anchor(returned.anchor, where)
    return Observation(str.__str__(text), images, actions, anchor, _seat(returned.seat, where))


def _actions(returned: Any, where: str) -> tuple[str, ...] | None:
    rule = "actions is None or a tuple of str"
    if returned is None:
        return None
    if not isinstance(returned, tuple | list):
        import numpy as np

        if isinstance(returned, np.ndarray) and returned.ndim == 1:
            returned = returned.tolist()
    if not isinstance(returned, tuple | list):
        unordered = ", which has no order" if isinstance(returned, set | frozenset) else ""
        why = "one text" if isinstance(returned, str) else f"{_what(returned)}{unordered}"
        raise BadAnswer(rule, f'{where}: actions is {why}. Give a tuple of texts, as in actions=("left", "right"), or None')
    for action in returned:
        if not isinstance(action, str):
            raise BadAnswer(rule, f"{where}: actions holds {_what(action)}. Every action is a text: write str(…)")
    return tuple(str.__str__(action) for action in returned)


def _images(returned: Any, where: str) -> tuple[Any, ...]:
    rule = "images is a tuple of RGB arrays (uint8)"
    if returned is None:
        return ()
    if not isinstance(returned, tuple | list):
        raise BadAnswer(rule, f"{where}: images is {_what(returned)}. Give a tuple of arrays, of one image: images=(image,)")
    if not returned:
        return ()
    import numpy as np

    from turnwise.data.images import Picture, check_pixels

    for image in returned:
        try:
            if not isinstance(image, Picture):
                check_pixels(np.asarray(image))
        except Exception as error:
            raise BadAnswer(rule, f"{where}: {error}") from None
    return tuple(returned)


def _anchor(returned: Any, where: str) -> Any:
    if returned is None or type(returned) in PLAIN_ANCHORS:
        return returned
    if isinstance(returned, str | bytes | bytearray) or (isinstance(returned, int) and not isinstance(returned, bool)):
        return returned
    import numpy as np

    if isinstance(returned, np.integer):
        return returned
    if (hasattr(returned, "__array_interface__") or hasattr(returned, "__array__")) and np.asarray(returned).dtype.kind in "biufc":
        return returned
    example = " For example: anchor=str(anchor)"
    raise BadAnswer(
        "the anchor is text, bytes, an integer or an image",
        f"{where}: the anchor is {_what(returned)}, not text, bytes, an integer or an image.{example}",
    )


def _reward(returned: Any, where: str) -> float:
    try:
        if returned is None or isinstance(returned, str | bytes):
            raise TypeError
        value = float(returned)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
        value = math.nan
    if not abs(value) <= LARGEST_REWARD:
        raise BadAnswer(
            "the reward is a finite number",
            f"{where}: the reward is {_what(returned)}, not a finite number (within ±{LARGEST_REWARD:g}). Give 0.0 where nothing was won",
        )
    return value


def _flag(name: str, returned: Any, where: str) -> bool:
    if isinstance(returned, bool):
        return returned
    import numpy as np

    if isinstance(returned, np.bool_) or (isinstance(returned, int | float | np.number) and returned in (0, 1)):
        return bool(returned)
    raise BadAnswer(f"{name} is True or False", f"{where}: {name} is {_what(returned)}, not True or False")


def _info(returned: Any, where: str) -> Mapping[str, Any]:
    if returned is None:
        return {}
    if isinstance(returned, Mapping):
        return dict(returned)
    raise BadAnswer("info is a dict", f"{where}: info is {_what(returned)}, not a dict")


def _seat(returned: Any, where: str) -> int:
    if type(returned) is int and 0 <= returned < MOST_SEATS:
        return returned
    import numpy as np

    if isinstance(returned, int | np.integer) and not isinstance(returned, bool) and 0 <= returned < MOST_SEATS:
        return int(returned)
    raise BadAnswer("a seat is a number from 0 on", f"{where}: the seat is {_what(returned)}, not an integer from 0 to {MOST_SEATS - 1}")


def _others(returned: Any, where: str) -> dict[int, Share]:
    if not returned:
        return {}
    if not isinstance(returned, Mapping) or not all(isinstance(share, Share) for share in returned.values()):
        raise BadAnswer("others maps seats to a Share", f"{where}: others is {_what(returned)}. Give {{seat: Share(reward, success)}}")
    return {
        _seat(seat, where): Share(_reward(share.reward, where), _flag("success", share.success, where)) for seat, share in returned.items()
    }


def _what(returned: Any) -> str:
    """A short description of a value: None, a tuple of 5, 'text' (str)."""
    kind = type(returned).__name__
    if returned is None or isinstance(returned, bool):
        return repr(returned)
    if kind in ("coroutine", "async_generator"):
        return f"a {kind}: reset and step must not be async"
    if isinstance(returned, tuple | list):
        return f"a {kind} of {len(returned)}"
    import numpy as np

    if isinstance(returned, str | bytes | int | float | np.generic):
        words = repr(returned)
        return f"{words if len(words) <= 60 else words[:57] + '…'} ({kind})"
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"
