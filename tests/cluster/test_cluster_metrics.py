"""The numbers of a cluster: ages, ratios, drops, idle time; and every name is explained in docs/reference/metrics.md."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from turnwise.cluster.metrics import (
    age_metrics,
    drop_metrics,
    effective_share,
    group_ages,
    idle_metrics,
    ratio_metrics,
)
from turnwise.cluster.scheduler import Group, Scheduler
from turnwise.util.errors import TurnwiseError
from turnwise.util.metrics import Clock, numbers


def test_a_group_is_as_old_as_its_oldest_turn() -> None:
    ages = group_ages(version=[3, 2, 4, 4, 4], group=[7, 7, 7, 5, 5], learned_with=4)
    assert ages.tolist() == [0, 2], "in the order of their ids"
    assert age_metrics(ages) == {"age": 1.0, "age_max": 2.0, "ages": {"0": 0.5, "2": 0.5}}
    assert age_metrics([]) == {}
    with pytest.raises(TurnwiseError, match="one of each per turn"):
        group_ages([1, 2], [0], 3)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=30), st.randoms())
def test_ages_do_not_depend_on_the_order_of_turns(rows: list[tuple[int, int]], chance: object) -> None:
    mixed = list(rows)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    slow = [9 - min(version for group, version in rows if group == one) for one in sorted({group for group, _ in rows})]
    for found in (rows, mixed):
        groups, versions = zip(*found, strict=True)
        assert group_ages(versions, groups, 9).tolist() == slow


def test_equal_policies_use_every_sample() -> None:
    assert ratio_metrics(np.zeros(5)) == {"ratio_q01": 1.0, "ratio_q50": 1.0, "ratio_q99": 1.0, "effective_share": 1.0}
    assert ratio_metrics(np.zeros(0)) == {} == ratio_metrics([np.nan])


def test_one_huge_weight_is_one_sample() -> None:
    assert effective_share([800.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert effective_share(np.log([1.0, 3.0])) == pytest.approx(16 / 20)


def test_quantiles_are_of_finite_ratios() -> None:
    found = ratio_metrics(np.log([0.5, 1.0, 2.0, np.inf]))
    assert found["ratio_q50"] == pytest.approx(1.0) and 0.5 <= found["ratio_q01"] < 0.52 and 1.9 < found["ratio_q99"] <= 2.0


def test_idle_is_the_time_in_which_a_part_has_not_worked() -> None:
    worked = {"environments_0": 4.0, "engine_0": 0.0, "engine_1": 11.0}  # the last one has worked before, and says so now
    assert idle_metrics(worked, 10.0) == {"environments_0": 0.6, "engine_0": 1.0, "engine_1": 0.0}
    assert idle_metrics({"learner": 0.0}, 0.0) == {"learner": 1.0}


def test_drops_are_those_since_the_last_reading() -> None:
    scheduler = Scheduler(staleness=0, capacity=4, retries=0)
    scheduler.engine_up("A", 0)
    leases = [action.lease for id in range(2) for action in scheduler.submit(Group(id, 0))]  # type: ignore[union-attr]
    before = dict(scheduler.counts)
    scheduler.finished(leases[0], 0, ok=False)
    scheduler.finished(leases[1], 0)
    scheduler.finished(leases[1], 0)
    scheduler.formed(0)
    found = drop_metrics(before, scheduler.counts)
    assert found["failed_groups"] == 1 and found["stale_groups"] == 0 and found["late_answers"] == 1 and found["dropped_share"] == 0.5
    assert "dropped_share" not in drop_metrics(scheduler.counts, scheduler.counts)


def test_what_is_collected_beside_learning_takes_the_whole_iteration() -> None:
    clock, counts = Clock(collect=2.0, update=6.0), {"collect/response_tokens": 800.0}
    assert clock.metrics(counts)["time/tokens_per_second"] == 400
    assert 0 < clock.metrics(counts, ahead=True)["time/tokens_per_second"] <= 100


def test_every_name_is_in_the_page_of_metrics() -> None:
    from metrics_cases import CLUSTER, documented, pattern

    counts = dict(Scheduler(0, 1).counts, accepted=1)
    told = (
        age_metrics([0, 1])
        | ratio_metrics([0.0])
        | drop_metrics({}, counts)
        | {"idle": idle_metrics(dict.fromkeys(("learner", "engine_0", "environments_0"), 0.0), 1.0)}
        | {"seconds_publish": 0.5}
    )
    logged = set(numbers("cluster", told))
    known = [name for name in documented() if name.startswith("cluster/")]
    assert set(known) == set(CLUSTER)
    assert not [name for name in logged if not any(pattern(one).fullmatch(name) for one in known)]
    assert not [one for one in known if not any(pattern(one).fullmatch(name) for name in logged)]
    assert "cluster/metrics.py" not in (ROOT / "docs" / "reference" / "metrics.md").read_text(), "a page for users names no file of code"
