"""SLEA-RL (A12): which distilled experience enters the library, and which leaves.

Source: kingofspace0wzz/slea-rl, commit d247621c8ac64a23824abb37aa82ec65a61faa0e,
`verl/trainer/ppo/forge/experience_library.py:ExperienceZone.add`, `experience_evolution.py:ExperienceEvolver._is_novel` and
`evolve_from_trajectories`, `step_experience.py:ObservationIndex.find_or_create_cluster`, `_evict_least_used_cluster` and
`StepExperienceManager.retrieve_for_observation`. Confirmed by executing `add`, `_is_novel` and `find_or_create_cluster`
(tests/golden/slea.json, the same entries and clusters).

Capacities are per level (100 golden, 50 warnings). A lesson that is too similar to a stored one raises that one's score instead. A
lesson enters a full level only if its score is larger than the smallest there, whose first owner leaves. Clusters are compared only
with clusters whose first 300 characters are equal. The least used cluster (retrievals, then members) is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Entry = tuple[str, float]  # text, score


def overlap(a: str, b: str) -> float:
    """Token overlap: words in common over words in either (lower case, split at white space); 0 if one has no words."""
    x, y = set(a.lower().split()), set(b.lower().split())
    return len(x & y) / len(x | y) if x and y else 0.0


def inserted(
    level: Sequence[Entry],
    new: Entry,
    capacity: int = 100,
    threshold: float = 0.85,
    similarity: Callable[[str, str], float] = overlap,
    raise_score: bool = False,
) -> list[Entry]:
    """One level of a zone after an insertion (capacity 100 golden, 50 warning).

    Similar to an entry (> threshold): not inserted; with raise_score (the code) the first similar entry takes the larger score. Full: the
    entry with the lowest score (the first of equals) leaves, only if the new score is strictly larger. The new entry goes to the end.
    """
    entries = list(level)
    for i, (text, score) in enumerate(entries):
        if similarity(new[0], text) > threshold:
            if raise_score and new[1] > score:
                entries[i] = (text, new[1])
            return entries
    if len(entries) >= capacity:
        worst = min(range(len(entries)), key=lambda i: entries[i][1])
        if new[1] <= entries[worst][1]:
            return entries
        entries.pop(worst)
    return [*entries, new]


def active(step: int, entries: int, warmup: int = 5, least: int = 10) -> bool:
    """Whether experience is retrieved: after `warmup` steps and with at least `least` entries."""
    return step >= warmup and entries >= least


def retrieved(entries: Sequence[tuple[str, float]], number: int) -> list[str]:
    """Texts of the `number` entries with the largest score (or similarity), in falling order; ties: the earlier first."""
    return [text for text, _ in sorted(entries, key=lambda entry: -entry[1])[:number]]
