"""Warnings that help: small rules over the metrics of the iterations so far, each with what to try.

A rule is a function of the logged lines; it returns a text if there is trouble, and None otherwise. Rules look at several iterations,
because one noisy line is not a problem, and ignore what is normal in a good run: entropy that falls while success is high, anchors that
do not repeat under an algorithm that uses none. A false alarm is worse than none: it teaches people to ignore warnings.

Each warning is shown at most once in `EVERY` iterations. Earlier warnings are read from the run's own file, so a killed and resumed run
shows the same ones as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnwise.runs.folder import Run

Line = Mapping[str, float]
Lines = Sequence[Line]
Rule = Callable[[Lines, str], str | None]

EVERY = 25  # iterations before the same warning is shown again
RECENT = 5  # iterations that a rule about the current state looks at
BRIEF = 3  # the same if the trouble is obvious at once, or expensive

ENTROPY_FLOOR = 0.03  # nats per token; below this nearly every token is certain and attempts hardly differ
ENTROPY_SHARE = 0.2  # of the value at the start: small models with short answers start low, and that alone is not a problem
ENTROPY_RISE = (2.0, 0.5)  # times the value at the start, and nats above it: attempts are then mostly random
MASTERED = 0.9  # success above this explains low entropy and equal groups
NO_CREDIT = 0.95  # share of turns without any credit that leaves an update nothing to learn from
REPEATS_BEYOND_START = 0.02  # share of turns, except the first ones, that must share a state for GiGPO to differ from GRPO
CUT_OFF = 0.1  # share of responses that end at the token limit
LOOPING = 0.3  # share of turns whose anchor group one single trajectory fills
ENGINE_GAP = 0.1  # mean |difference of log-probs| between engine and learner: ratios are then off by a tenth before anything is learned
ENGINE_KL = 0.05  # the same as a divergence, which sees rare large gaps
EFFECTIVE = 0.6  # effective share of samples: runs with less lost success, in the table of docs/measurements/2026-11-cluster.md
INVALID = 0.3  # share of turns without an action that could be read
GETTING_BETTER = 0.8  # of the share at the start: what falls by itself needs no warning
FAULTS = 0.1  # share of attempts lost to faults of environment or engine
LOST_HALF = 0.5  # success in training, relative to its best stretch, below which something is being unlearned
HOPELESS = 0.05  # success in training below which there is almost nothing to reinforce
WORTH_LOSING = 0.3  # best success below which a loss is mostly noise
LOST_POINTS = 0.15  # held-out success lost since the best evaluation, if the intervals do not even touch


def column(lines: Lines, name: str) -> list[float]:
    """The values of a metric, for the iterations in which it was logged."""
    return [float(line[name]) for line in lines if name in line]


def newest(lines: Lines, count: int) -> Lines:
    """The last `count` iterations; empty if there are not that many yet."""
    last = [line for line in lines[-count:] if line["iteration"] > 0]
    return last if len(last) == count else []


def recent(lines: Lines, name: str, count: int = RECENT) -> float | None:
    """The median of the last `count` iterations, which one unusual line does not move; None if one of them lacks the metric."""
    values = column(newest(lines, count), name)
    return median(values) if len(values) == count else None


def share_of(lines: Lines, part: str, whole: Sequence[str], count: int = BRIEF) -> float | None:
    """The median of part / Σ whole over the last `count` iterations."""
    last = newest(lines, count)
    totals = [sum(float(line.get(name, 0.0)) for name in whole) for line in last]
    if not totals or min(totals) <= 0:
        return None
    return median(float(line.get(part, 0.0)) / total for line, total in zip(last, totals, strict=True))


def compares_states(credit: str) -> bool:
    """Whether an algorithm compares turns that started from the same state."""
    from turnwise.credit import parts

    return "step" in parts(credit)


def entropy_collapse(lines: Lines, credit: str) -> str | None:
    """Equal attempts teach nothing, and a deterministic policy does not recover."""
    values = column(lines, "learner/entropy")
    now, success = recent(lines, "learner/entropy"), recent(lines, "collect/success")
    if now is None or len(values) < 2 * RECENT or success is None:
        return None
    start = sum(values[:RECENT]) / RECENT
    if now >= ENTROPY_FLOOR or now >= ENTROPY_SHARE * start or success >= MASTERED:
        return None
    return (
        f"entropy has collapsed: {now:.3f} nats per token, {start:.3f} at the start, and success is {success:.0%}. "
        "Try a lower learner.lr, objective.kl=loss, objective.entropy_coef=0.001, or a higher objective.clip_high (0.28)"
    )


def entropy_rise(lines: Lines, credit: str) -> str | None:
    """The policy diverges: it becomes more random and does not win more often."""
    values, won = column(lines, "learner/entropy"), column(lines, "collect/success")
    now, success = recent(lines, "learner/entropy"), recent(lines, "collect/success")
    if now is None or success is None or min(len(values), len(won)) < 2 * RECENT:
        return None
    start, times, above = sum(values[:RECENT]) / RECENT, *ENTROPY_RISE
    if now < times * start or now < start + above or success > sum(won[:RECENT]) / RECENT + LOST_POINTS:
        return None
    return (
        f"entropy rises and success does not: {now:.2f} nats per token, {start:.2f} at the start, success {success:.0%}. The policy comes "
        "apart. Try a lower learner.lr, a longer learner.warmup, a smaller objective.entropy_coef, or objective.kl=loss"
    )


def hopeless(lines: Lines, credit: str) -> str | None:
    """Hardly any attempt has succeeded for a while: only noise moves the policy."""
    last = column(newest(lines, 2 * RECENT), "collect/success")
    if len(last) < 2 * RECENT or sum(last) / len(last) > HOPELESS or (recent(lines, "credit/zero_share") or 0.0) >= NO_CREDIT:
        return None
    return (
        f"nearly every attempt fails: success is {sum(last) / len(last):.1%} over the last {len(last)} iterations, and there is next to "
        "nothing to reinforce. Try a longer warm start (sft.until, sft.steps), easier tasks, or a reward that pays for parts of the way"
    )


def no_credit(lines: Lines, credit: str) -> str | None:
    """Nearly every turn has credit 0: the attempts of each group all ended the same way."""
    share, success = recent(lines, "credit/zero_share"), recent(lines, "collect/success")
    last = newest(lines, RECENT)
    if last and not any(line.get("collect/trajectories") for line in last):
        share, success = 1.0, None
    if share is None or share < NO_CREDIT:
        return None
    start = f"{share:.0%} of the turns of the last {RECENT} iterations have no credit, so updates have almost nothing to go by"
    if success is None:
        return f"{start}. Try tasks of another difficulty, a larger collect.group_size, or a warm start ([sft])"
    if success >= MASTERED:
        return f"{start}: nearly every attempt succeeds. Stop here, or train on harder tasks"
    if success <= 1 - MASTERED:
        return f"{start}: nearly every attempt fails. Try easier tasks, a warm start ([sft]), or a reward that pays for parts of the way"
    return f"{start}: attempts at a task all get the same return. Try a larger collect.group_size or plan.name=dynamic"


def no_repeated_anchors(lines: Lines, credit: str) -> str | None:
    """After the first turn, which a group always shares, no state is visited twice: step credit is 0 and GiGPO is GRPO."""
    alone, length = recent(lines, "credit/singleton_share"), share_of(lines, "collect/turns", ["collect/trajectories"], RECENT)
    if not compares_states(credit) or alone is None or length is None or length < 2:
        return None
    if 1 - alone > 1 / length + REPEATS_BEYOND_START:
        return None
    return (
        f"hardly any state is visited twice ({alone:.0%} of turns stand alone): {credit} can then only compare whole attempts. "
        "Give observations an anchor that leaves out what is always new (clocks, ids), or try credit.anchors=similar if the algorithm has "
        "it, or a larger collect.group_size"
    )


def cut_off(lines: Lines, credit: str) -> str | None:
    """Responses that end at the limit lose their action, and the learner sees half a thought. If they used to end by themselves, a higher
    limit would not help."""
    share = share_of(lines, "collect/truncated", ["collect/generations"])
    if share is None or share < CUT_OFF:
        return None
    first = [line for line in lines[: BRIEF + 1] if line["iteration"] > 0][:BRIEF]
    before = share_of(first, "collect/truncated", ["collect/generations"])
    if before is not None and before < CUT_OFF / 5:
        return (
            f"{share:.0%} of the responses end at the token limit, and {before:.1%} did at the start: the model forgets how to end one. "
            "Try a lower learner.lr, or objective.kl=loss with a larger objective.kl_coef"
        )
    return f"{share:.0%} of the responses end at the token limit. Raise engine.max_tokens, or ask for shorter thoughts in the prompt"


def looping(lines: Lines, credit: str) -> str | None:
    """An attempt that walks in circles is compared with itself."""
    share = recent(lines, "credit/one_trajectory_share")
    if not compares_states(credit) or share is None or share < LOOPING:
        return None
    return (
        f"{share:.0%} of the turns stand in anchor groups that one looping attempt fills alone, where it is compared with itself. "
        f"Try credit.once=true if the algorithm has it, a lower env.max_turns, or a reward term that costs a little per turn"
    )


def engine_drift(lines: Lines, credit: str) -> str | None:
    """Engine and learner disagree about the same tokens, so the ratio starts wrong. Data that is older than the weights differs anyway."""
    gap, kl = recent(lines, "learner/engine_gap", BRIEF), recent(lines, "learner/engine_kl_k3", BRIEF)
    if recent(lines, "cluster/age", BRIEF):
        return None
    if gap is None or (gap < ENGINE_GAP and (kl is None or kl < ENGINE_KL)):
        return None
    return (
        f"engine and learner drift apart: their log-probs of the same tokens differ by {gap:.3f} on average. Try "
        "objective.importance=truncate, learner.old_logprobs=learner, model.dtype=float32, or engine.name=transformers to find the cause"
    )


def old_data(lines: Lines, credit: str) -> str | None:
    """The policy has moved far from the weights that sampled a batch, so few of its tokens still count."""
    share, age = recent(lines, "cluster/effective_share"), recent(lines, "cluster/age")
    if share is None or not age or share >= EFFECTIVE:
        return None
    return (
        f"the data is {age:.1f} updates old, and the policy has moved so far since that only {share:.0%} of the samples count "
        "(cluster/effective_share). Try a lower cluster.staleness, or a lower learner.lr"
    )


def many_invalid(lines: Lines, credit: str) -> str | None:
    """Many responses hold no action, and it is not getting better."""
    now, all_of_it = recent(lines, "collect/invalid", BRIEF), column(lines, "collect/invalid")
    if now is None or now < INVALID or all_of_it[-1] < GETTING_BETTER * all_of_it[0]:
        return None
    return (
        f"{now:.0%} of the turns hold no action that could be read (collect/problem/… says why). Look at a few with `turnwise play "
        "--agent RUN`; try another agent.prompt, more engine.max_tokens, a warm start ([sft]), or credit.invalid_penalty"
    )


def faults(lines: Lines, credit: str) -> str | None:
    """Attempts are lost to faults, and the remaining ones may be a biased sample."""
    share = share_of(lines, "collect/faults", ["collect/trajectories", "collect/faults"])
    if share is None or share < FAULTS:
        return None
    return (
        f"{share:.0%} of the attempts were lost to faults of the environment or the engine. Check it with `turnwise envs --check NAME`; "
        "env.timeout and env.memory_mb set its limits"
    )


def fallen(lines: Lines, credit: str) -> str | None:
    """Success is far below its best: by evaluations whose intervals do not touch, or by half in training."""
    measured = [line for line in lines if "eval/success" in line]
    if "eval/success" in lines[-1] and measured:
        best = max(measured, key=lambda line: line["eval/success"])
        lost = best["eval/success"] - lines[-1]["eval/success"]
        if lost >= LOST_POINTS and lines[-1]["eval/high"] < best["eval/low"]:
            return _fallen("held-out success", lines[-1]["eval/success"], best["eval/success"], int(best["iteration"]))
    values = column(lines, "collect/success")
    now = recent(lines, "collect/success")
    if now is None or len(values) < 4 * RECENT:
        return None
    means = [sum(values[at : at + RECENT]) / RECENT for at in range(len(values) - RECENT + 1)]
    best_mean = max(means)
    if best_mean < WORTH_LOSING or now > LOST_HALF * best_mean:
        return None
    last = lines[-1]["iteration"]
    return _fallen("success in training", now, best_mean, int(last) - len(values) + means.index(best_mean) + RECENT)


def _fallen(what: str, now: float, best: float, when: int) -> str:
    return (
        f"{what} has fallen to {now:.0%}; its best was {best:.0%} at iteration {when}. `turnwise export RUN FOLDER --best` saves the best "
        "checkpoint; try a lower learner.lr or objective.kl=loss"
    )


RULES: Mapping[str, Rule] = {
    "entropy": entropy_collapse,
    "entropy rise": entropy_rise,
    "hopeless": hopeless,
    "no credit": no_credit,
    "anchors": no_repeated_anchors,
    "length limit": cut_off,
    "looping": looping,
    "engine drift": engine_drift,
    "old data": old_data,
    "invalid": many_invalid,
    "faults": faults,
    "fallen": fallen,
}


def troubles(lines: Lines, credit: str) -> dict[str, str]:
    """The text of every rule that finds trouble in these lines, by the rule's name. `credit` names the algorithm."""
    texts = {name: rule(lines, credit) for name, rule in RULES.items()} if lines else {}
    return {name: text for name, text in texts.items() if text is not None}


class Watch:
    """Looks at a run after every iteration."""

    def __init__(self, run: Run):
        self._run = run
        self._lines: list[Line] = [line for line in run.metrics() if line["iteration"] > 0]  # the loop does not show it the warm start's
        self._last = {str(record.get("name")): int(record["iteration"]) for record in run.warnings()}

    def __call__(self, metrics: Line, credit: str, say: Callable[[str], None]) -> None:
        """Report what is wrong, if anything is, and write it into the run's folder. `metrics` is the newest line."""
        iteration = int(metrics["iteration"])
        if not self._lines or self._lines[-1]["iteration"] < iteration:
            self._lines.append(metrics)
        for name, text in troubles(self._lines, credit).items():
            if iteration - self._last.get(name, -EVERY) >= EVERY:
                self._run.warn({"iteration": iteration, "name": name, "text": text})
                self._last[name] = iteration
                say(f"warning: {text}")
