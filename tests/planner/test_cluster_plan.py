"""`turnwise cluster plan`: what makes a split faster, splits that can be placed, and what does not fit is said."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from typer.testing import CliRunner

from turnwise.cli.app import app
from turnwise.cluster.placement import Demand, Node, place
from turnwise.learn.shapes import SHAPES, shape_of
from turnwise.planner.cluster import Question, make_plan, settings, splits
from turnwise.planner.simulate import Layout, Result, Work, simulate
from turnwise.planner.tables import summary
from turnwise.planner.times import LearnerTimes, Machine, largest_share
from turnwise.recipe.reading import parse_override
from turnwise.recipe.schema import Config
from turnwise.util.errors import TurnwiseError

SMALL = Work(groups=16, turns=30)
NO_RESULT = Result(Layout(1, 1), 0, 1.0, 1.0, 0.0, 0.0, {})


def simulated(layout: Layout, staleness: int) -> Result:
    return simulate(SMALL, layout, SHAPES["7b"], Machine(), staleness, iterations=6, warmup=2)


# service times


def test_old_log_probs_of_the_engine_cost_one_micro_batch_and_those_of_the_learner_a_pass() -> None:
    times, batch = LearnerTimes(SHAPES["1.5b"], Machine()), Work(success=None).sequences(range(16))
    every, some = (times.old_logprobs(batch, old) for old in ("all", "sample"))
    assert every == pytest.approx(times.seconds(batch.tokens, batch.sampled, update=False).sum())
    assert some == pytest.approx(every * Machine().tokens_per_batch / batch.tokens.sum(), rel=0.05), "all have the same length"
    learned = {old: times.learn(batch, 4, old) for old in ("all", "sample", "none")}
    assert learned["all"] - learned["none"] == pytest.approx(every) and learned["sample"] - learned["none"] == pytest.approx(some)


@pytest.mark.parametrize(
    ("given", "staleness", "steps", "scored"),
    [
        (None, 0, 4, "sample"),
        (None, 1, 4, "all"),  # the weights that sampled are older: the loss is corrected
        (None, 1, 1, "all"),
        (None, 0, 1, "none"),  # the step's own
        ("learner", 0, 4, "all"),
        ("learner", 0, 1, "none"),
        ("engine", 1, 4, "sample"),
        ("engine", 0, 1, "sample"),
    ],
)
def test_old_log_probs_are_whose_a_run_would_take(given: str | None, staleness: int, steps: int, scored: str) -> None:
    assert Work(old_logprobs=given, steps=steps).old_pass(staleness) == scored


# the simulation


def test_running_ahead_pays_where_the_parts_are_apart() -> None:
    in_step, ahead = (simulated(Layout(4, 4, capacity=4), staleness) for staleness in (0, 1))
    assert ahead.trajectories_per_s * 3600 == pytest.approx(ahead.iterations_per_h * SMALL.groups * SMALL.group_size)
    assert ahead.trajectories_per_s > 1.2 * in_step.trajectories_per_s
    assert ahead.learner_idle < in_step.learner_idle and ahead.engine_idle < in_step.engine_idle


def test_an_engine_with_little_room_takes_its_groups_one_after_another() -> None:
    little, much = (simulated(Layout(4, 4, capacity=capacity), 0) for capacity in (1, 4))
    assert little.parts["wait"] > 1.3 * much.parts["wait"]


def test_a_rank_has_at_least_the_longest_sequence() -> None:
    assert largest_share(np.array([5.0, 1.0, 1.0, 1.0]), 4) == 5.0
    assert largest_share(np.array([3.0, 3.0, 2.0, 2.0, 2.0]), 2) == 7.0, "the longest first"
    assert largest_share(np.ones(1000), 2) == 500.0


# plans


def test_a_plan_compares_splits_of_all_gpus_and_marks_the_best() -> None:
    plan = make_plan(Question("7b", 8, SMALL, iterations=4, tensor_parallel=1))
    assert plan.results[0].layout.colocated and plan.results[0].staleness == 0
    assert [one.layout.learners for one in plan.results[1:]] == [2, 3, 4, 5, 6, 7], "one learner cannot hold it"
    assert all(one.layout.gpus == 8 for one in plan.results)
    assert plan.best.trajectories_per_s == max(one.trajectories_per_s for one in plan.results)


@pytest.mark.parametrize(
    ("model", "gpus", "node"), [("0.5b", 2, 8), ("7b", 16, 8), ("32b", 64, 8), ("14b", 13, 4), ("7b", 12, 8), ("3b", 9, 3)]
)
def test_a_run_accepts_and_places_every_split_that_is_planned(model: str, gpus: int, node: int) -> None:
    question = Question(model, gpus, SMALL, machine=Machine(node_gpus=node))
    nodes = [Node(str(first), f"10.0.0.{first}", 96, min(node, gpus - first), here=not first) for first in range(0, gpus, node)]
    layouts = [layout for found in splits(question, shape_of(model)).values() for layout in found]
    assert {layout.colocated for layout in layouts} == {True, False} and (gpus == 2 or {layout.tensor_parallel for layout in layouts} > {1})
    for layout in layouts:
        demand = Demand(layout.engines, layout.learners, True, layout.tensor_parallel, layout.colocated)
        assert len(place(nodes, demand)) == layout.engines + layout.learners, layout
        more = replace(demand, engines=layout.engines + 1)
        with pytest.raises(TurnwiseError, match="cluster: "):
            place(nodes, more)
    for layout in {(one.colocated, one.tensor_parallel): one for one in layouts}.values():
        given = settings(replace(NO_RESULT, layout=layout, staleness=0 if layout.colocated else 1))
        own = Config.load(
            ROOT / "recipes" / "alfworld.toml", dict(parse_override(f"{name}={value}") for name, value in given.items())
        ).cluster
        assert own is not None and (own.learners, own.engines, own.tensor_parallel) == (
            layout.learners,
            layout.engines,
            layout.tensor_parallel,
        )
        assert own.placement == ("colocated" if layout.colocated else "apart") and own.staleness == (0 if layout.colocated else 1)


def test_one_gpu_needs_no_cluster() -> None:
    plan = make_plan(Question("0.5b", 1, SMALL, iterations=2))
    assert settings(plan.best) == {} and "leave out the [cluster] section" in summary(plan)


def test_the_best_separate_split_is_looked_for_even_if_colocated_ones_are_faster() -> None:
    plan = make_plan(Question("7b", 24, replace(SMALL, groups=64), staleness=0, iterations=2, tensor_parallel=1))
    assert plan.best.layout.colocated
    learners = [one.layout.learners for one in plan.results if not one.layout.colocated]
    best = max(plan.results[1:], key=lambda result: result.trajectories_per_s).layout.learners
    assert {best - 1, best + 1} <= set(learners), "the neighbours of the best"


def test_the_network_matters_to_learners_on_several_nodes_alone() -> None:
    batch, slow = SMALL.sequences(range(16)), Machine(network_bytes_per_s=1e9)
    for ranks, slower in ((8, False), (9, True)):
        usual, other = (LearnerTimes(SHAPES["7b"], machine, ranks).learn(batch, 4) for machine in (Machine(), slow))
        assert (other > usual) == slower


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (Question("7b", 1), "the learner of 7b does not fit 1 GPU of 141 GB .* Use at least 2 GPUs for the learner"),
        (Question("72b", 2, tensor_parallel=1), "72b does not fit an engine on 1 GPU of 141 GB .* need 168 GB. Use more GPUs per engine"),
        (Question("7b", 8, tensor_parallel=3), "an engine on 3 GPUs: 7b has 4 key heads, and a node 8 GPUs; give 1, 2, 4$"),
        (Question("32b", 8, tensor_parallel=8, machine=Machine(node_gpus=4)), "32b has 8 key heads, and a node 4 GPUs; give 1, 2, 4$"),
        (Question("72b", 16), "but not both. Use at least 18$"),  # 15 learners fill two nodes, and an engine of 2 needs a third
        (
            Question("7b", 8, Work(turns=120, group_size=512)),
            "7b does not fit an engine on 4 GPUs .* Lower the turns, the tokens or the size of a group",
        ),
        (Question("7b", 8, Work(groups=100_000)), "are 9,600,000 trajectories; at most 2,000,000 are simulated"),
    ],
)
def test_what_cannot_be_planned_is_said_before_anything_is_simulated(question: Question, message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        splits(question, shape_of(question.model))


# the command

WORDS = shlex.split("cluster plan --model 1.5b --gpus 2 --groups 4 --turns 10 --iterations 3 --tensor-parallel 1")


def test_the_command_prints_a_table() -> None:
    result = CliRunner().invoke(app, WORDS)
    assert result.exit_code == 0, result.output
    assert "1.5b on 2 GPUs" in result.output and "colocated" in result.output and "nothing was run on these GPUs" in result.output
    assert sum(line.lstrip().startswith("*") for line in result.output.splitlines()) == 1


def test_the_command_prints_json_for_machines() -> None:
    data = json.loads(CliRunner().invoke(app, [*WORDS, "--json"]).stdout)
    assert data["simulated"] and [row["learners"] for row in data["splits"]] == [2, 1] and sum(row["best"] for row in data["splits"]) == 1
    assert data["question"]["work"]["turns"] == 10 and data["splits"][1]["staleness"] == 1
    other = json.loads(CliRunner().invoke(app, [*WORDS, "--json", "--old-logprobs", "engine"]).stdout)
    assert other["splits"][1]["seconds"]["learn"] < data["splits"][1]["seconds"]["learn"]
