"""Search QA: questions that are answered with the help of a search."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.envs.registry import needs_data, needs_package, register


def _splits() -> Mapping[str, int]:
    from turnwise.envs.search.questions import Library, find_data
    from turnwise.util.errors import TurnwiseError

    try:
        return Library(find_data()).sizes()
    except TurnwiseError:  # an option may name the folder of the data, which is not known here
        return {}


register(
    "search",
    "turnwise.envs.search.env:SearchEnv",
    summary="questions answered with a search: BM25, dense, or a retrieval server",
    splits=_splits,
    max_turns=4,
    needs=[
        needs_data(
            "question sets", "search.questions", "set TURNWISE_DATA to the folder that has them as qa/: see docs/environments/search-qa.md"
        ),
        needs_package("bm25s", "search"),
    ],
)
