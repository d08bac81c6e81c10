"""All readings of all credits at the shown group size, as one table in Markdown."""

from __future__ import annotations

from typing import Any

READINGS = {"correlation": "correlation", "sign_accuracy": "right sign", "bias_squared": "bias²", "variance": "variance"}


def markdown(result: dict[str, Any]) -> str:
    """One table per problem, the best correlation first; upper bounds at the end."""
    settings, size = result["settings"], str(result["settings"]["shown_size"])
    bound = {line["label"]: line["bound"] for line in result["lines"]}
    lines = [
        "# Credit against the true advantage",
        "",
        f"Groups of {size}, {settings['budget']} trajectories per batch, {settings['seeds']} batches, seed {settings['seed']}. Mean ± half",
        "of the 95 % interval. Bias² and variance in units of the mean square of the true advantage; a dash: the credit has no",
        "signal to scale by. Samples: turns of the environment per turn that gets credit.",
    ]
    for problem, found in result["credit"].items():
        rows = {label: found[label][size] for label in bound}
        lines += [
            "",
            f"## {problem}",
            "",
            f"| credit | {' | '.join(READINGS.values())} | samples |",
            "|---|" + "---:|" * (len(READINGS) + 1),
        ]
        for label in sorted(rows, key=lambda name: (bound[name], -(rows[name]["correlation"]["mean"] or 0.0), name)):
            cells = " | ".join(cell(rows[label][reading]) for reading in READINGS)
            samples = "" if bound[label] else f"{result['samples'][problem][label]:.3g}"
            lines.append(f"| `{label}`{' (bound)' if bound[label] else ''} | {cells} | {samples} |")
    return "\n".join(lines) + "\n"


def cell(reading: dict[str, float | None]) -> str:
    """A mean with half of its interval; a dash if there is none."""
    mean, low, high = (reading.get(name) for name in ("mean", "low", "high"))
    if mean is None:
        return "–"
    digits = 2 if abs(mean) < 10 else 1
    return f"{mean:.{digits}f}" if low is None or high is None else f"{mean:.{digits}f} ± {(high - low) / 2:.{digits}f}"
