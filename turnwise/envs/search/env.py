"""Search QA: a question, a few turns to look things up, one answer.

The reward is 1 for an answer that matches exactly, otherwise 0; F1 is in `info`. The environment is deterministic, so `seed` has no
effect. A search that fails (a server that is down) raises an error and ends the attempt with a fault: it is never shown to the agent as
"nothing found".
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.episodes import EpisodeEnv, check_choice, checked_count
from turnwise.envs.search.answers import ANSWER_FORM, SEARCH_FORM, Action, exact_match, f1, read_action
from turnwise.envs.search.questions import Library, Which, find_corpus, find_data
from turnwise.retrieval.base import Hit, Retriever
from turnwise.retrieval.kinds import check_kind, make_retriever, open_corpus
from turnwise.util.errors import TurnwiseError

Anchor = Literal["observation", "state"]
ACTIONS = (SEARCH_FORM, ANSWER_FORM)
NOTHING = "No passage was found. Try other words."
UNCLEAR = (
    "This is neither a search nor an answer. To look something up: search[words], or <search>words</search>. "
    "To answer: answer[words], or <answer>words</answer>."
)


class SearchEnv(EpisodeEnv):
    """`data`: the folder with the question sets and the corpus. `corpus`: the file of passages, if it is not in that folder. `questions`:
    "answerable" (those whose evidence seems to be in the corpus), "all", or "auto": the first if the folder has them. `files`: set →
    question file, for files whose names do not contain the set. `train_sets`: the training sets to use, None: all. `per_set`: the largest
    number of questions of each set. `retriever`: "bm25", "dense", "http", a server's address, or a table with a name and options. `topk`:
    passages per search. `max_turns`: after this many turns without an answer the attempt is over. `cache`: how many answers of the
    retriever are kept. `anchor`: "observation" (the text) or "state" (16 bytes of the passages seen so far and the turns left)."""

    name = "search"
    depends_on = ("anchor", "topk", "max_turns")

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        corpus: str | os.PathLike[str] | None = None,
        questions: Which = "auto",
        files: Mapping[str, str] | None = None,
        train_sets: Sequence[str] | None = None,
        per_set: int | None = None,
        retriever: str | Mapping[str, Any] = "bm25",
        topk: int = 3,
        max_turns: int = 4,
        cache: int = 10_000,
        anchor: Anchor = "observation",
    ):
        check_choice("anchor", anchor, ("observation", "state"))
        for name, value in (("topk", topk), ("max_turns", max_turns), ("per_set", 1 if per_set is None else per_set)):
            checked_count(value, 1, math.inf, f"environment 'search': {name} must be an integer from 1")
        check_kind(retriever)
        if corpus is not None and not Path(corpus).expanduser().is_file():
            raise TurnwiseError(f"environment 'search': there is no corpus file {corpus}. See docs/environments/search-qa.md for its forms")
        super().__init__()
        self.anchor, self.topk, self.max_turns = anchor, topk, max_turns
        self._data, self._corpus = data, corpus
        self._which, self._files, self._train_sets, self._per_set = questions, files, train_sets, per_set
        self._retriever_spec, self._cache = retriever, cache
        self._retriever: Retriever | None = None
        self._turn, self._searches, self._text = 0, 0, ""
        self._seen: dict[str, None] = {}

    @property
    def folder(self) -> Path:
        """The folder with the data."""
        return find_data() if self._data is None else Path(self._data).expanduser()

    def tasks(self, split: str = "train") -> TaskSet:
        library = Library(self.folder, self._which, self._files)
        return library.split(split, self._per_set, self._train_sets)

    @property
    def retriever(self) -> Retriever:
        """The retriever; made on first use, shared by all environments of this process."""
        if self._retriever is None:
            self._retriever = make_retriever(self._retriever_spec, self._corpus_path(), self._cache)
        return self._retriever

    def _corpus_path(self) -> Path | None:
        name = self._retriever_spec if isinstance(self._retriever_spec, str) else self._retriever_spec.get("name")
        if name == "http" or str(name).startswith(("http://", "https://")):
            return None
        return find_corpus(self.folder) if self._corpus is None else Path(self._corpus).expanduser()

    def _begin(self, task: Task, seed: int) -> None:
        question, answers = task.data.get("question"), task.data.get("answers")
        if not isinstance(question, str) or not isinstance(answers, Sequence) or isinstance(answers, str) or not answers:
            raise TurnwiseError(f"task {task.id!r}: its data needs a question and a list of answers. Take tasks from tw.tasks('search', …)")
        self._turn, self._searches, self._seen, self._text = 0, 0, {}, f"Question: {question}"

    def _play(self, action: str) -> Transition:
        task, wanted = self._running(), read_action(action)
        if wanted is not None and wanted.verb == "answer":
            return self._answer(task, wanted)
        self._text, info = self._search(wanted) if wanted is not None else (UNCLEAR, {"problem": "neither a search nor an answer"})
        self._turn += 1
        if self._turn < self.max_turns:
            return Transition(self._see(), info=info)
        self._over = f"the episode is over (no answer within {self.max_turns} turns): call reset(task) before the next step"
        return Transition(self._see(), done=True, info=info | self._scores(0.0, 0.0))

    def _search(self, wanted: Action) -> tuple[str, dict[str, Any]]:
        (hits,) = self.retriever.search([wanted.words], self.topk)
        self._searches += 1
        names = [hit.passage.id for hit in hits]
        self._seen |= dict.fromkeys(names)
        return shown(hits), {"query": wanted.words, "passages": names}

    def _answer(self, task: Task, wanted: Action) -> Transition:
        accepted = [str(answer) for answer in task.data["answers"]]
        right = exact_match(wanted.words, accepted)
        self._turn += 1
        self._over = "the episode is over (an answer was given): call reset(task) before the next step"
        self._text = "The answer is right." if right else f"The answer is not right. Accepted: {accepted[0]}"
        info = {"answer": wanted.words} | self._scores(float(right), f1(wanted.words, accepted))
        return Transition(self._see(), float(right), True, right, info)

    def _scores(self, em: float, overlap: float) -> dict[str, Any]:
        return {"em": em, "f1": overlap, "searches": self._searches, "measures": {"f1": overlap}}

    def _see(self) -> Observation:
        return Observation(self._text, (), ACTIONS, self._state() if self.anchor == "state" else None)

    def _state(self) -> bytes:
        """Everything that matters for the rest: the question, the passages read so far in any order, the turns left."""
        known = [self._task.id if self._task else "", sorted(self._seen), self.max_turns - self._turn, bool(self._over)]
        return blake2b(json.dumps(known).encode(), digest_size=16).digest()

    def _kept(self) -> dict[str, Any]:
        """What was found so far, and what was read last."""
        return {"turn": self._turn, "searches": self._searches, "seen": list(self._seen), "text": self._text}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        """The passages are not retrieved again."""
        self._begin(task, 0)
        self._text, self._seen = str(kept["text"]), dict.fromkeys(kept["seen"])
        self._turn, self._searches = int(kept["turn"]), int(kept["searches"])

    def expert(self, task: Task) -> list[str]:
        """An agent that knows the answer: it searches for the evidence, if the data names it, and answers."""
        titles = [str(title) for title in task.data.get("titles", ())]
        if not titles and task.data.get("evidence") and (path := self._corpus_path()) is not None:
            corpus = open_corpus(path)
            places = [int(name) for name in task.data["evidence"] if str(name).isdecimal() and int(name) < len(corpus)]
            found = [corpus[place] for place in places]
            titles = [passage.title for passage, place in zip(found, places, strict=True) if passage.id == str(place)]
        titles = (list(dict.fromkeys(titles)) or [str(task.data["question"])])[: self.max_turns - 1]
        return [*(f"search[{title}]" for title in titles), f"answer[{task.data['answers'][0]}]"]

    def expert_action(self) -> str:
        """That agent's next action, whatever was done before: it answers once it has looked everything up, or on the last turn."""
        plan = self.expert(self._running())
        return plan[self._searches] if self._searches < len(plan) - 1 and self._turn < self.max_turns - 1 else plan[-1]

    def scripted_action(self) -> str:
        """A simple rule: search for the literal question, then answer with the first title found that the question does not name."""
        question = str(self._running().data["question"])
        if not self._searches:
            return f"search[{question}]"
        (hits,) = self.retriever.search([question], self.topk)
        new = (hit.passage.title for hit in hits if hit.passage.title.lower() not in question.lower())
        return f"answer[{next(new, question)}]"


def shown(hits: Sequence[Hit]) -> str:
    """The text that the agent sees of the passages that were found."""
    return "\n\n".join(f"[{rank}] {hit.passage.title}\n{hit.passage.text}" for rank, hit in enumerate(hits, 1)) or NOTHING
