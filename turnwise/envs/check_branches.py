"""The checker's rules for branches: a snapshot restores its state in any instance; without snapshots, a replay of the actions does.

A `restore` that forgets a hidden card or the state of a generator is only noticed in later answers. So every restored episode is played
to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnwise.envs.answers import BadAnswer, read_observation, read_snapshot, read_transition
from turnwise.envs.base import EpisodeOver, Observation
from turnwise.envs.blame import one_line, own_lines
from turnwise.envs.branch import Arrived, arrive
from turnwise.envs.findings import Report, Script, essence
from turnwise.envs.pool import Pool
from turnwise.envs.scripts import Play, play_all
from turnwise.util.errors import TurnwiseError

LARGE = 64 * 1024
PAIR = "snapshot() and restore(state) come together"
SNAPSHOT, RESTORE = "snapshot() of a running episode does not raise", "restore(state) of an own snapshot does not raise"
SEES, GOES_ON = "restore(state) gives the observation of the snapshot", "after restore(state) the same actions give the same answers"
REFUSES, OUTSIDE = "restore(state) refuses what is not a snapshot", "snapshot() before reset() raises EpisodeOver"
UNTOUCHED = "snapshot() changes nothing"


def check_branches(make: Callable[[], Any], report: Report, scripts: list[Script]) -> None:
    """Try what a branch would do, in every episode that was played."""
    env = make()
    has = [callable(getattr(env, name, None)) for name in ("snapshot", "restore")]
    if all(has):
        _refuses(env, report)
        for script in scripts:
            _snapshots(make, report, script)
    elif any(has):
        report.add(PAIR, f"{type(env).__name__} has only {'snapshot' if has[0] else 'restore'}()")
    else:
        _replays(make, report, scripts)


def _refuses(env: Any, report: Report) -> None:
    try:
        env.snapshot()
        report.add(OUTSIDE, "it returned. Raise turnwise.envs.EpisodeOver there")
    except EpisodeOver:
        pass
    except Exception as error:
        report.add(OUTSIDE, f"it raised {one_line(error)}", own_lines(error))
    for odd in (b"", b"{}", b"\x00" * 100):
        try:
            env.restore(odd)
            report.add(REFUSES, f"it accepted {odd[:8]!r}. Raise turnwise.TurnwiseError there")
        except TurnwiseError:
            continue
        except Exception as error:
            report.add(REFUSES, f"{odd[:8]!r}: it raised {one_line(error)}. Raise turnwise.TurnwiseError there", own_lines(error))


def _snapshots(make: Callable[[], Any], report: Report, script: Script) -> None:
    """Play an episode again with a snapshot before every turn; restore the first, the middle and the last one in fresh instances."""
    env, where, states = make(), f"task {script.task.id!r}, seed {script.seed}", list[bytes | None]()
    try:
        again = Script(script.task, script.seed, read_observation(env.reset(script.task, script.seed), env))
        for action in script.actions:
            states.append(read_snapshot(env.snapshot(), env))
            again.transitions.append(read_transition(env.step(action), env))
            again.actions.append(action)
            if again.transitions[-1].done:
                break
    except BadAnswer as error:
        return report.add(error.rule, f"{where}, turn {len(again.actions)}: {error}", error.lines)
    except Exception as error:
        return report.add(SNAPSHOT, f"{where}, turn {len(states)}: {one_line(error)}", own_lines(error))
    if report.ok and list(map(essence, again.transitions)) != list(map(essence, script.transitions)):
        report.add(UNTOUCHED, f"{where}: with a snapshot before every turn the answers are others")
    kept = [(turn, state) for turn, state in enumerate(states) if state is not None]
    _weigh(report, [len(state) for _, state in kept])
    for place in sorted({0, len(kept) // 2, len(kept) - 1}) if kept else ():
        _restores(make, report, again, *kept[place])
    return None


def _weigh(report: Report, sizes: list[int]) -> None:
    before, largest = report.snapshot_bytes or 0, max(sizes, default=0)
    if sizes:
        report.snapshot_bytes = max(before, largest)
    if before <= LARGE < largest:
        report.notes.append(f"a snapshot takes {largest:,} bytes; a few thousand are usual, and a run keeps many")


def _restores(make: Callable[[], Any], report: Report, script: Script, turn: int, state: bytes) -> None:
    where = f"task {script.task.id!r}, seed {script.seed}, snapshot before turn {turn}"
    env = make()
    try:
        seen = read_observation(env.restore(state), env, "restore")
    except Exception as error:
        return report.add(RESTORE, f"{where}: {one_line(error)}", own_lines(error))
    if essence(seen) != essence(_observation_before(script, turn)):
        return report.add(SEES, f"{where}: text, actions or anchor differ")
    for later, (action, wanted) in enumerate(zip(script.actions[turn:], script.transitions[turn:], strict=True), turn):
        try:
            answer = read_transition(env.step(action), env)
        except Exception as error:
            return report.add(GOES_ON, f"{where}: turn {later}: {one_line(error)}", own_lines(error))
        if essence(answer) != essence(wanted):
            return report.add(GOES_ON, f"{where}: the answer of turn {later} differs")
    return None


def _observation_before(script: Script, turn: int) -> Observation:
    return script.transitions[turn - 1].observation if turn else script.first


def _replays(make: Callable[[], Any], report: Report, scripts: list[Script]) -> None:
    """Without snapshots a branch replays the actions. If that does not reach the same state, it is a note, not a broken rule."""
    pool = Pool(make, 1)  # never closed: the checker closes what it made
    for found in play_all(pool, (_way(script) for script in scripts if script.actions)):
        if not found.ok:
            remedy = "The class needs snapshot() and restore(state)"
            report.notes.append(f"a branch from the middle of an attempt would be dropped. {found.message}. {remedy}")
            return


def _way(script: Script) -> Play[Arrived]:
    """To the last turn of an episode, by its actions."""
    anchors = [_observation_before(script, turn).key for turn in range(len(script.actions))]
    return arrive(script.task, script.seed, script.actions[:-1], anchors)
