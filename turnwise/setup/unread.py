"""Checks a recipe without running any of the code that it names: for `--dry-run`, which is safe with third-party recipes."""

from __future__ import annotations

from collections.abc import Iterator

from turnwise.config.kinds import ENVIRONMENT, KINDS, Kind
from turnwise.config.loading import check_reference
from turnwise.config.references import code_in, is_reference
from turnwise.recipe.names import pieces
from turnwise.recipe.schema import Config
from turnwise.runs.trackers import make_trackers


def look_at(config: Config) -> None:
    """An error for code that is missing, is not Python, or is clearly of another kind. Built-in trackers are made, others are not."""
    for reference, kind in named(config):
        check_reference(reference, kind)
    own = [name for name in config.run.trackers if not is_reference(name)]
    make_trackers(own, {name: config.run.tracker_options.get(name, {}) for name in own})


def named(config: Config) -> Iterator[tuple[str, Kind]]:
    """The code that a recipe names under keys that say which kind of thing it is."""
    parts = [(config.env.name, ENVIRONMENT), *((piece.name, KINDS[piece.family]) for piece in pieces(config))]
    return ((name, kind) for name, kind in parts if is_reference(name))


def unread(config: Config) -> list[str]:
    """What would have to be run to know more: every text of the recipe that names code, or may name it."""
    return code_in(config.model_dump(mode="json"))
