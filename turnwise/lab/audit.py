"""`turnwise lab audit`: what a credit function does to true advantages, over many independent batches of small problems.

The policy gradient of a credit is g = Σ credit · ∇ log π(action|state), over the turns of a batch. The policy is a table of logits by
state, so g has one component for each pair of state and action, and the true g comes from dynamic programming. With A the true advantage
of a pair, averaged over the turn numbers at which it is visited:

    correlation  Pearson's of credit and true advantage over the turns of a batch; mean over batches with its 95 % interval
    pairs        share of visits to pairs whose *mean* credit has A's sign; one within two standard errors of 0 counts half
    turns        share of turns whose *own* credit has the sign of their true advantage; a credit of exactly 0 counts half. Both shares
                 are the mean of two, for A > 0 and for A < 0, so that a credit that always has the same sign has one half
    scale        a, the least-squares slope over the problem: mean credit against true advantage, both relative to their mean over a state's
                 actions, each pair weighed by its visits. Credit divided by a deviation has no unit; a gives it the unit of the truth
    bias         root mean square over visits of (mean credit / a − A), relative to that of A, both relative to their state's mean: what is
                 added to all actions of a state leaves the expected gradient as it is
    p            of "the expected gradient is the true one times some number": the part of each batch's gradient that is orthogonal to the
                 truth has mean 0. Statistic: the sum over components of t²; its distribution: random signs of the batches. One test for all
                 components, so no correction for their number; over problems the verdict uses Holm's
    cosine       of the expected gradient with the true one. Its length is estimated by products of different batches, so noise does not
                 make it smaller; 95 % interval by the jackknife. None if the credit has no expected gradient
    against      share of visits to pairs whose component of the expected gradient is against the truth, by over two standard errors
    variance     of the gradient of a batch at equal length of its mean, divided by GRPO's on the same batches
    samples      turns of the environment per turn that gets credit

All turns weigh the same: what an objective does with lengths, ratios or clipping is not measured. Critics' values are the true values with
noise that stays the same in all batches: one critic, wrong by half a standard deviation of the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from turnwise.credit.segments import last_turns, pair, reverse_scan, segment_count, segment_sum, standardise
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.lab.experiment import rounded
from turnwise.lab.lines import ORACLE, Line, choose, read_line
from turnwise.lab.metrics import correlation, interval, policy_gradient
from turnwise.lab.problems import make
from turnwise.lab.sample import Batch
from turnwise.lab.signals import View
from turnwise.lab.study import Case, credit_of, make_case, play, stream, view_each
from turnwise.lab.values import exact_gradient, occupancy
from turnwise.util.statistics import holm, t_quantile
from turnwise.util.version import VERSION

CORRIDOR = "corridor:length=4:horizon="
SWEEPS = {  # question → level → problem: how often states repeat, how much is chance, how many turns there are, what a further turn pays
    "repetition": {"all": f"{CORRIDOR}16", "half": f"{CORRIDOR}16:recurrence=0.5", "none": f"{CORRIDOR}16:recurrence=0.0"},
    "luck": {text: f"bifurcation:branching=3:delay=2:luck={text}" for text in ("0.0", "0.2", "0.4")},
    "horizon": {text: f"{CORRIDOR}{text}" for text in ("8", "16", "32")},
    "stopping": {text: f"search:pay={text}" for text in ("0.0", "0.2", "0.4")},
}
SKILL, SIZE, CRITIC_NOISE, FLIPS = 0.2, 8, 0.5, 2000
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """`problems`: names with options instead of the sweeps. `batches` are independent, of `budget` trajectories each."""

    problems: Sequence[str] | None = None
    seed: int = 0
    batches: int = 128
    budget: int = 64

    def rows(self) -> list[tuple[str, str, str]]:
        """(question, level, problem) of each row."""
        if self.problems is not None:
            return [("", text, text) for text in self.problems]
        return [(question, level, text) for question, levels in SWEEPS.items() for level, text in levels.items()]


def audit(texts: Sequence[str] | None, settings: Settings) -> dict[str, Any]:
    """Every number of these credits; None: all that have their columns in the lab."""
    lines = [line for line in choose(texts) if line.name != ORACLE or texts is not None]
    rows = settings.rows()
    result: dict[str, Any] = {
        "format": 1,
        "turnwise": VERSION,
        "settings": asdict(settings) | {"group_size": SIZE, "skill": SKILL, "critic_noise": CRITIC_NOISE, "rows": rows},
        "references": {},
        "methods": {line.label: {"problems": {}, "controls": {}} for line in lines},
    }
    for problem in dict.fromkeys(text for _, _, text in rows):
        scene = make_scene(problem, settings)
        references = {
            "true advantage": scene.truth,
            "grpo": credit_of(read_line("grpo"), scene.views),
            "turn-index baseline": np.concatenate([turn_index(view.rollouts()) for view in scene.views]),
            "constant": np.ones(len(scene.truth)),
        }
        noise = gradient_noise(gradients(references["grpo"], scene))
        for name, credit in references.items():
            result["references"].setdefault(name, {})[problem] = examine(credit, scene, noise)
        for line in lines:
            credit = credit_of(line, scene.views)
            numbers = result["methods"][line.label]
            numbers["problems"][problem] = examine(credit, scene, noise) | {"samples": samples(line, scene)}
            for name, control in controls(line, credit, scene):
                numbers["controls"].setdefault(name, {})[problem] = examine(control, scene, noise)
    for numbers in result["methods"].values():
        numbers["biased"] = biased(numbers["problems"])
        anchors = numbers["controls"]["random anchors"]
        if all(one["correlation"] == numbers["problems"][problem]["correlation"] for problem, one in anchors.items()):
            del numbers["controls"]["random anchors"]  # it reads none
    return {name: rounded(part) for name, part in result.items()}


# -- what is measured ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """The batches of one problem, and the truth about them. `visits`, `advantage` and `gradient` are by pair of state and action: visits
    expected per trajectory, and the mean over them of the true advantage."""

    case: Case
    batch: Batch
    views: list[View]
    truth: Floats
    visits: Floats
    advantage: Floats
    gradient: Floats
    seed: int


def make_scene(text: str, settings: Settings) -> Scene:
    case, seed = make_case(text, make(text), SKILL), settings.seed
    batch = play(case, SIZE, settings.budget, settings.batches, seed, "audit")
    share = occupancy(case.problem, case.policy)
    spread = np.sqrt(np.average((case.value - np.average(case.value, weights=share)) ** 2, weights=share))
    noise = stream(seed, case.problem.name, "audit critic").normal(size=case.value.shape)
    critic = (case.value + CRITIC_NOISE * spread * noise)[batch.t, batch.state]
    views = view_each(case, batch, critic, partial(stream, seed, case.problem.name, "audit fresh"))
    visits, gradient = share.sum(axis=0)[:, None] * case.policy, exact_gradient(case.problem, case.policy)
    advantage = np.divide(gradient, visits, out=np.zeros_like(visits), where=visits > 0)
    advantage[np.abs(advantage) < 1e-9] = 0.0
    truth = case.advantage[batch.t, batch.state, batch.action]
    return Scene(case, batch, views, truth, visits.ravel(), advantage.ravel(), gradient.ravel(), seed)


def gradients(credit: Floats, scene: Scene) -> Floats:
    """The policy gradient of each batch per trajectory, [batches, states × actions]."""
    taken = policy_gradient(credit, scene.batch, scene.case.policy).reshape(len(scene.views), -1)
    return np.asarray(taken / (scene.batch.groups * scene.batch.size))


def examine(credit: Floats, scene: Scene, reference: float | None) -> Numbers:
    """All numbers of one credit on one problem; `reference` is the gradient noise that the variance is relative to."""
    g = gradients(credit, scene)
    noise = gradient_noise(g)
    return {
        "correlation": interval(correlation(credit, scene.truth, scene.batch.run, len(scene.views))),
        "pairs": sign_of_pairs(credit, scene),
        "turns": right_signs(credit, scene.truth, np.ones(len(credit))),
        **direction(g, scene),
        "variance": None if noise is None or reference is None else noise / reference,
    }


def samples(line: Line, scene: Scene) -> float:
    """Turns of the environment per turn that gets credit: 1, 1 more for what a critic learns from, and the turns of fresh attempts."""
    fresh = sum(view.spent for view in scene.views) if "turn.mc_value" in line.needs else 0
    return 1.0 + line.uses_critic + fresh / len(scene.truth)


def sign_of_pairs(credit: Floats, scene: Scene) -> float:
    """Of visits to pairs, the share whose mean credit has the sign of their true advantage; a mean that is not decided counts half."""
    batch, runs, pairs = scene.batch, len(scene.views), len(scene.visits)
    place = batch.run * pairs + batch.state * scene.case.problem.actions + batch.action
    sums = segment_sum(credit, place, runs * pairs).reshape(runs, pairs)
    counts = segment_count(place, runs * pairs).reshape(runs, pairs)
    number = np.maximum(counts.sum(axis=0), 1)
    mean = sums.sum(axis=0) / number
    error = np.sqrt(((sums - mean * counts) ** 2).sum(axis=0) * runs / (runs - 1)) / number
    return right_signs(np.where(np.abs(mean) > 2 * error + 1e-12, mean, 0.0), scene.advantage, scene.visits)


def right_signs(credit: Floats, truth: Floats, weight: Floats) -> float:
    """The share with the sign of the truth, averaged over truths above and below 0; a credit of 0 counts half."""
    right = np.where(credit == 0, 0.5, np.sign(credit) == np.sign(truth))
    sides = [weight * (truth > 0), weight * (truth < 0)]
    return float(np.mean([(side * right).sum() / side.sum() for side in sides if side.any()]))


def direction(g: Floats, scene: Scene) -> Numbers:
    """Scale, bias, p, cosine and share against the truth, of the gradients of independent batches."""
    seen = scene.visits > 0
    unit = np.sqrt(scene.visits[seen])
    x, truth = g[:, seen] / unit, scene.gradient[seen] / unit  # x·x is the mean over visits of the squared mean credit
    scale = x @ truth / (truth @ truth)
    slope, power = interval(scale), square_of_mean(x)
    certain = slope["low"] is not None and slope["high"] is not None and slope["low"] * slope["high"] > 0
    excess = power / (np.mean(scale) ** 2 * (truth @ truth)) - 1 if certain else 0.0
    mean, error = g.mean(axis=0), g.std(axis=0, ddof=1) / np.sqrt(len(g))
    opposed = (np.abs(mean) > 2 * error + 1e-12) & (mean * scene.gradient < 0)
    judged = scene.visits * (scene.advantage != 0)
    return {
        "scale": slope,
        "bias": float(np.sqrt(max(excess, 0.0))) if certain else None,
        "p": sign_flip_p(x - scale[:, None] * truth, stream(scene.seed, "flips")),
        "cosine": cosine(g, scene.gradient),
        "against": float((judged * opposed).sum() / judged.sum()),
    }


def square_of_mean(g: Floats) -> float:
    """|E g|² without the part that is noise: products of different batches only; it can be below 0."""
    return float(((g.sum(axis=0) ** 2).sum() - (g**2).sum()) / (len(g) * (len(g) - 1)))


def gradient_noise(g: Floats) -> float | None:
    """The variance of a batch's gradient at length 1 of its mean; None if that length is not established (four standard errors)."""
    squares, covariance = square_of_mean(g), np.atleast_2d(np.cov(g.T))
    error = np.sqrt(2 * (covariance**2).sum()) / len(g)
    return float(np.trace(covariance)) / squares if squares > max(4 * error, 1e-18) else None


