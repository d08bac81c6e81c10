"""A request under way: what was drawn for it so far, and which weights drew it. It outlives the requests that vLLM sees: one that is
aborted and submitted again is the same row, so stop strings, rules, budgets and reports continue where they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.engines.base import Finish, Request, Response
from turnwise.engines.reports import read_report
from turnwise.engines.sampling import frozen
from turnwise.engines.stopping import StopStrings

Rule = Callable[[int, Mapping[str, float]], bool]


@dataclass(slots=True)
class Row:
    """A submitted request. `name` is vLLM's for it now; `most` is how many tokens it may have. `marks` says after how many tokens weights
    were replaced, and the version of those that had drawn them."""

    request: Request
    prompt: list[int]
    most: int
    stop: StopStrings | None
    rule: Rule | None
    name: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reports: dict[str, list[float]] = field(default_factory=dict)
    marks: list[tuple[int, int]] = field(default_factory=list)

    def take(self, token: int, logprob: float, flat: Any, start: int) -> None:
        """One drawn token, and what is reported about it: of `flat`, the drawn token first, then the most likely ones, in order."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        for name in self.request.sampling.report:
            report = read_report(name)
            source = flat.logprobs if report.kind == "top_logprobs" else flat.token_ids
            for place, column in enumerate(report.columns):
                self.reports.setdefault(column, []).append(float(source[start + 1 + place]))

    def mark(self, drawn: int, version: int) -> None:
        """Weights are replaced now: the first `drawn` tokens were drawn before, the latest of them with this version."""
        if drawn > (self.marks[-1][0] if self.marks else 0):
            self.marks.append((drawn, version))

    def spans(self, version: int) -> tuple[tuple[int, int], ...]:
        """Versions in order, each with the number of tokens that it drew; those since the last mark were drawn with `version`."""
        found: list[tuple[int, int]] = []
        before = 0
        for end, drew in [*self.marks, (len(self.ids), version)]:
            count, before = min(end, len(self.ids)) - before, max(before, min(end, len(self.ids)))
            if count > 0 and found and found[-1][0] == drew:
                found[-1] = drew, found[-1][1] + count
            elif count > 0:
                found.append((drew, count))
        return tuple(found)

    def response(self, version: int, finish: Finish, message: str = "") -> Response:
        """The response as it is now; `version` is that of the weights that drew its latest tokens."""
        spans = self.spans(version)
        first = spans[0][0] if spans else version
        ids, logprobs = tuple(self.ids), tuple(self.logprobs)
        return Response(self.request.key, ids, logprobs, finish, message, None, frozen(self.reports), first, spans)
