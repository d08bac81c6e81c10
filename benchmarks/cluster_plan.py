"""What clusters would do, simulated: the check against one GPU, the best splits of 8, 64 and 256 GPUs, and how much the assumptions matter.

    python benchmarks/cluster_plan.py             prints, and writes cluster_plan.json next to this file
    python benchmarks/cluster_plan.py --quick     one small plan, nothing is written
    python benchmarks/cluster_plan.py --only changed

Nothing here runs on a GPU. The scheduler is the one of a real cluster; service times are those of the other benchmarks, scaled.
docs/cluster-planning.md shows the figures and lists the assumptions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results import publish

from turnwise.learn.shapes import SHAPES
from turnwise.planner.cluster import Plan, Question, make_plan, splits
from turnwise.planner.simulate import Layout, Result, Simulation, Work
from turnwise.planner.tables import row
from turnwise.planner.times import Machine

HERE = Path(__file__).parent
MEASURED = ("iteration-rollout-full", "iteration-full-now", "iteration-rollout-window", "iteration-window-now")
HOST_OF_A_SCRIPT = 0.0465e-3  # seconds per turn: the engine's own part in host-x86.json; a script has neither environment nor texts
ASKED = [(model, gpus, groups) for model in ("7b", "32b") for gpus, groups in ((8, 128), (64, 128), (64, 512), (256, 128), (256, 512))]


def checked() -> Iterator[dict[str, Any]]:
    """One colocated GPU, simulated, beside the rollouts and whole iterations that were measured."""
    for file in MEASURED:
        told = json.loads((HERE / f"{file}.json").read_text())
        shape, seconds = told["shape"], told["seconds"]
        parts = one_gpu(told).parts
        pairs = [("rollout alone", seconds["rollout"], parts["wait"])]
        if "total" in seconds:
            learned = sum(seconds[part] for part in ("old_logprobs", "reference", "update"))
            pairs = [("rollout", seconds["rollout"], parts["wait"]), ("log-probs and update", learned, parts["learn"])]
            pairs.append(("iteration", seconds["total"], sum(parts.values())))
        for what, measured, simulated in pairs:
            rounded = {"measured": round(measured, 2), "simulated": round(simulated, 2)}
            yield {"context": shape["context"], "what": what, "file": f"{file}.json"} | rounded


def one_gpu(told: dict[str, Any]) -> Result:
    """The iteration that a result of benchmarks/iteration.py is about, simulated. Of a rollout alone, only the wait means something."""
    shape = told["shape"]
    same = {name: shape[name] for name in ("turns", "context", "opening", "prompt", "shared", "observation", "response")}
    if "total" in told["seconds"]:
        same |= {"steps": told["steps"], "old_logprobs": "engine" if told["old_from_engine"] else "learner"}
    work = Work(groups=shape["groups"], group_size=shape["members"], **same, success=None, host_turn=HOST_OF_A_SCRIPT)
    layout = Layout(learners=1, engines=1, capacity=shape["groups"], colocated=True)
    return Simulation(work, layout, SHAPES[shape["size"]], iterations=1, warmup=0).run()


def checked_elsewhere() -> dict[str, Any]:
    """Iterations with short responses, for which nothing was fitted: the 0.5B recipe on real ALFWorld games in one process, medians."""
    told = json.loads((HERE / "cluster_overhead.json").read_text())
    seconds, did, groups, limit = told["seconds"]["plain"], told["work"]["plain"], 16, 50
    turns, response = did["turns"] / groups / 8, round(did["response_tokens"] / did["turns"])
    solved = Work().solved_turns
    shape = {"turns": limit, "success": (limit - turns) / (limit - solved)}
    tokens = {"opening": 350, "observation": 19, "response": response}  # about those of the run
    work = Work(groups=groups, **shape, **tokens, steps=4)
    parts = Simulation(work, Layout(1, 1, capacity=groups, colocated=True), SHAPES["0.5b"], iterations=30, warmup=0).run().parts
    batch = work.sequences(range(30 * groups))
    return {
        "tokens per turn": {
            "measured": round(did["prompt_tokens"] / did["turns"]),
            "simulated": round(batch.prompts / (batch.sampled.sum() / response)),
        },
        "collect": {"measured": round(seconds["collect"], 2), "simulated": round(parts["wait"], 2)},
        "update": {"measured": round(seconds["update"], 2), "simulated": round(parts["pack"] + parts["learn"], 2)},
    }


def plans(asked: list[tuple[str, int, int]], iterations: int = 8) -> Iterator[dict[str, Any]]:
    """The best colocated layout, and the best one with separate parts in step and one update behind."""
    for model, gpus, groups in asked:
        question = Question(model, gpus, Work(groups=groups), iterations=iterations)
        for staleness in (0, 1):
            plan = make_plan(replace(question, staleness=staleness))
            for result in best(plan, colocated=staleness == 0):
                yield {"model": model, "gpus": gpus, "groups": groups} | row(result)


def best(plan: Plan, colocated: bool) -> list[Result]:
    """The fastest split, after the colocated one if that is asked for."""
    together = [result for result in plan.results if result.layout.colocated and colocated]
    apart = [result for result in plan.results if not result.layout.colocated]
    return [*together, max(apart, key=lambda result: result.trajectories_per_s)]


def changed(asked: tuple[str, int, int], learners: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The best of a few splits with staleness 1, each time with one thing different."""
    model, gpus, groups = asked
    work, usual, shape = Work(groups=groups), Machine(), SHAPES[model]
    possible = splits(Question(model, gpus, work), shape)
    layouts = [layout for number in learners for layout in possible[number]]
    cases: dict[str, dict[str, Any]] = {
        "as planned": {},
        "collectives reach half the rate": {
            "machine": replace(usual, link_bytes_per_s=usual.link_bytes_per_s / 2, network_bytes_per_s=usual.network_bytes_per_s / 2)
        },
        "between nodes, collectives reach 50 GB/s": {"machine": replace(usual, network_bytes_per_s=5e10)},
        "half of the communication is hidden": {"machine": replace(usual, overlap=0.5)},
        "weights are sent at 3 GB/s": {"machine": replace(usual, transfer_bytes_per_s=3e9)},
        "engines keep their caches": {"keep_cache": True},
        "ranks share credit and packing": {"shared": True},
        "old log-probs of the engine": {"work": replace(work, old_logprobs="engine")},
        "a step of the environment takes 1 s": {"work": replace(work, env_seconds=1.0)},
        "staleness 0": {"staleness": 0},
        "staleness 2": {"staleness": 2},
        "a GPU fails every 4 hours": {"mtbf_hours": 4.0, "iterations": 20},
    }
    for what, options in cases.items():
        given: dict[str, Any] = {"work": work, "staleness": 1, "iterations": 8, "machine": usual} | options
        shared = given.pop("shared", False)
        results = []
        for layout in layouts:
            machine = shared_packing(usual, layout.learners) if shared else given["machine"]
            results.append(Simulation(layout=layout, model=shape, **(given | {"machine": machine})).run())
        found = max(results, key=lambda result: result.trajectories_per_s)
        split = {"learners": found.layout.learners, "engines": found.layout.engines, "tensor_parallel": found.layout.tensor_parallel}
        yield {"changed": what} | split | {"trajectories_per_s": round(found.trajectories_per_s, 2), "failures": found.failures}


def shared_packing(machine: Machine, ranks: int) -> Machine:
    return replace(machine, **{name: getattr(machine, name) / ranks for name in ("pack_prompt_token", "pack_token", "pack_sampled_token")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("checked", "plans", "changed"), help="measure this part again and keep the others")
    options = parser.parse_args()
    asked, basis, learners = (ASKED, ("7b", 64, 512), (32, 36, 40, 44, 48)) if not options.quick else ([("7b", 8, 16)], ("7b", 8, 16), (4,))
    path = HERE / "cluster_plan.json"
    result = json.loads(path.read_text()) if options.only else {}
    result["about"] = "simulated with service times measured on one NVIDIA H200; nothing was run on more than one GPU"
    if options.only in (None, "checked"):
        result |= {"checked": list(checked()), "checked_elsewhere": checked_elsewhere()}
    if options.only in (None, "plans"):
        result["plans"] = list(plans(asked, iterations=4 if options.quick else 8))
    if options.only in (None, "changed"):
        result["changed"] = list(changed(basis, learners))
    publish(result, None if options.quick else path)


if __name__ == "__main__":
    main()