def cosine(g: Floats, truth: Floats) -> dict[str, float | None]:
    """Of the expected gradient with the true one, with a 95 % interval by the jackknife over batches."""
    n = len(g)
    if gradient_noise(g) is None:
        return {"mean": None, "low": None, "high": None}
    sums, squares = g.sum(axis=0), (g**2).sum(axis=1)
    rest = sums - g
    power = np.maximum(((rest**2).sum(axis=1) - (squares.sum() - squares)) / ((n - 1) * (n - 2)), 1e-300)
    left_out = rest @ truth / (n - 1) / np.sqrt(power) / np.linalg.norm(truth)
    value = float(sums @ truth / n / np.sqrt(square_of_mean(g)) / np.linalg.norm(truth))
    half = t_quantile(0.975, n - 1) * float(np.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum()))
    return {name: float(np.clip(number, -1, 1)) for name, number in (("mean", value), ("low", value - half), ("high", value + half))}


def sign_flip_p(parts: Floats, rng: np.random.Generator) -> float | None:
    """p of "each column has mean 0", by random signs of the rows: the sum over columns of the squared t. None if nothing varies."""
    n, squares = len(parts), (parts**2).sum(axis=0)
    varying = squares > max(1e-20 * float(squares.max(initial=0.0)), 1e-24)
    if not varying.any():
        return None
    signs = np.concatenate([np.ones((1, n)), rng.integers(0, 2, (FLIPS, n)) * 2.0 - 1.0])
    share = (signs @ parts[:, varying]) ** 2 / (n * squares[varying])  # from 0 to 1, and t² grows with it
    statistic = (share / np.maximum(1 - share, 1e-9)).sum(axis=1)
    return float(np.mean(statistic >= statistic[0] * (1 - 1e-12)))


