"""How the response of one turn is drawn, where a plan has a say in it: ended by a rule, continued after a text, or drawn again.

A plan that has an attribute `drawing` gives a run such an object:

    class Mine(Plan):
        @property
        def drawing(self):
            return self                      # any object with these three

        rule = None                          # or a stop rule (engines/base.py): it is asked after each token of a response
        insert = "</think>"                  # put behind a response that the rule has ended; the response then continues, without the rule
        def again(self, before, turn, draws):    # whether a finished turn is dropped and drawn again from the same prompt
            return before is not None and draws < 1 and turn.response == before.response

`before` is the attempt's previous turn, None at the first; `draws` counts how often the new one was drawn again already.

Inserted tokens are part of the response and not drawn by the policy: they have the log-prob 0, the report `inserted` is 1 for them, and
they are not learned from (data/masks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from turnwise.data.masks import INSERTED
from turnwise.engines.base import Finish, Request, Response
from turnwise.util.seeds import derive


@dataclass(slots=True)
class Drawn:
    """The response of a turn so far: the parts of one or several requests. `first` is the request that the turn began with; `draws` counts
    how often all was drawn again."""

    first: Request
    draws: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reports: dict[str, list[float]] = field(default_factory=dict)
    version: int = -1
    parts: int = 0

    def add(self, response: Response) -> None:
        """A request is answered."""
        self.version = self.version if self.ids else response.version
        self.ids += response.token_ids
        self.logprobs += response.logprobs
        for column, values in {**response.reports, INSERTED: (0.0,) * len(response.token_ids)}.items():
            self.reports.setdefault(column, []).extend(values)
        self.parts += 1

    def room_for(self, inserted: Sequence[int]) -> bool:
        """Whether the response may have these tokens and one more."""
        return len(self.ids) + len(inserted) < self.first.sampling.max_tokens

    def continued(self, inserted: Sequence[int]) -> Request:
        """The request that continues the response after these tokens."""
        self.ids += inserted
        self.logprobs += [0.0] * len(inserted)
        for column, values in self.reports.items():
            values.extend([float(column == INSERTED)] * len(inserted))
        sampling = replace(self.first.sampling, max_tokens=self.first.sampling.max_tokens - len(self.ids), rule=None)
        seed = derive(self.first.seed, "continued", self.draws, self.parts)
        return replace(self.first, prompt_ids=[*self.first.prompt_ids, *self.ids], sampling=sampling, seed=seed, messages=None)

    def again(self) -> Request:
        """The request that draws the response again, from its start."""
        self.draws, self.parts = self.draws + 1, 0
        self.ids, self.logprobs, self.reports = [], [], {}
        return replace(self.first, seed=derive(self.first.seed, "again", self.draws))

    def whole(self, last: Response) -> Response:
        """All parts as one response; `last` is the answer to the last request."""
        finish = Finish.LENGTH if last.finish is Finish.RULE else last.finish
        reports = {column: tuple(values) for column, values in self.reports.items()}
        return replace(last, token_ids=tuple(self.ids), logprobs=tuple(self.logprobs), finish=finish, reports=reports, version=self.version)
