"""SLEA-RL's library of lessons, from the authors' code.

Source: kingofspace0wzz/slea-rl, commit d247621c8ac64a23824abb37aa82ec65a61faa0e, `verl/trainer/ppo/forge/experience_library.py:ExperienceZone.add`,
`experience_evolution.py:ExperienceEvolver._is_novel` and `evolve_from_trajectories`, `step_experience.py:ObservationIndex.find_or_create_cluster`,
`_evict_least_used_cluster` and `StepExperienceManager.retrieve_for_observation`.
Confirmed by executing `add`, `_is_novel` and `find_or_create_cluster` (tests/golden/slea.json, the same entries and clusters).

Capacities are per level (100 golden, 50 warnings). A lesson that is too similar to a stored one raises that one's score instead.
A lesson enters a full level only if its score is larger than the smallest there, whose first owner leaves.
Clusters are compared only with clusters whose first 300 characters are equal. The least used cluster (retrievals, then members) is evicted.
"""

from difflib import SequenceMatcher


def similar(first, second, threshold=0.85):
    """Whether a new lesson counts as known: strictly above the threshold, by matching characters of the first 300 or by the words' overlap."""
    first, second = first.lower().strip(), second.lower().strip()
    if SequenceMatcher(None, first[:300], second[:300]).ratio() > threshold:
        return True
    words, others = set(first.split()), set(second.split())
    return bool(words and others) and len(words & others) / len(words | others) > threshold


def added(level, zone, lesson, score, capacity, threshold=0.85):
    """level, zone: lists of [lesson, score] (zone: of all levels, level included). Changes them as the authors do; returns whether it is new."""
    for entry in zone:
        if similar(lesson, entry[0], threshold):
            entry[1] = max(entry[1], score)
            return False
    if len(level) >= capacity:
        worst = min(range(len(level)), key=lambda place: level[place][1])
        if score <= level[worst][1]:
            return False
        zone.remove(level.pop(worst))
    entry = [lesson, score]
    level.append(entry)
    zone.append(entry)
    return True


def cluster(clusters, observation, most=500, threshold=0.85):
    """Number of the cluster that an observation belongs to. clusters: list of [representative, members, retrievals, number], changed in place."""
    signature = observation.strip()[:300]
    for entry in clusters:
        if entry[0].strip()[:300] == signature and (
            entry[0] == observation or SequenceMatcher(None, observation[:500], entry[0][:500]).ratio() >= threshold
        ):
            entry[1] += 1
            return entry[3]
    number = max((entry[3] for entry in clusters), default=-1) + 1
    if len(clusters) >= most:
        clusters.remove(min(clusters, key=lambda entry: (entry[2], entry[1])))
    clusters.append([observation, 1, 0, number])
    return number


def shows(step, size, warmup=5, smallest=10):
    return step >= warmup and size >= smallest
