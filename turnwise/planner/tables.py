"""What `turnwise fit`, a run on a small GPU and `turnwise cluster plan` say: tables, sentences and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.table import Table
from rich.text import Text

from turnwise.engines.prefill import ON_A_SMALL_GPU
from turnwise.learn.activations import FEWEST_TOKENS, logit_gradient_bytes
from turnwise.planner import fit as fitting
from turnwise.planner.choose import CACHE_PARTS, COSTS, least_cache
from turnwise.planner.cluster import Plan, describe, settings
from turnwise.planner.fit import GB, Found
from turnwise.planner.simulate import Result
from turnwise.util.console import Console

NEARLY = 1.05  # an estimate may be off by this much: a run is refused only beyond it
ESTIMATE = "Costs are estimates from operations and bytes at the rates of an H200; see docs/performance/small-gpu.md"
PHASES = {"collect": "collecting", "learn": "forward,\nbackward", "step": "optimiser\nstep"}
LABELS = {
    "prefill": "fewer prompt tokens at once",
    "cache": "cache size",
    "tokens": "fewer tokens at once",
    "recompute": "recomputation",
    "sleep": "cache released during updates",
    "reference": "reference in host memory",
    "place": "optimiser in host memory",
    "lora": "adapters",
    "four_bit": "4-bit weights",
}


# -- the choices of a recipe on one GPU -----------------------------------------------------------------------------------------------


def words(name: str, found: Found) -> str:
    """A choice in a few words."""
    after, layers = found.fit.demand, found.shape.layers
    again = layers - min(after.kept.mlp, layers)
    texts = {
        "prefill": f"{after.prefill:,} prompt tokens at once",
        "cache": f"a cache of {after.cache / GB:.2f} GB: {after.rows} of {after.slots} rows of the longest length at the same time",
        "tokens": f"{after.tokens:,} tokens at once",
        "recompute": f"activations of {again} of {layers} layers are computed again",
        "sleep": "the cache is released during an update",
        "reference": "the reference in host memory",
        "place": f"the optimiser's state in host memory, which then holds {after.host_bytes / GB:.1f} GB",
        "lora": f"adapters of rank {after.rank} instead of all weights, which changes what is learned",
        "four_bit": "the weights below the adapters in 4 bits, which rounds them",
    }
    return texts[name]


def keys(name: str, found: Found) -> str:
    """The setting of a choice as it is typed; empty if the learner decides as it runs."""
    one = fitting.settings(replace(found.fit, changed=(name,)))
    return " ".join(f"{key}={_typed(value)}" for key, value in one.items())


def choices(found: Found) -> list[dict[str, str]]:
    """Per choice: what, its setting, and its cost."""
    return [
        {"what": words(name, found), "setting": keys(name, found), "estimated_cost": COSTS[name](found.fit.demand).words}
        for name in found.fit.changed
    ]


def lines(found: Found) -> list[str]:
    """One line per choice."""
    return [f"{one['what']} ({one['setting'] or 'decided as it runs'}; estimated cost: {one['estimated_cost']})" for one in choices(found)]


def refusal(found: Found) -> str:
    """Why a run is not started, and what to do."""
    fit, memory = found.fit, found.fit.memory
    phase = max(PHASES, key=lambda name: fit.demand.totals[name])
    largest = sorted(fit.demand.terms, key=lambda term: -term.bytes.get(phase, 0))[:3]
    named = ", ".join(f"{term.name} {term.bytes.get(phase, 0) / GB:.1f}" for term in largest)
    needs = f"this GPU has {memory / GB:.1f} GB, and the run needs at least {fit.peak / GB:.1f} GB ({named} GB, …)"
    fixed = fixed_settings(found)
    if not fixed:
        return f"{needs} with every setting that saves memory. `turnwise fit RECIPE` shows all of it. Use {instead(found)}"
    return (
        f"{needs} with the recipe's {', '.join(fixed)}, and what a recipe sets is not changed. `turnwise fit RECIPE` shows all of it. "
        f"Leave that open ({', '.join(opened(fixed))}), or use {instead(found)}"
    )


def instead(found: Found) -> str:
    """What else would help if no setting that may be chosen is enough."""
    demand = found.fit.demand
    less = [] if demand.four_bit else ["a base in 4 bits (model.lora.base=4bit)" if demand.rank else "adapters (model.lora.rank=16)"]
    return ", ".join([*less, "a smaller model", "shorter prompts (agent.max_prompt_tokens)"]) + " or a larger GPU"


def fixed_settings(found: Found) -> list[str]:
    """The settings that the recipe makes, that keep memory from being saved, and that are never changed."""
    learner, engine, free = found.config.learner, found.config.engine, fitting.freedom(found.config, serving=found.engine)
    native, several = found.engine == "native", fitting.several_learners(found.config)
    size, prefill = engine.option("cache_memory"), engine.option("prefill_tokens") or 0
    demand = found.fit.demand
    small = demand.cache <= least_cache(demand, demand.slots // CACHE_PARTS[-1])  # no less would be chosen
    values = {
        "learner.tokens_per_batch": learner.tokens_per_batch if learner.tokens_per_batch > FEWEST_TOKENS else None,
        "learner.gradient_checkpointing": False if learner.gradient_checkpointing is False else None,
        "engine.options.cache_memory": size if native and not free.cache and not small else None,
        "engine.options.prefill_tokens": prefill if native and prefill > ON_A_SMALL_GPU else None,
        "engine.sleep": False if native and found.config.cluster is None and not free.sleep and not engine.sleep else None,
        "learner.optimiser_place": "device" if not (free.place or several) and learner.optimiser_place == "device" else None,
        "learner.reference_place": "device" if found.plain.demand.reference == "device" and not (free.reference or several) else None,
    }
    return [f"{key}={_typed(value)}" for key, value in values.items() if value is not None]


def opened(fixed: list[str]) -> list[str]:
    """What leaves these settings open: what to type, or to remove those that have no such value."""
    values = {"learner.tokens_per_batch": "0", "learner.gradient_checkpointing": "none", "learner.reference_place": "auto"}
    names = [text.partition("=")[0] for text in fixed]
    removed = [name for name in names if name not in values]
    return [f"{name}={values[name]}" for name in names if name in values] + ([f"remove {', '.join(removed)}"] if removed else [])


def _typed(value: object) -> str:
    """A value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}" if isinstance(value, float) else str(value)