def biased(problems: dict[str, Numbers]) -> list[str]:
    """The problems on which the bias is established at 5 % over all of them, by Holm's correction."""
    tested = [name for name, numbers in problems.items() if numbers["p"] is not None]
    return [name for name, p in zip(tested, holm([problems[name]["p"] for name in tested]), strict=True) if p < 0.05]


# -- what it is compared with -------------------------------------------------------------------------------------------------------------


def controls(line: Line, credit: Floats, scene: Scene) -> Iterator[tuple[str, Floats]]:
    """Placebos, which must not look good: the credit of other turns, its opposite, other turns' anchors, no step credit if it has any."""
    rng = stream(scene.seed, scene.case.label, "controls")
    yield "shuffled between turns", credit[shuffled_within(scene.batch.run, rng)]
    yield "sign flipped", -credit
    group = scene.batch.run * scene.batch.groups + scene.batch.group
    order = shuffled_within(group, rng)
    batch = replace(scene.batch, anchor=scene.batch.anchor[order], next_anchor=scene.batch.next_anchor[order])
    views = [view.on(batch) for view in scene.views]
    reads = (line.credit(views[0]) != line.credit(scene.views[0])).any()
    yield "random anchors", credit_of(line, views) if reads else credit
    if line.options.get("omega"):
        yield "omega = 0", credit_of(replace(line, options={**line.options, "omega": 0.0}), scene.views)


def shuffled_within(part: Ints, rng: np.random.Generator) -> Ints:
    """A permutation of rows that are sorted by part, inside each part."""
    return np.asarray(np.lexsort((rng.random(len(part)), part)))


def turn_index(r: Rollouts) -> Floats:
    """A credit that is known to be biased where the policy decides when to stop. Rewards before the last turn are compared with those of
    the same turn number and summed from each turn on; the last turn's reward, the outcome, is compared among attempts. Each further turn
    subtracts one more mean, so it has a hidden price: the mean reward of a turn."""
    place, places = pair(r.group, np.where(last_turns(r), 0, r.t + 1))
    return reverse_scan(standardise(r.reward, place, places, "none"), 1.0, r.trajectory)
