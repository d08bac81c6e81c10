"""The expert: the package's bot, told how far the mission is, and kept from its known failures.

The bot plans from the start of a mission and is told every action. Here it is asked only when somebody wants advice. If it missed
actions, or fails, a new one is made from the current state: parts of the mission that are done are left out, and what is carried is
either used or put down first. This also wins the levels that start with a carried object. A key in a box, which the bot does not look
for, is taken out first.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

LEFT, FORWARD, DROP, TOGGLE, DONE = 0, 2, 4, 5, 6
MOST_SUBGOALS = 300  # that the bot may push for one advice: some states make it push for ever


class _Stack(list[Any]):
    """A stack of subgoals that does not grow for ever."""

    def __init__(self, items: list[Any]):
        super().__init__(items)
        self.pushed = 0

    def append(self, item: Any) -> None:
        self.pushed += 1
        if self.pushed > MOST_SUBGOALS:
            raise RuntimeError("the bot repeats itself")
        super().append(item)


class Guide:
    """Advice for one attempt at a level."""

    def __init__(self, level: Any):
        self._level = level
        self._bots = import_module("minigrid.utils.baby_ai_bot")
        self._bot: Any = None
        self._missed = 0  # actions since the last advice
        self._taken: int | None = None
        self._advice: int | None = None

    def took(self, action: int) -> None:
        """The agent made a step."""
        self._missed += 1
        self._taken, self._advice = action, None

    def advise(self, seen: Any) -> int | None:
        """The next action; None if there is none that helps. `seen` marks the cells that the bot may know, by column and row."""
        if self._advice is None:
            self._advice = self._asked(self._bot, seen, self._taken) if self._bot is not None and self._missed == 1 else None
            if self._advice is None:
                self._advice = self._planned(seen)
            self._missed = 0
        return self._advice

    def _planned(self, seen: Any) -> int | None:
        """What a new bot says."""
        self._bot = None
        box = next((found for found in self._level.grid.grid if found is not None and _holds_key(found)), None)
        if box is not None and not _has_key(self._level):
            return self._to_box(box, seen)
        if _holds_key(self._level.carrying):
            return DROP if self._level.grid.get(*self._level.front_pos) is None else LEFT
        for unlock in (False, True):
            try:
                bot = self._new(seen)
                self._push(bot, self._level.instrs)
                self._unlock(bot) if unlock else self._carry(bot)
            except Exception:  # assertions and lookups that fail in states that it does not expect
                continue
            if (advice := self._asked(bot, seen, None)) is not None:
                self._bot = bot
                return advice
        return None

    def _unlock(self, bot: Any) -> None:
        """First open a locked door whose key is known. The bot itself may choose a door whose key is behind another locked one."""
        things = [found for found in self._level.grid.grid if found is not None]
        for door in (found for found in things if found.type == "door" and found.is_locked):
            keys = [found for found in things if found.type == "key" and found.color == door.color and bot.vis_mask[tuple(found.cur_pos)]]
            if keys and self._level.carrying is None and bot.vis_mask[tuple(door.cur_pos)]:
                go = self._bots.GoNextToSubgoal
                bot.stack += [self._bots.OpenSubgoal(bot), go(bot, door, reason="Open"), self._bots.PickupSubgoal(bot), go(bot, keys[0])]
                return
        raise LookupError("no locked door with a known key")

    def _to_box(self, box: Any, seen: Any) -> int | None:
        if self._level.grid.get(*self._level.front_pos) is box:
            return TOGGLE
        bot = self._new(seen)
        bot.stack = _Stack([self._bots.GoNextToSubgoal(bot, box)])
        return self._asked(bot, seen, None)

    def _asked(self, bot: Any, seen: Any, taken: int | None) -> int | None:
        bot.vis_mask |= seen
        bot.stack.pushed = 0
        try:
            advice = int(bot.replan(taken))
        except Exception:
            return None
        return None if advice == DONE else advice

    def _new(self, seen: Any) -> Any:
        bot = self._bots.BabyAIBot(self._level)
        bot.stack, bot.vis_mask = _Stack([]), np.array(seen, bool)
        bot._process_obs()
        return bot

    def _push(self, bot: Any, instruction: Any) -> None:
        """The subgoals of what is left of an instruction; what comes first is pushed last."""
        if not hasattr(instruction, "instr_a"):
            bot._process_instr(instruction)
            return
        parts = [(instruction.instr_b, instruction.b_done), (instruction.instr_a, instruction.a_done)]
        if type(instruction).__name__ == "AfterInstr":
            parts.reverse()
        for part, outcome in parts:
            if outcome != "success":
                self._push(bot, part)

    def _carry(self, bot: Any) -> None:
        """Use what is carried: the first subgoals may want to fetch it, or something else."""
        carried, first = self._level.carrying, self._first(self._level.instrs)
        moves = getattr(first, "desc_move", None)
        if carried is None or (moves is None and type(first).__name__ != "PickupInstr"):
            return
        if moves is not None and any(carried is wanted for wanted in moves.obj_set):
            del bot.stack[-2:]  # go to it, pick it up
            return
        place = bot._find_drop_pos()
        if place is not None:
            bot.stack += [self._bots.DropSubgoal(bot), self._bots.GoNextToSubgoal(bot, place)]

    def _first(self, instruction: Any) -> Any:
        """The part of an instruction that the bot does next."""
        while hasattr(instruction, "instr_a"):
            order = [(instruction.instr_a, instruction.a_done), (instruction.instr_b, instruction.b_done)]
            if type(instruction).__name__ == "AfterInstr":
                order.reverse()
            instruction = next((part for part, outcome in order if outcome != "success"), order[-1][0])
        return instruction


def _holds_key(found: Any) -> bool:
    return found is not None and found.type == "box" and found.contains is not None and found.contains.type == "key"


def _has_key(level: Any) -> bool:
    """Whether a key is in the grid or carried: then it is not needed from a box."""
    return any(found is not None and found.type == "key" for found in (*level.grid.grid, level.carrying))
