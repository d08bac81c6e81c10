"""WebShop: buy what an instruction describes, in a shop of real product pages."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.envs.registry import needs_data, needs_package, register

OFFICIAL = {"train": 6410, "valid": 500}  # goals of the 1,000 official products


def _splits() -> Mapping[str, int]:
    from turnwise.envs.webshop.env import open_catalogue, open_goals
    from turnwise.util.errors import TurnwiseError

    try:
        return {split: len(numbers) for split, numbers in open_goals(open_catalogue(), "synthetic").split.items()}
    except TurnwiseError:  # the files are elsewhere, given as an option: the numbers of the official ones
        return OFFICIAL


register(
    "webshop",
    "turnwise.envs.webshop.env:WebShopEnv",
    summary="WebShop in-process: search as Lucene ranks, pages, goals and scores, no Java and no server",
    splits=_splits,
    max_turns=15,
    needs=[
        needs_data(
            "WebShop's products",
            "webshop.files",
            "run setup.sh of WebShop's repository, or set WEBSHOP_DATA: see docs/environments/webshop.md",
        ),
        needs_package("regex", "webshop"),
    ],
)
