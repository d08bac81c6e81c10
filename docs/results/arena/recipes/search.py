"""Questions of one to three hops over a small corpus of our own, in the rules of Search QA; search/make.py wrote its passages."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.cards.base import listed_tasks
from turnwise.envs.search.env import NOTHING, UNCLEAR, SearchEnv
from turnwise.retrieval.kinds import open_corpus

FOLDER = Path(__file__).parent / "search"
PEOPLE, PLACES = ("friend", "rival", "teacher", "boss"), ("country", "river")  # what leads from a person to another, and from a town
KINDS = (*PEOPLE, "town", *PLACES, "pet", "mayor")
MOST_HOPS = 3
SHORT = {NOTHING: "nothing", UNCLEAR: "unclear"}


class SmallSearch(SearchEnv):
    """Questions such as `town of friend of ada`, whose facts are passages of their own. A search brings one of them, by BM25. A text has
    the question and what the last search found, and no more: after a useless page the way to it is forgotten. Actions are
    `search WORDS` and `answer WORDS`."""

    def __init__(self, max_turns: int = 8):
        super().__init__(FOLDER, topk=1, max_turns=max_turns)

    def tasks(self, split: str = "train") -> TaskSet:
        return listed_tasks("search", split, questions())

    def _play(self, action: str) -> Transition:
        return super()._play(_full(action))

    def _see(self) -> Observation:
        text = f"{self._question} . {self._page}".strip()
        names = [name for name in dict.fromkeys(text.split()) if name in facts()]
        searches = [f"search {name} {kind}" for name in names for kind in KINDS]
        return replace(super()._see(), text=text, actions=(*searches, *(f"answer {name}" for name in names)))

    @property
    def _question(self) -> str:
        return "" if self._task is None else str(self._task.data["question"])

    @property
    def _page(self) -> str:
        """What the last search found; nothing before the first one, and after the answer."""
        return self._text.partition("\n")[2] if self._text.startswith("[1]") else SHORT.get(self._text, "")

    def expert_action(self) -> str:
        """The fact that follows the one on the page, if that is on the way; otherwise the first one."""
        plan = self.expert(self._running())
        kind, _, name = self._page.partition(" of ")
        query = f"search {name.partition(' is ')[0]} {kind}"
        return plan[plan.index(query) + 1] if query in plan else plan[0]

    def expert(self, task: Task) -> list[str]:
        kinds = str(task.data["question"]).split(" of ")[-2::-1]
        searches = [f"search {name} {kind}" for name, kind in zip(task.data["titles"], kinds, strict=True)]
        return [*searches, f"answer {task.data['answers'][0]}"]


def _full(action: str) -> str:
    verb, _, words = action.strip().partition(" ")
    return f"{verb}[{words}]"


@cache
def facts() -> dict[str, dict[str, str]]:
    """What the passages say: of whom, what, and the name."""
    found: dict[str, dict[str, str]] = {}
    for passage in open_corpus(FOLDER / "passages.jsonl"):
        kind = passage.text.partition(" ")[0]
        found.setdefault(passage.title, {})[kind] = passage.text.rpartition(" ")[2]
    return found


@cache
def questions() -> dict[str, dict[str, Any]]:
    """All questions that lead from a person over others, each kind of fact at most once, in one order, and nobody twice."""
    tails = [(), ("town",), *(("town", place) for place in PLACES)]
    heads = [head for hops in range(MOST_HOPS + 1) for head in combinations(PEOPLE, hops)]
    chains = [chain for head in heads for tail in tails if 0 < len(chain := (*head, *tail)) <= MOST_HOPS]
    known, found = facts(), {}
    for start in (title for title in known if "friend" in known[title]):
        for chain in chains:
            names = [start]
            for kind in chain:
                names.append(known[names[-1]][kind])
            if len(set(names)) == len(names):
                question = " of ".join([*reversed(chain), start])
                found[question] = {"goal": question, "question": question, "answers": [names[-1]], "titles": names[:-1]}
    return found
