"""A language model as policy: a context makes the prompt, an engine completes it, a parser reads the action out of the response."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from turnwise.agent.base import Context, Parsed
from turnwise.collect.collector import Answer, Start
from turnwise.collect.drawing import Drawn
from turnwise.data.attempts import ChangingHint
from turnwise.data.images import Picture
from turnwise.data.rollouts import Stop, Turn
from turnwise.engines.base import Engine, Finish, Request, Response, Sampling
from turnwise.envs.base import Observation, Transition
from turnwise.util.seeds import derive


@dataclass(slots=True)
class Attempt:
    """What is known of the attempt in one slot."""

    start: Start
    sequence: int
    context: Context
    observation: Observation
    prompt_ids: Sequence[int] = ()
    images: tuple[Picture, ...] = ()
    turn: int = 0
    parsed: Parsed | None = None
    learned: Context | None = None  # makes the prompts to learn with, where they are others than those that are seen
    drawn: Drawn | None = None  # the response so far, where a plan has a say in drawing
    before: Turn | None = None  # the last turn that was played


@dataclass
class ModelPolicy:
    """`new_context` makes a context for one trajectory, with a hint where an attempt has one; `read` turns a response's token ids into
    text and parses it against the observation that it answers. Token ids and log-probs are kept exactly as the engine gave them.
    `drawing` is a plan's say in how turns are drawn (`drawing.py`); it needs `encode`, from text to token ids."""

    engine: Engine
    new_context: Callable[..., Context]
    read: Callable[[Sequence[int], Observation], tuple[str, Parsed]]
    sampling: Sampling
    read_text: Callable[[str, Observation], Parsed] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    drawing: Any = None
    encode: Callable[[str], Sequence[int]] = lambda text: ()

    def __post_init__(self) -> None:
        self._attempts: dict[int, Attempt] = {}
        self._ready: list[Answer] = []
        self._unread: deque[list[Response]] = deque()  # what the engine has finished, in the pieces that are handed over
        self._sequences = count()

    @property
    def pending(self) -> int:
        return self.engine.pending + len(self._ready) + len(self._unread)

    def begin(self, slot: int, start: Start, observation: Observation) -> None:
        if isinstance(start.hint, ChangingHint):  # every attempt has one of its own
            start = replace(start, hint=copy(start.hint))
        context = self.new_context(start.hint) if start.hint else self.new_context()
        context.start(start.task, observation)
        attempt = self._attempts[slot] = Attempt(start, next(self._sequences), context, observation)
        if start.hint and start.forget:
            attempt.learned = self.new_context()
            attempt.learned.start(start.task, observation)

    def ask(self, slot: int) -> None:
        attempt = self._attempts[slot]
        prompt = attempt.context.prompt()
        self.counts["dropped_history"] += prompt.dropped
        if not prompt.fits:
            why = f"the shortest prompt has {len(prompt.ids)} tokens, more than agent.max_prompt_tokens allows"
            self._ready.append(Answer(slot, None, Stop.CONTEXT_LIMIT, why))
            return
        learned_prompt = prompt if attempt.learned is None else attempt.learned.prompt()
        attempt.prompt_ids, attempt.images = learned_prompt.ids, learned_prompt.images
        seed = derive(attempt.start.policy_seed, attempt.turn)
        own = attempt.start.temperature
        sampling = self.sampling if own is None else replace(self.sampling, temperature=own)
        request = Request(slot, prompt.ids, sampling, seed, attempt.sequence, prompt.messages or None, prompt.images)
        if self.drawing is not None:
            attempt.drawn = Drawn(request)
        self._submit(request)

    def _submit(self, request: Request) -> None:
        self.counts["generations"] += 1
        self.engine.submit([request])

    def answers(self, wait: bool = True) -> list[Answer]:
        ready, self._ready = self._ready, []
        if ready:
            return ready
        while True:
            found = [self._answer(response) for response in self._responses(wait) if response.key in self._attempts]
            answers = [answer for answer in found if answer is not None]
            if answers or not found or not wait:  # a response that continues or is drawn again is not an answer yet
                return answers

    def _responses(self, wait: bool) -> Sequence[Response]:
        """The next responses. If many have ended at once, they come in pieces: an engine whose device works by itself starts with the
        prompts that follow on the first ones, while the host still reads the others."""
        if self._unread:
            self.engine.start()
            return self._unread.popleft()
        responses = self.engine.poll(wait)
        self._unread.extend(pieces(responses, self.engine.early))
        return self._unread.popleft() if self._unread else ()

    def _answer(self, response: Response) -> Answer | None:
        if response.finish is Finish.REFUSED:
            return Answer(response.key, None, Stop.CONTEXT_LIMIT, response.message)
        if response.finish is Finish.FAULT:
            return Answer(response.key, None, Stop.ENGINE_FAULT, response.message)
        attempt = self._attempts[response.key]
        whole = response if self.drawing is None else self._drawn(attempt, response)
        if whole is None:
            return None
        turn, parsed = self._turn(attempt, whole)
        if self.drawing is not None and attempt.drawn is not None and self.drawing.again(attempt.before, turn, attempt.drawn.draws):
            self.counts["redrawn"] += 1
            self._submit(attempt.drawn.again())
            return None
        attempt.parsed = parsed
        self.counts["truncated"] += whole.finish is Finish.LENGTH
        if parsed.problem:
            self.counts[f"problem/{parsed.problem}"] += 1
        return Answer(response.key, turn)

    def _drawn(self, attempt: Attempt, response: Response) -> Response | None:
        """The whole response of a turn; None if it continues because a rule has ended this part of it."""
        drawn = attempt.drawn
        if drawn is None:
            return response
        drawn.add(response)
        if response.finish is Finish.RULE and drawn.room_for(inserted := self.encode(self.drawing.insert)):
            self.counts["inserted"] += 1
            self._submit(drawn.continued(inserted))
            return None
        return drawn.whole(response)

    def _turn(self, attempt: Attempt, response: Response) -> tuple[Turn, Parsed]:
        """A response as a turn of the attempt."""
        if response.text is not None and self.read_text is not None:  # a server's answer: its text counts, not a re-encoding of it
            text, parsed = response.text, self.read_text(response.text, attempt.observation)
        else:
            text, parsed = self.read(response.token_ids, attempt.observation)
        turn = Turn(
            attempt.observation.key,
            valid=parsed.valid,
            thought=parsed.thought,
            action=parsed.action,
            response=text,
            prompt_ids=attempt.prompt_ids,
            response_ids=response.token_ids,
            logprobs=response.logprobs,
            info=self._noted(attempt, parsed),
            images=attempt.images,
            version=response.version,
            reports=response.reports,
        )
        return turn, parsed

    def _noted(self, attempt: Attempt, parsed: Parsed) -> dict[str, str]:
        """What is kept with the turn: what was wrong with the response, and a hint that its prompt does not show."""
        found = {"problem": parsed.problem} if parsed.problem else {}
        if attempt.learned is not None:
            hint = attempt.start.hint
            found["hint"] = hint if isinstance(hint, str) else hint(attempt.observation.text)
        return found

    def observe(self, slot: int, turn: Turn, transition: Transition) -> None:
        attempt = self._attempts[slot]
        if isinstance(attempt.start.hint, ChangingHint):
            attempt.start.hint.on_response(turn.response)
        if attempt.parsed is not None and not transition.done:
            for context in (attempt.context, attempt.learned):
                if context is not None:
                    context.record(turn.response_ids, attempt.parsed, transition.observation)
        attempt.observation, attempt.turn, attempt.before = transition.observation, attempt.turn + 1, turn

    def retrace(self, slot: int, turn: Turn, transition: Transition) -> str:
        """The context builds the prompt that the turn had, and continues as it did."""
        attempt = self._attempts[slot]
        prompt = (attempt.learned or attempt.context).prompt()
        if turn.prompt_ids and list(prompt.ids) != list(turn.prompt_ids):
            return "the context makes another prompt than the attempt had that is branched from"
        attempt.parsed = Parsed(turn.action, turn.thought, turn.valid, turn.info.get("problem", ""))
        self.observe(slot, turn, transition)
        return ""

    def end(self, slot: int) -> None:
        if (attempt := self._attempts.pop(slot, None)) is not None:
            self.engine.release(attempt.sequence)
        for piece in self._unread:  # the slot's next attempt must not get them
            piece[:] = [response for response in piece if response.key != slot]


def pieces(responses: Sequence[Response], first: int) -> Iterator[list[Response]]:
    """Responses in pieces: two of `first`, then each twice as large as the one before it, and the last not smaller than that one. All in
    one if there are too few, or if `first` is 0."""
    begin, size = 0, first
    while size and len(responses) - begin >= 2 * size:
        yield list(responses[begin : begin + size])
        begin += size
        size = begin  # what was handed over so far
    if begin < len(responses):
        yield list(responses[begin:])