# -- `turnwise fit` -------------------------------------------------------------------------------------------------------------------


def show(found: Found, name: str) -> None:
    """The memory of a recipe on one GPU."""
    console, fit = Console(wide=120), found.fit
    limit, title = f"{fit.memory / GB:g} GB", f"With these settings, model {found.shape.name}, in GB"
    if fit.changed:
        start = f"As it is, {name} would need about {found.plain.peak / GB:.1f} GB and does not fit into {limit}."
        console.print(Text(start), soft_wrap=True)
        console.print(Text("What would make it fit:" if fit.fits else "The most that can be saved:"), soft_wrap=True)
        table = Table(box=None, padding=(0, 2, 0, 0))
        for head in ("", "setting", "estimated cost"):
            table.add_column(head, overflow="fold", no_wrap=head == "setting")  # it is copied from here
        for one in choices(found):
            table.add_row(one["what"], one["setting"] or "(decided as it runs)", one["estimated_cost"])
        console.print(table)
    else:
        title = f"{name}, model {found.shape.name}, on a GPU with {limit}, in GB"
    console.print(memory_table(found, title))
    console.print(Text(_verdict(found)), soft_wrap=True)


def memory_table(found: Found, title: str) -> Table:
    """Gigabytes by term and phase; the largest sum is the peak."""
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("", no_wrap=True)
    for head in PHASES.values():
        table.add_column(head, justify="right", no_wrap=True)
    for term in found.fit.demand.terms:
        table.add_row(term.name, *(_number(term.bytes.get(phase, 0)) for phase in PHASES))
    sums = found.fit.demand.totals
    table.add_row("in all", *(f"{'*' if sums[phase] == found.fit.peak else ''}{_number(sums[phase])}" for phase in PHASES))
    return table


