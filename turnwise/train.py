"""The loop. Read this file first: tasks become trajectories, trajectories become credit, credit becomes an update, and again.

The loop knows no algorithm and no environment by name. What a recipe's settings mean is defined in setup/system.py; what is kept on disk,
in runs/folder.py and learn/checkpoint.py. All random numbers come from the recipe's seed and the position in the run, so a killed and
resumed run gives the same result as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable

from turnwise.collect.collector import summarise
from turnwise.collect.panel import Evaluation
from turnwise.collect.source import Collected
from turnwise.data.batch import Batch
from turnwise.report.metrics import Clock, evaluation_metrics, numbers
from turnwise.report.warnings import Watch
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter
from turnwise.setup.state import State, save
from turnwise.setup.system import System
from turnwise.util.beside import Pause, beside
from turnwise.util.garbage import rare_searches, search_between
from turnwise.util.seeds import derive


def run_iterations(run: Run, system: System, state: State, reporter: Reporter, interrupted: Callable[[], bool] = lambda: False) -> State:
    """Train from where the run is to the end, or until interrupted."""
    config = system.config
    reporter.begin(f"{config.name}: {config.trained_with} on {config.env.name}", config.iterations, state.iteration)
    watch = Watch(run)
    if not state.prepared:
        warm_start(system, state, reporter, interrupted)

    close_iteration(run, system, state, reporter, watch, interrupted)  # of the warm start, or what an interrupted run has left

    left = config.iterations - state.iteration
    with rare_searches():
        for found in system.source.batches(system.plan, n=left, begins=lambda: reporter.phase("collecting")):
            if interrupted() or not found.complete:
                break  # a partial batch is not learned from; it is collected again completely after a resume
            if found.trajectories:
                reporter.phase("learning")
            learn_from(found, run, system, state)
            close_iteration(run, system, state, reporter, watch, interrupted)
            del found
            search_between()
    save(run, system, state)
    return state


def learn_from(found: Collected, run: Run, system: System, state: State) -> None:
    """One iteration after collecting: credit, then the update. The host writes the batch and prepares the next tasks meanwhile."""
    config, clock, iteration = system.config, Clock(collect=found.seconds), state.iteration + 1
    metrics = {"iteration": iteration} | numbers("collect", summarise(found.trajectories) | found.counts)
    if found.trajectories:
        progress, keep = state.iteration / config.iterations, config.run.keep_rollouts
        with clock("credit"):
            batch = system.annotate(Batch.of(found.trajectories, found.tasks))
            batch = system.give_credit(system.signal(batch, progress))
            metrics |= numbers("credit", system.diagnose(batch))

        def write(pause: Pause) -> None:
            run.save_batch(iteration, batch, 0 if keep == 0 else None, True, pause)

        with beside(system.load_ahead, write) as wait:
            with clock("update"):
                metrics |= numbers("learner", system.update(batch, derive(config.seed, "update", iteration), progress))
                metrics |= numbers("model", system.train_models(batch, progress))
                metrics |= system.source.metrics(batch)
                system.source.publish(iteration)
            with clock("keep"):
                wait()
                run.forget_batches(iteration, keep)
    state.advance(system, found.trajectories, metrics | clock.metrics(metrics, found.ahead), clock.total)


def close_iteration(run: Run, system: System, state: State, reporter: Reporter, watch: Watch, interrupted: Callable[[], bool]) -> None:
    """What follows an update, or the warm start: the evaluation, if one is due, the log, the checkpoint. If the evaluation is
    interrupted, all of this waits in the checkpoint and is done after the resume."""
    if state.waiting is None or interrupted():
        return
    config, iteration, metrics = system.config, state.iteration, state.waiting
    if iteration in (0, config.iterations) or (config.eval.every and iteration % config.eval.every == 0):
        clock = Clock()
        measured = measure(system, reporter, clock)
        if interrupted():
            return
        run.save_evaluation(iteration, measured, system.evaluation_settings)
        metrics |= evaluation_metrics(measured) | {"time/eval": clock.total}
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
        save(run, system, state)


def warm_start(system: System, state: State, reporter: Reporter, interrupted: Callable[[], bool]) -> None:
    """Learning from the expert before the first iteration, if the recipe asks for it. A run that is interrupted here starts from scratch
    when it is resumed. Once it is done, it is kept, and the first evaluation follows as after any iteration."""
    clock = Clock()
    metrics: dict[str, float] = {"iteration": 0}
    if system.config.sft is not None:
        reporter.phase("warm start", system.config.sft.tasks)
        metrics |= numbers("sft", system.warm_start(reporter.advance)) | {"time/sft": clock.total}
    if not interrupted():
        state.prepared, state.waiting, state.seconds = True, metrics, clock.total


def measure(system: System, reporter: Reporter, clock: Clock) -> Evaluation:
    """The recipe's evaluation with the weights as they are."""
    reporter.phase("evaluation")
    with clock("eval"):
        return system.evaluate()
