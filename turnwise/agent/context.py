"""Contexts: how a turn's prompt is built from the history.

`window`: every turn is a separate conversation with the goal, the last k observations and actions, and the current observation, as in the
paper. The agent's earlier thoughts are not shown again. `full`: the dialogue grows; each prompt starts with the last prompt and the
response as sampled, so that a trajectory is one sequence for the engine's cache and for the learner. Both start with the same prompt.

A prompt longer than the limit loses its oldest turns first. In the full dialogue this starts a new sequence at a later turn, with the goal
stated again; it leaves a quarter of the limit free, so that the following turns extend this sequence.

A custom context is a class that takes a `PromptMaker` and has the methods of `turnwise.agent.base.Context`; a subclass of `Window` that
overrides `past` is the shortest form.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from turnwise.agent.base import Context, Parsed, Prompt
from turnwise.agent.chat import FAR, Chat, Message, log
from turnwise.agent.control import KEPT_TEXTS, LONGEST_KEPT, Marked
from turnwise.agent.prompts import LATER, Past, PromptTemplate, View, load_template
from turnwise.agent.registry import contexts, register_context
from turnwise.agent.settings import AgentSettings
from turnwise.agent.text import goal_of, well_formed
from turnwise.data.attempts import Hint
from turnwise.data.images import MARK, Picture, picture, without_marks
from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, without
from turnwise.util.control_strings import neutral
from turnwise.util.errors import TurnwiseError
from turnwise.util.prefix import Prefix

if TYPE_CHECKING:
    from turnwise.agent.vision import Vision

FREE_AFTER_CUT = 0.25


class PromptMaker:
    """What all contexts of a run share: the chat, the compiled template and the settings; `vision` for a vision-language model."""

    def __init__(self, tokenizer: Any, settings: AgentSettings, vision: Vision | None = None, say: Callable[[str], None] = log.warning):
        self.settings = settings
        self.vision = vision
        self._say: Callable[[str], None] | None = say
        self.template = load_template(settings.prompt)
        self.chat = Chat(
            tokenizer,
            system=settings.system,
            template_options=settings.template_options,
            tools=settings.offered_tools,
            vision=self.vision,
        )
        self.limit = settings.max_prompt_tokens
        self.hint: Hint = ""
        self._known_messages = lru_cache(maxsize=KEPT_TEXTS)(self._compose)  # the attempts of a group see the same repeatedly
        self._tools = tuple(json.dumps(tool, ensure_ascii=False) for tool in settings.offered_tools)

    def write(self, observation: Observation, *, goal: str, turn: int = 1, opening: bool = True, history: Sequence[Past] = ()) -> Marked:
        """The text of one message to the agent. Everything except the template's own text is marked as from outside."""
        seen, actions = self.text_of(observation), self.shown(observation)
        if not opening and not self.template.counts_later_turns:
            turn = LATER
        if history or self.vision is not None or not self.template.shows_all or len(seen) > LONGEST_KEPT:
            text = self._compose(self.settings.instructions or "", seen, goal, turn, opening, actions, history)
        else:
            text = self._known_messages(self.settings.instructions or "", seen, goal, turn, opening, actions)
        hint = well_formed((self.hint(observation.text) if callable(self.hint) else self.hint if opening else "").strip())
        return Marked(f"{self.chat.control.mark(hint)}\n\n{text}") if hint else text

    def _compose(
        self, instructions: str, seen: str, goal: str, turn: int, opening: bool, actions: tuple[str, ...], history: Sequence[Past] = ()
    ) -> Marked:
        """A message without a hint. Copies of this object with other settings share what is known: the instructions are among the
        arguments."""
        view = View(
            observation=seen,
            goal=goal,
            turn=turn,
            opening=opening,
            actions=actions,
            history=history,
            instructions=instructions,
            native_tools=self.chat.native_tools,
            tools=self._tools,
        )
        return self.render(self.template, view)

    def hinting(self, hint: Hint) -> PromptMaker:
        """The same, for one trajectory whose prompts show a hint."""
        other = copy.copy(self)
        other.hint = hint
        return other

    def render(self, template: PromptTemplate, view: View) -> Marked:
        """A template filled with texts from outside; if that is far too long for any prompt, its beginning."""
        view = self._beginnings(view) if template.shows_all else view
        text = self.chat.control.own(template.render(self._marked(view)), template.source)
        if self.vision is not None:  # marks of images that nobody showed were made up by an environment or a model
            text = Marked(MARK.sub(lambda mark: mark[0] if mark[1] in self.chat.pictures else "", text))
        return Marked(self.chat.beginning(text, self.limit))

    def _beginnings(self, view: View) -> View:
        """The view, with texts and lists truncated that would be too long for a prompt by themselves."""

        def begin(text: str) -> str:
            return self.chat.beginning(text, self.limit)

        listed = "\n".join(view.actions)
        if sum(map(len, (listed, *_texts(view)))) <= FAR * self.limit:
            return view
        actions = view.actions if len(short := begin(listed)) == len(listed) else short.split("\n")
        return _changed(view, begin, actions, view.tools)

    def _marked(self, view: View) -> View:
        control = self.chat.control
        actions, tools = control.mark_all(view.actions), control.mark_all(view.tools)
        if actions is view.actions and tools is view.tools and all(control.mark(text) == text for text in _texts(view)):
            return view
        return _changed(view, control.mark, actions, tools)

    def see(self, observation: Observation) -> Observation:
        """The observation with its images, which are processed once while it is referenced."""
        return replace(observation, images=self.pictures(observation)) if observation.images else observation

    def text_of(self, observation: Observation) -> str:
        """What the agent sees as text: marks of the images, for a vision-language model, then the text."""
        text = well_formed(observation.text.strip())
        marks = "".join(picture.mark for picture in self.pictures(observation))
        return "\n".join(filter(None, (marks, text)))

    def pictures(self, observation: Observation) -> tuple[Picture, ...]:
        """The images of an observation that the model will see; none for a text-only model, which is reported once."""
        if not observation.images:
            return ()
        if self.vision is None:
            if self._say is not None:
                self._say("the environment provides images and the model takes none: they are left out of its prompts")
                self._say = None
            return ()
        return tuple(self.chat.keep(picture(image)) for image in observation.images)

    def shown(self, observation: Observation) -> tuple[str, ...]:
        """The admissible actions that a prompt lists."""
        if not self.settings.show_actions or observation.actions is None:
            return ()
        return tuple(well_formed(action) for action in without(observation.actions, self.settings.hide_actions))

    def prompt(self, text: str, dropped: int = 0) -> Prompt:
        """A prompt that opens a sequence with this message."""
        text = self.chat.beginning(text, self.limit)
        ids = self.chat.opening_ids(text)
        return Prompt(ids, dropped, len(ids) <= self.limit, self.messages(self.chat.opening(text)), self.chat.shown(text))

    def messages(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Messages as plain text, for servers, which tokenise them again: marked strings have an invisible space inside."""
        plain = ({**message, "content": neutral(message["content"])} for message in messages)
        if self.vision is None:
            return tuple(plain)
        return tuple({**message, "content": without_marks(message["content"], "[image]")} for message in plain)


def _texts(view: View) -> list[str]:
    """All texts from outside in a view, except for its lists."""
    return [view.observation, view.goal, view.instructions, *(text for past in view.history for text in (past.observation, past.action))]


def _changed(view: View, change: Callable[[str], str], actions: Sequence[str], tools: Sequence[str]) -> View:
    history = [replace(past, observation=change(past.observation), action=change(past.action)) for past in view.history]
    observation, goal, instructions = change(view.observation), change(view.goal), change(view.instructions)
    return replace(view, observation=observation, goal=goal, instructions=instructions, history=history, actions=actions, tools=tools)


@register_context("window")
class Window:
    """Each turn is a separate prompt with the last `history` turns, as in the GiGPO paper."""

    def __init__(self, maker: PromptMaker):
        self.maker = maker
        self.goal = ""
        self.turns: list[Past] = []

    def start(self, task: Task, observation: Observation) -> None:
        self.goal = goal_of(task, observation)
        self.observation = self.maker.see(observation)
        self.turns = []

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        seen = self.observation
        self.turns.append(Past(len(self.turns) + 1, self.maker.text_of(seen), well_formed(parsed.action), seen.images))
        self.observation = self.maker.see(observation)

    def past(self) -> Sequence[Past]:
        """The turns to show, oldest first."""
        count = self.maker.settings.history
        return self.turns[-count:] if count else []

    def prompt(self) -> Prompt:
        history = list(self.past())
        for dropped in range(len(history) + 1):
            text = self.maker.write(self.observation, goal=self.goal, turn=len(self.turns) + 1, history=history[dropped:])
            prompt = self.maker.prompt(text, dropped)
            if prompt.fits:
                break
        return prompt


@dataclass(slots=True)
class Exchange:
    """A turn of the growing dialogue: what the agent saw, what it said token by token, and the bridge to the next message."""

    observation: Observation
    response_ids: Sequence[int]
    answer: str
    bridge_ids: Sequence[int]
    message: Message


def _length(turn: Exchange) -> int:
    return len(turn.response_ids) + len(turn.bridge_ids)


@register_context("full")
class Full:
    """The dialogue grows: each prompt is the last prompt, the response as sampled, and the next message."""

    def __init__(self, maker: PromptMaker):
        self.maker = maker
        maker.chat.frame()  # an error for a chat template that does not support a growing dialogue
        self.goal = ""
        self.turns: list[Exchange] = []

    def start(self, task: Task, observation: Observation) -> None:
        self.goal = goal_of(task, observation)
        self.observation = self.maker.see(observation)
        self.turns = []
        self._open(0)

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        chat = self.maker.chat
        response = tuple(response_ids)
        observation = self.maker.see(observation)
        role = "tool" if self.maker.settings.style == "tool" and parsed.valid else "user"
        text = self.maker.write(observation, goal=self.goal, turn=len(self.turns) + 2, opening=False)
        bridge = chat.bridge(response, text, role)
        self.turns.append(Exchange(self.observation, response, chat.decode(response), bridge, {"role": role, "content": text}))
        self.observation = observation
        self._append(self.turns[-1])

    def _open(self, first: int) -> None:
        """Start a sequence at a turn: its tokens and its messages."""
        self.first = first
        text = self._opening_text(first)
        self.ids = self.maker.chat.opening_ids(text)  # a new list: prompts share it, and it only grows
        self.messages = self.maker.chat.opening(text)
        self._plain = self.maker.messages(self.messages)
        for turn in self.turns[first:]:
            self._append(turn)

    def _append(self, turn: Exchange) -> None:
        self.ids += turn.response_ids
        self.ids += turn.bridge_ids
        new = [{"role": "assistant", "content": turn.answer}, turn.message]
        self.messages += new
        self._plain += self.maker.messages(new)

    def prompt(self) -> Prompt:
        if len(self.ids) > self.maker.limit:
            self._cut()
        pictured = (
            [message["content"] for message in self.messages if message["role"] != "assistant"] if self.maker.vision is not None else []
        )
        images = tuple(image for content in pictured for image in self.maker.chat.shown(content))
        return Prompt(Prefix(self.ids), self.first, len(self.ids) <= self.maker.limit, self._plain, images)

    def _cut(self) -> None:
        """Start a new sequence at the earliest later turn that leaves some space; otherwise at the earliest that fits."""
        later = sum(map(_length, self.turns[self.first :]))
        best = None
        for first in range(self.first + 1, len(self.turns) + 1):
            later -= _length(self.turns[first - 1])
            length = len(self.maker.chat.opening_ids(self._opening_text(first))) + later
            if length <= self.maker.limit * (1 - FREE_AFTER_CUT):
                best = first
                break
            if length <= self.maker.limit and best is None:
                best = first
        self._open(len(self.turns) if best is None else best)

    def _opening_text(self, first: int) -> str:
        observation = self.turns[first].observation if first < len(self.turns) else self.observation
        return self.maker.write(observation, goal=self.goal, turn=first + 1)


def make_context(name: str, tokenizer: Any, settings: AgentSettings, maker: PromptMaker | None = None) -> Context:
    """A fresh context for one trajectory: a registered name, `package.module:Class` or `path/to/file.py:Class`.

    The class is called with a `PromptMaker` and, if the settings have `options`, with those as keyword arguments. To create many contexts,
    create one `PromptMaker` for all of them (as `turnwise.agent.Agent` does).
    """
    entry = contexts[name]
    context: Context = entry.function(maker or PromptMaker(tokenizer, settings), **entry.bind(settings.options, contexts.kind))
    for method in ("start", "prompt", "record"):
        if not callable(getattr(context, method, None)):
            raise TurnwiseError(f"context {name!r}: {type(context).__name__} has no method {method}(). See docs/guides/agent.md")
    return context