def overview(several: Sequence[Found], name: str) -> None:
    """One line per size of a GPU."""
    table = Table(title=f"{name}, model {several[0].shape.name}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for head in ("GPU", "peak, GB", "fits", "what is chosen"):
        table.add_column(head, overflow="fold")
    for found in several:
        chosen = ", ".join(LABELS[one] for one in found.fit.changed) or "nothing: as it is"
        table.add_row(f"{found.fit.memory / GB:g} GB", f"{found.fit.peak / GB:.1f}", "yes" if found.fit.fits else "no", chosen)
    notes = _notes(several[0])
    if (fixed := fixed_settings(several[0])) and not all(found.fit.fits for found in several):
        notes.append(_fixed(fixed))
    console = Console(wide=120)
    console.print(table)
    for note in (*notes, "One of them in detail: --memory GB."):
        console.print(Text(note), soft_wrap=True)


def _verdict(found: Found) -> str:
    fit = found.fit
    state = "It fits" if fit.fits else "It does not fit"
    first = f"{state}: the peak is {fit.peak / GB:.1f} of {fit.memory / GB:g} GB, in the phase with a star. {_optional(found)}{ESTIMATE}."
    notes = _notes(found)
    if fit.memory < fit.peak <= NEARLY * fit.memory:
        notes.append("`turnwise train` would try it nevertheless: the estimate may be off by 5 %.")
    if (fixed := fixed_settings(found)) and not (fit.fits and not fit.changed):
        notes.append(_fixed(fixed))
    if not fit.fits:
        notes.append(f"{'Or use' if fixed else 'Use'} {instead(found)}.")
    return "\n".join((first, *notes))


def _notes(found: Found) -> list[str]:
    """What a reader of the numbers has to know."""
    notes = []
    if found.engine != found.config.engine.name:
        notes.append(
            f"The {found.config.engine.name} engine does not take models of the family {found.shape.family}: {found.engine} serves it."
        )
    if found.shape.vision:
        notes.append("The model's vision part is not counted: its weights take as many bytes each as the others, and images activations.")
    if found.config.cluster is not None:
        notes.append(
            "The recipe has a [cluster] section. This is learner, engine and cache on one GPU; a cluster divides them among several."
        )
    return notes


def _optional(found: Found) -> str:
    """What the learner takes because there is room, and would do without."""
    demand = found.fit.demand
    size = logit_gradient_bytes(demand.shape, demand.sampled, demand.width) if demand.kept.logit_gradients else 0
    return f"{size / GB:.1f} GB of logit gradients are optional: they are cached because there is room. " if size >= 5 * 10**7 else ""


def _fixed(fixed: list[str]) -> str:
    return f"The recipe sets {', '.join(fixed)}; such settings are never changed. To leave them open: {', '.join(opened(fixed))}."


def _number(size: int) -> str:
    return f"{size / GB:.2f}" if size >= 5_000_000 else "" if size == 0 else "0.00"


def fit_as_data(found: Found) -> dict[str, Any]:
    """The same as plain values."""
    fit = found.fit
    return {
        "model": found.shape.name,
        "engine": found.engine,
        "parameters": found.shape.parameters,
        "memory_gb": fit.memory / GB,
        "fits": fit.fits,
        "peak_gb": round(fit.peak / GB, 3),
        "as_it_is_gb": round(found.plain.peak / GB, 3),
        "terms_gb": {term.name: {phase: round(size / GB, 4) for phase, size in term.bytes.items()} for term in fit.demand.terms},
        "phases_gb": {phase: round(size / GB, 3) for phase, size in fit.demand.totals.items()},
        "choices": choices(found),
        "settings": found.settings,
        "estimate": True,
    }


# -- `turnwise cluster plan` ----------------------------------------------------------------------------------------------------------

SIMULATED = "Simulated with service times measured on one H200; nothing was run on these GPUs. Assumptions: docs/guides/cluster-planning.md"
COLUMNS = ("", "learners", "engines", "GPUs\neach", "attempts\nper s", "iter.\nper h", "learners\nidle", "engines\nidle")


def plan_as_data(plan: Plan) -> dict[str, Any]:
    """The plan as plain values."""
    question = asdict(plan.question)
    rows = [row(result) | {"settings": settings(result), "best": result is plan.best} for result in plan.results]
    return {"simulated": True, "question": question, "parameters": plan.shape.parameters, "splits": rows}


def row(result: Result) -> dict[str, Any]:
    """One split as plain values."""
    layout = result.layout
    return {
        "learners": layout.learners,
        "engines": layout.engines,
        "tensor_parallel": layout.tensor_parallel,
        "colocated": layout.colocated,
        "staleness": result.staleness,
        "groups_per_engine": layout.capacity,
        "trajectories_per_s": round(result.trajectories_per_s, 4),
        "iterations_per_h": round(result.iterations_per_h, 4),
        "learner_idle": round(result.learner_idle, 4),
        "engine_idle": round(result.engine_idle, 4),
        "seconds": {part: round(value, 2) for part, value in result.parts.items()},
    }


def split_table(plan: Plan) -> Table:
    """One row per split; the best one has a star."""
    work, gpus = plan.question.work, plan.question.gpus
    shown = Table(
        title=f"{plan.shape.name} on {gpus} GPU{'' if gpus == 1 else 's'}: {work.groups} groups × {work.group_size}, up to {work.turns} "
        f"turns, {work.context} context",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for heading in (*COLUMNS, "seconds: wait,\npack, learn, send"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in plan.results:
        layout = result.layout
        shown.add_row(
            "*" if result is plan.best else "",
            f"{layout.learners}",
            f"{layout.engines}" + (" colocated" if layout.colocated else ""),
            f"{layout.tensor_parallel}",
            f"{result.trajectories_per_s:.2f}",
            f"{result.iterations_per_h:.1f}",
            f"{result.learner_idle:.0%}",
            f"{result.engine_idle:.0%}",
            " ".join(f"{seconds:.1f}" for seconds in result.parts.values()),
        )
    return shown


def summary(plan: Plan) -> str:
    """The best split in one sentence, and what kind of numbers these are."""
    best, gpus = plan.best, plan.question.gpus
    groups = f"{best.layout.capacity} group{'' if best.layout.capacity == 1 else 's'}"
    sentences = [
        f"Best: {describe(best.layout)}: {best.trajectories_per_s:.2f} trajectories/s, {best.iterations_per_h:.1f} iterations/h. "
        f"An engine runs up to {groups} at once."
    ]
    if left := gpus - best.layout.gpus:
        sentences.append(f"{left} of {gpus} GPUs would have nothing to do: no further engine of {best.layout.tensor_parallel} GPUs fits.")
    overrides = " ".join(f"{name}={value}" for name, value in settings(best).items())
    sentences.append(f"In a run: turnwise train RECIPE {overrides}" if overrides else "In a run: leave out the [cluster] section.")
    if best.layout.tensor_parallel > 1:
        sentences.append(
            "Engines on several GPUs need vLLM, and are simulated with the speed of the native engine: compare --tensor-parallel 1."
        )
    return "\n" + "\n".join([*sentences, f"{SIMULATED}."])
