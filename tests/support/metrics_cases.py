"""The metrics that the pages describe."""

from __future__ import annotations

import re

from conftest import ROOT

PAGE = ROOT / "docs" / "reference" / "metrics.md"


CLUSTER = (  # on a cluster alone: see test_cluster_metrics.py
    *(f"cluster/{name}" for name in ("age", "age_max", "ages/AGE", "ratio_q01", "ratio_q50", "ratio_q99", "effective_share")),
    *(f"cluster/idle/{part}" for part in ("learner", "engine_NUMBER", "environments_NUMBER")),
    *(f"cluster/{name}" for name in ("stale_groups", "failed_groups", "repeated_groups", "late_answers", "dropped_share")),
    "cluster/seconds_publish",
)


def documented() -> list[str]:
    """The names in the first column of the page's tables. Words in capitals stand for any name."""
    rows = re.findall(r"^\| (`.+?`(?:, `.+?`)*) \|", PAGE.read_text(), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(.+?)`", row)]


def pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"[A-Z]{2,}", ".+", re.escape(name)))
