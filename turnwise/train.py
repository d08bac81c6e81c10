"""The loop. Read this file first: tasks become trajectories, trajectories become credit, credit becomes an update, and again.

The loop knows no algorithm and no environment by name: its parts are arguments. What a recipe's settings mean is defined in
setup/parts.py; what is kept on disk, in runs/folder.py and learn/checkpoint.py. All random numbers come from the recipe's seed and the
position in the run, so a killed and resumed run gives the same result as an uninterrupted one.
"""

from __future__ import annotations

from functools import partial

from turnwise.collect.source import Collected
from turnwise.data.batch import Batch
from turnwise.report.warnings import Watch
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter
from turnwise.setup.parts import Training
from turnwise.setup.state import State, save
from turnwise.util.background import background
from turnwise.util.garbage import rare_searches, search_between
from turnwise.util.metrics import Clock, numbers
from turnwise.util.seeds import derive


def run_iterations(run: Run, training: Training, state: State, reporter: Reporter) -> State:
    """Train from where the run is to the end, or until it is over early."""
    config = training.config
    reporter.begin(f"{config.name}: {config.trained_with} on {config.env.name}", config.iterations, state.iteration)
    watch = Watch(run)
    if not state.prepared:
        warm_start(training, state, reporter)

    close_iteration(run, training, state, reporter, watch)  # of the warm start, or what an interrupted run has left

    with rare_searches():
        remaining = config.iterations - state.iteration
        for collected in training.source.batches(training.plan, remaining, lambda: reporter.phase("collecting")):
            if training.over() or not collected.complete:
                break  # a partial batch is not learned from; it is collected again completely after a resume
            if collected.trajectories:
                reporter.phase("learning")
            learn_from(collected, run, training, state)
            close_iteration(run, training, state, reporter, watch)
            del collected
            search_between()
    save(run, training, state)
    return state


def learn_from(collected: Collected, run: Run, training: Training, state: State) -> None:
    """One iteration after collecting: signals, credit, then the update. The host writes the batch and prepares the next tasks meanwhile."""
    config, iteration = training.config, state.iteration + 1
    metrics = {"iteration": iteration} | collected.metrics()
    clock = Clock(collect=collected.seconds)
    if collected.trajectories:
        progress, seed = state.iteration / config.iterations, derive(config.seed, "update", iteration)
        keep = config.run.keep_rollouts
        with clock("credit"):
            batch = training.learner.signal(Batch.of(collected.trajectories, collected.tasks), progress)
            batch, credit_metrics = training.credit(batch)
        with background(training.source.prefetch, partial(run.save_batch, iteration, batch, 0 if keep == 0 else None)) as wait:
            with clock("update"):
                metrics |= credit_metrics | training.learner.update(batch, seed, progress)
                metrics |= training.source.metrics(batch)
                training.source.publish(iteration)
            with clock("keep"):
                wait()
                run.forget_batches(iteration, keep)
    metrics |= clock.metrics(metrics, collected.prefetched)
    state.advance(training.source.mark(training.plan), collected.trajectories, metrics, clock.total)


def close_iteration(run: Run, training: Training, state: State, reporter: Reporter, watch: Watch) -> None:
    """What follows an update, or the warm start: the evaluation, if one is due, the log, the checkpoint. If the evaluation is
    interrupted, all of this waits in the checkpoint and is done after the resume."""
    if state.waiting is None or training.over():
        return
    config, iteration, metrics = training.config, state.iteration, state.waiting
    if iteration in (0, config.iterations) or (config.eval.every and iteration % config.eval.every == 0):
        clock = Clock()
        reporter.phase("evaluation")
        evaluation = training.evaluate()
        if training.over():
            return
        run.save_evaluation(iteration, evaluation, training.evaluate.record)
        metrics |= evaluation.metrics() | {"time/eval": clock.total}
        state.seconds += clock.total
        state.score = metrics.get("eval/success")
    state.waiting = None
    run.log(metrics)
    if iteration > 0:
        reporter.iteration(iteration, metrics)
        watch(metrics, config.credit.name, reporter.note)
    elif state.score is not None:
        reporter.note(f"before the first iteration: held-out {state.score:.1%}")
    if iteration in (0, config.iterations) or iteration % (config.run.checkpoint_every or config.iterations) == 0:
        save(run, training, state)


def warm_start(training: Training, state: State, reporter: Reporter) -> None:
    """Learning from the expert before the first iteration, if the recipe asks for it. A run that is interrupted here starts from scratch
    when it is resumed. Once it is done, it is kept, and the first evaluation follows as after any iteration."""
    clock, sft = Clock(), training.config.sft
    metrics: dict[str, float] = {"iteration": 0}
    if sft is not None:
        reporter.phase("warm start", sft.tasks)
        metrics |= numbers("sft", training.warm_start(reporter.advance)) | {"time/sft": clock.total}
    if not training.over():
        state.prepared, state.waiting, state.seconds = True, metrics, clock.total
