"""From messages to token ids with the model's own chat template, and the bridge from one turn to the next.

In a growing dialogue, the next prompt is the last prompt, the response exactly as it was sampled, and the tokens in between: the end of the
agent's message if the response did not end with it, the next message, and the header of the agent's turn. Rendering the whole history again
would not reproduce these tokens: text does not always tokenise the same way twice, and some templates rewrite history (they drop old
thoughts). The text in between is therefore extracted once from a rendered conversation with unique markers, and history is never rendered
again: the learner trains on what was sampled, even if the template would have rewritten it.

Text from outside is marked (`agent/control.py`): the text of a control token in it is tokenised in pieces, as plain text, so that no
observation can open a message, close one or call a tool. An unmarked message counts entirely as text from outside.

For a vision-language model, a message may contain images: marks in its text become image parts, the chat template leaves a placeholder for
each, and the model's processor writes their tokens. There, the text of a control token gets an invisible space instead.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from turnwise.agent.control import Control, Marked
from turnwise.agent.text import well_formed
from turnwise.data.images import CLOSE, MARK, OPEN, Picture, split
from turnwise.util.control_strings import neutral
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from turnwise.agent.vision import Vision

log = logging.getLogger("turnwise.agent")
Message = dict[str, str]

# For models without a chat template (base models). The end-of-text token, if there is one, ends the agent's message.
PLAIN_TEMPLATE = (
    "{% if begin %}{{ bos_token }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}\n\n"
    "{% elif message.role == 'assistant' %}Agent:{{ message.content }}{{ eos_token }}\n"
    "{% else %}User: {{ message.content }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Agent:{% endif %}"
)
ASKED, ANSWER, NEXT = (f"TURNWISE{word}MARKER" for word in ("ASKED", "ANSWER", "NEXT"))
KEPT_PICTURES = 64
KEPT_TEXTS, KEPT_OPENINGS = 8192, 64
FAR = 16  # characters per token of a limit: a text with fewer is simply tokenised
SURE = 64  # tokens: the end of a truncated text may have become a few more
ANY_MARK = OPEN + "0" * 32 + CLOSE
STARTS: tuple[list[Message], ...] = ([], [{"role": "system", "content": "."}])  # some templates need a system message
PROBE = f'{NEXT} says "one"\nand <two>'  # a template that quotes or escapes a message cannot be cut around one


@dataclass(frozen=True)
class Frame:
    """The fixed text around a later message: from the end of the agent's response to the message, and from there to the agent's turn."""

    before: str
    after: str


class Chat:
    """A tokenizer with its chat template, a system message, template arguments and tools that stay the same for a whole run."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        system: str = "",
        template_options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        vision: Vision | None = None,
    ):
        self.tokenizer = tokenizer
        self.vision = vision
        self.pictures: WeakValueDictionary[str, Picture] = WeakValueDictionary()  # those that are still referenced
        self._recent: deque[Picture] = deque(maxlen=KEPT_PICTURES)  # for a context that does not keep any itself
        self.system = well_formed(system.strip())
        self._kwargs = dict(template_options or {})
        if vision is not None and vision.chat_template:
            self._kwargs.setdefault("chat_template", vision.chat_template)
        template = self._kwargs.get("chat_template") or getattr(tokenizer, "chat_template", None)
        self.is_plain = not template
        self._tools: list[dict[str, Any]] | None = None
        if self.is_plain:
            begin = tokenizer.bos_token_id  # some tokenizers add it to plain text themselves
            self._kwargs.update(chat_template=PLAIN_TEMPLATE, begin=begin is not None and list(tokenizer("a")["input_ids"])[:1] == [begin])
            log.info("the tokenizer has no chat template: messages are written as 'User: …' and 'Agent: …'")
        elif unused := [name for name in self._kwargs if name != "chat_template" and name not in str(template)]:
            log.warning("the chat template does not use %s: setting it has no effect", ", ".join(unused))
        self.control = Control(tokenizer)
        # the attempts of a group tokenise the same observations repeatedly, and a tokenizer call takes as long as an environment step
        self._known_ids = lru_cache(maxsize=KEPT_TEXTS)(lambda text: tuple(self.control.encode(text)))
        self._known_openings = lru_cache(maxsize=KEPT_OPENINGS, typed=True)(self._opening_ids)  # a marked text is another one
        self._known_texts = lru_cache(maxsize=KEPT_TEXTS)(
            lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
        )
        if tools and not self.is_plain:
            bare = self.render([_user(ASKED)])
            self._tools = [self.control.mark_deep(tool) for tool in tools]
            if self.render([_user(ASKED)]) == bare:
                self._tools = None
        self.folds_system = bool(self.system) and not self._takes_system()
        self._frames: dict[str, Frame | None] = {}
        if vision is not None and vision.slot not in self.render([_user(f"{ASKED}{ANY_MARK}")]):
            raise TurnwiseError(
                "the model's chat template has no placeholder for images: set one that does (agent.template_options.chat_template)"
            )

    @property
    def native_tools(self) -> bool:
        """Whether the chat template describes the tools to the model."""
        return self._tools is not None

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The text of a conversation, up to the agent's turn. `tools` replaces those of the run; an empty list stands for none."""
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                [self._parts(message) for message in messages],
                tools=self._tools if tools is None else list(tools) or None,
                tokenize=False,
                add_generation_prompt=True,
                **self._kwargs,
            )
        except (TemplateError, TypeError, ValueError, LookupError, RecursionError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise TurnwiseError(f"the tokenizer's chat template fails on messages of the roles {roles}: {error}") from error
        return str(text)

    def _parts(self, message: Mapping[str, str]) -> dict[str, Any]:
        """A message in the form that the template expects: for a vision-language model, a list of texts and images."""
        if self.vision is None:
            return dict(message)
        pieces = split(message["content"])
        if self.is_plain:
            return {**message, "content": self.vision.slot.join(pieces[::2])}
        parts: list[dict[str, str]] = []
        for number, piece in enumerate(pieces):
            if number % 2:
                parts.append({"type": "image"})
            elif piece or len(pieces) == 1:
                parts.append({"type": "text", "text": piece})
        return {**message, "content": parts}

    def keep(self, picture: Picture) -> Picture:
        """The known image with this content, or this one. Its mark can be written for as long as the image is referenced."""
        known = self.pictures.setdefault(picture.name, picture)
        self._recent.append(known)
        return known

    def shown(self, text: str) -> tuple[Picture, ...]:
        """The images in a text, in order."""
        return tuple(self.pictures[name] for name in MARK.findall(text)) if self.vision is not None else ()

    def _takes_system(self) -> bool:
        try:
            text = self.render([{"role": "system", "content": ANSWER}, _user(ASKED)])
        except TurnwiseError:
            text = ""
        if ANSWER not in text:
            log.info("the chat template has no system role: the system message goes at the start of the first message")
        return ANSWER in text

    def marked(self, text: str) -> Marked:
        """A message without whitespace at its ends, marked as a whole if it was not marked before."""
        short = text.strip()
        return Marked(short) if isinstance(text, Marked) else self.control.mark(well_formed(short))

    def opening(self, text: str) -> list[Message]:
        """The messages that open a sequence: the system message, if there is one, and the first message to the agent."""
        content = self.marked(text)
        if not self.system:
            return [_user(content)]
        if self.folds_system:
            return [_user(Marked(f"{self.control.mark(self.system)}\n\n{content}"))]
        return [{"role": "system", "content": self.system}, _user(content)]

    def opening_ids(self, text: str) -> list[int]:
        """The prompt that opens a sequence."""
        return self._opening_ids(text) if self.vision is not None else list(self._known_openings(text))

    def _opening_ids(self, text: str) -> list[int]:
        messages = self.opening(text)
        content = messages[-1]["content"]
        if self.vision is not None and (pictures := self.shown(content)):
            return self.vision.encode(self.render([*messages[:-1], _user(neutral(content))]), pictures)
        return self.encode(self.render(messages))

    def bridge(self, response_ids: Sequence[int], text: str, role: str = "user") -> list[int]:
        """The tokens from the end of a response to the agent's next turn, with a message in between.

        `role` may be "tool" for the result of a tool call; a template without that role gets an ordinary message.
        """
        frame = self.frame(role)
        content = self.marked(text)
        if self.vision is not None and (pictures := self.shown(content)):
            role = role if frame is self._frames.get(role) else "user"
            ids = self.vision.encode(self.after_answer([{"role": role, "content": neutral(content)}]), pictures)
        else:
            ids = self.encode(frame.before + content + frame.after)
        if len(response_ids) and self.end_id is not None and response_ids[-1] == self.end_id:
            return ids[ids.index(self.end_id) + 1 :]
        return ids

    def after_answer(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """What the template writes after the text of an answer, if these messages follow. The system message is left out: some templates
        move it to the last message, where it would be repeated every turn."""
        problem = "it does not show an earlier answer"
        for start in STARTS:
            try:
                text = self.render([*start, _user(ASKED), {"role": "assistant", "content": ANSWER}, *messages], tools)
            except TurnwiseError as error:
                problem = str(error)
                continue
            if text.count(ANSWER) == 1:
                return text.partition(ANSWER)[2]
        raise TurnwiseError(f"the chat template cannot continue a conversation with these messages: {problem}")

    def frame(self, role: str = "user") -> Frame:
        """The fixed text around a later message of this role."""
        if role not in self._frames:
            self._frames[role] = self._find_frame(role)
        frame = self._frames[role]
        if frame is None and role != "user":
            return self.frame("user")
        if frame is None:
            raise TurnwiseError(
                "the tokenizer's chat template does not reproduce a conversation of several turns, "
                "so a dialogue cannot grow with it. Use context = 'window', where every turn is a separate conversation"
            )
        return frame

    def _find_frame(self, role: str) -> Frame | None:
        try:
            text, probed = (self.after_answer([{"role": role, "content": content}]) for content in (NEXT, PROBE))
        except TurnwiseError:
            return None
        before, _, after = text.partition(NEXT)
        return Frame(before, after) if text.count(NEXT) == 1 and probed == f"{before}{PROBE}{after}" else None

    @cached_property
    def end_id(self) -> int | None:
        """The token that ends the agent's message in this template; None if the template has none."""
        special = set(self.tokenizer.all_special_ids) | {
            token for token, added in getattr(self.tokenizer, "added_tokens_decoder", {}).items() if added.special
        }
        return next((token for token in self.encode(self.frame().before) if token in special), None)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens at which a response ends: the template's end of a message and the tokenizer's end of text."""
        try:
            end = self.end_id
        except TurnwiseError:  # a template that cannot show several turns still works for windows
            end = None
        return tuple(dict.fromkeys(token for token in (end, self.tokenizer.eos_token_id) if token is not None))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text in which control tokens count as such, unless they are marked; nothing is added."""
        return list(self._known_ids(text))

    def beginning(self, text: str, limit: int) -> str:
        """The text; or, if it certainly has more than `limit` tokens, a prefix of it that also has more. Text from outside may have any
        length, and tokenising all of it would take minutes. Marks are kept."""
        size = FAR * max(limit, SURE)
        while size < len(text):
            start = Marked(text[:size]) if isinstance(text, Marked) else text[:size]
            if len(self.control.encode(self.control.mark(start))) > 2 * limit + SURE:
                return start
            size *= 4
        return text

    def decode(self, response_ids: Sequence[int]) -> str:
        """The text of a response without the tokens that ended it. Other special tokens stay visible, because the model produced them."""
        end = len(response_ids)
        while end and response_ids[end - 1] in self.stop_ids:
            end -= 1
        return self._known_texts(tuple(response_ids[:end]))

    def answer_ids(self, text: str) -> list[int]:
        """A written response as if it had been sampled: its tokens and the end token, for examples to learn from. Only tags in a marked
        text become the tokens that a model would sample."""
        lead = " " if self.is_plain else ""  # after "Agent:" a word starts with its space
        marked = text if isinstance(text, Marked) else self.control.mark(well_formed(text))
        return [*self.encode(lead + marked), *self.stop_ids[:1]]


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
