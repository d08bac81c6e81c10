"""Where a GPU is busy and where it waits for the host, from torch's profiler: a summary, and a picture as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from turnwise.util.files import write_text_atomically

WIDTH, MARGIN, ROW = 1000, 110, 22
SHOWN = 25_000  # microseconds in the picture
KINDS = {"attention": "#4477aa", "products": "#228833", "draw": "#ee6677", "copies": "#ccbb44", "other": "#aa3377"}


def kind_of(name: str) -> str:
    """The kind of a kernel, by its name."""
    low = name.lower()
    if "memcpy" in low or "memset" in low:
        return "copies"
    if any(part in low for part in ("_single", "_prompt", "_merge", "_rotate")):
        return "attention"
    if any(part in low for part in ("_draw", "_choose", "_of_logits", "_of_hidden")):
        return "draw"
    return "products" if any(part in low for part in ("nvjet", "gemm", "cutlass", "splitk")) else "other"


@dataclass(frozen=True)
class Timeline:
    """Kernels of one run as (start, end, kind), in microseconds from the first one's start."""

    name: str
    spans: list[tuple[float, float, str]]
    launches: int

    @classmethod
    def of(cls, name: str, events: Iterable[Any]) -> Timeline:
        spans, launches = [], 0
        for event in events:
            launches += "Launch" in event.name
            if "CUDA" in str(event.device_type):
                spans.append((float(event.time_range.start), float(event.time_range.end), kind_of(event.name)))
        spans.sort()
        first = spans[0][0] if spans else 0.0
        return cls(name, [(a - first, b - first, kind) for a, b, kind in spans], launches)

    def gaps(self) -> list[tuple[float, float]]:
        """When no kernel ran."""
        found, end = [], 0.0
        for start, stop, _ in self.spans:
            if start > end:
                found.append((end, start))
            end = max(end, stop)
        return found

    def summary(self) -> dict[str, Any]:
        length = max((stop for _, stop, _ in self.spans), default=0.0)
        idle = sum(stop - start for start, stop in self.gaps())
        kinds: Counter[str] = Counter()
        for start, stop, kind in self.spans:
            kinds[kind] += (stop - start) / 1000
        waits = sum(stop - start for start, stop in self.gaps() if stop - start > 20)
        return {
            "ms": length / 1000, "busy": 1 - idle / length if length else 0.0, "kernels": len(self.spans), "launches": self.launches,
            "ms_in_gaps_over_20_us": waits / 1000, **{f"ms {kind}": ms for kind, ms in kinds.most_common()},
        }  # fmt: skip


def picture(lines: list[Timeline], path: Path) -> None:
    """One row of kernels per run, on a common scale: white is a GPU that waits."""
    scale = (WIDTH - MARGIN - 10) / SHOWN
    parts = []
    for number, line in enumerate(lines):
        top, length = 30 + number * 2 * ROW, max((stop for _, stop, _ in line.spans), default=0.0)
        middle = max(0.0, length / 2 - SHOWN / 2)  # the middle of the run
        parts.append(f'<text x="4" y="{top + 15}">{escape(line.name)}</text>')
        parts.append(f'<rect x="{MARGIN}" y="{top}" width="{SHOWN * scale:.1f}" height="{ROW}" fill="#fff" stroke="#999"/>')
        parts += [
            f'<rect x="{MARGIN + (a - middle) * scale:.2f}" y="{top}" width="{max((b - a) * scale, 0.05):.2f}" height="{ROW}" '
            f'fill="{KINDS[kind]}"/>'
            for a, b, kind in line.spans
            if a >= middle and b <= middle + SHOWN
        ]
        busy = line.summary()["busy"]
        parts.append(f'<text x="{MARGIN}" y="{top + ROW + 14}" fill="#555">{line.launches} launches, GPU busy {busy:.0%}</text>')
    for number, (kind, colour) in enumerate(KINDS.items()):
        x = MARGIN + number * 120
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="18">{kind}</text>')
    note = f"{SHOWN // 1000} ms, seen through a profiler"
    parts.append(f'<text x="{WIDTH - 10}" y="18" text-anchor="end" fill="#555">{note}</text>')
    height = 40 + len(lines) * 2 * ROW
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
    back = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    write_text_atomically(path, "\n".join([head, back, *parts, "</svg>"]) + "\n")
