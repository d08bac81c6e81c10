"""Tasks that are done by dragging, highlighting and pointing."""

from __future__ import annotations

import math
import re

from turnwise_envs.miniwob.experts.base import expert, first, nth, press, said
from turnwise_envs.miniwob.view import Item, Look

SHIFT = 2  # pixels: pages that draw a point put it that far from the mouse


@expert("highlight-text", "highlight-text-2")
def highlight(look: Look) -> str | None:
    (place,) = said(look, r"the (\w+) paragraph and")
    found = look.find(kind="text")
    item = found[nth(place) - 1] if re.match(r"\d", place) else found[0]
    return press(look) if look.whole.rpartition("|")[2].strip() else f'select {item.n} "{item.text}"'


@expert("drag-circle", "drag-single-shape")
def drag(look: Look) -> str | None:
    (way,) = said(look, r"(up|down|left|right)")
    item = next(item for item in look.items if item.place)
    x, y = item.middle
    if item.n in look.clicked:
        return press(look)
    step = {"up": (x, max(52, y - 30)), "down": (x, min(205, y + 30)), "left": (max(2, x - 30), y), "right": (min(155, x + 30), y)}[way]
    return f"drag {item.n} to {step[0]} {step[1]}"


@expert("drag-box")
def drag_box(look: Look) -> str | None:
    small, large = first(look, text="s"), first(look, text="L")
    if small is None or large is None:
        return None
    inside = large.x <= small.x and large.y <= small.y and small.x + small.width <= large.x + large.width
    return press(look) if inside and small.y + small.height <= large.y + large.height else f"drag {small.n} to {large.n}"


@expert("drag-shapes")
def drag_shapes(look: Look) -> str | None:
    (name,) = said(look, r"Drag all (\w+?)s? into")
    kind = {"triangle": "polygon", "circle": "circle", "rectangle": "rect", "square": "rect"}[name]
    target = max(look.find(kind="rect"), key=lambda item: item.width)
    left = [item for item in look.find(kind=kind) if item is not target and not _inside(item, target)]
    return f"drag {left[0].n} to {_free(left[0], target)}" if left else press(look)


def _inside(item: Item, target: Item) -> bool:
    x, y = item.middle
    return target.x < x < target.x + target.width and target.y < y < target.y + target.height


def _free(item: Item, target: Item) -> str:
    """A place inside the target, different for different items."""
    column, row = item.n % 3, item.n // 3 % 2
    return f"{target.x + 12 + column * (target.width - 24) // 2} {target.y + 12 + row * (target.height - 24)}"


@expert("drag-shapes-2")
def drag_apart(look: Look) -> str | None:
    boxes = sorted([item for item in look.find(kind="rect") if item.width > 40], key=lambda item: item.x)
    shapes = [item for item in look.items if item.place and item.width < 40]
    word, side = said(look, r"Drag all (\w+)(?: shapes)? into the (left|right) box")
    kinds = {"triangles": "polygon", "circles": "circle", "rectangles": "rect"}
    for item in shapes:
        fits = item.kind == kinds[word] if word in kinds else item.colour == word
        target = boxes[0 if fits == (side == "left") else 1]
        if not _inside(item, target):
            return f"drag {item.n} to {_free(item, target)}"
    return press(look)


@expert("drag-items")
def drag_item(look: Look) -> str | None:
    name, place = said(look, r"Drag (\w+) (?:to the )?(.*?)\.")
    items = [item for item in look.items if item.n and item.kind in ("text", "item") and item.height > 5]
    here = next((number for number, item in enumerate(items) if item.text == name), None)
    if here is None:
        return None
    ordered = re.search(r"(\d)\w+ position", place)
    steps = {"top": -here, "bottom": len(items) - 1 - here, "up by one position": -1, "down by one position": 1}
    there = int(ordered[1]) - 1 if ordered else here + steps.get(place.removeprefix("the "), 0)
    target = items[max(0, min(len(items) - 1, there))]
    x, y = target.middle
    return f"drag {items[here].n} to {x} {y - 8 if there < here else y + 8}"


@expert("drag-sort-numbers")
def sort_numbers(look: Look) -> str | None:
    items = [item for item in look.items if re.fullmatch(r"-?\d+", item.text)]
    numbers = [int(item.text) for item in items]
    for place, (number, wanted) in enumerate(zip(numbers, sorted(numbers), strict=True)):
        if number != wanted:
            here = place + numbers[place:].index(wanted)
            x, y = items[place].middle
            return f"drag {items[here].n} to {x} {y - 8}"
    return press(look)


@expert("circle-center")
def center(look: Look) -> str | None:
    circles = sorted(look.find(kind="circle"), key=lambda item: -item.width)
    return press(look) if len(circles) > 1 else f"click {circles[0].middle[0] - SHIFT} {circles[0].middle[1] - SHIFT}"


@expert("find-midpoint")
def midpoint(look: Look) -> str | None:
    points = [item.middle for item in look.find(kind="circle")]
    return press(look) if len(points) > 2 else " ".join(["click", *(str((a + b) // 2 - SHIFT) for a, b in zip(*points, strict=True))])


@expert("right-angle")
def right_angle(look: Look) -> str | None:
    corner, other = first(look, kind="circle", colour="blue"), first(look, kind="circle", colour="black")
    if corner is None or other is None or len(look.find(kind="circle")) > 2:
        return press(look)
    (x, y), (a, b) = corner.middle, other.middle
    across, down = -(b - y), a - x
    return f"click {' '.join(str(value) for value in _bounded(x, y, across, down))}"


@expert("bisect-angle")
def bisect(look: Look) -> str | None:
    corner = first(look, kind="circle", colour="blue")
    ends = look.find(kind="circle", colour="black")
    if corner is None or len(ends) != 2 or len(look.find(kind="circle")) > 3:
        return press(look)
    x, y = corner.middle
    parts = [(item.middle[0] - x, item.middle[1] - y) for item in ends]
    across, down = (sum(part[axis] / math.hypot(*part) for part in parts) for axis in (0, 1))
    return f"click {' '.join(str(value) for value in _bounded(x, y, across, down))}"


def _bounded(x: int, y: int, across: float, down: float) -> tuple[int, int]:
    """A point of the drawing in this direction, as far away as fits."""
    length = math.hypot(across, down) or 1.0
    for far in range(90, 4, -1):
        a, b = x + across / length * far, y + down / length * far
        if 6 < a < 150 and 56 < b < 176:
            return round(a) - SHIFT, round(b) - SHIFT
    return round(x + across / length * 10), round(y + down / length * 10)


@expert("draw-line")
def draw_line(look: Look) -> str | None:
    (way,) = said(look, r"a (vertical|horizontal) line")
    dot = next(item for item in look.find(kind="circle") if item.width >= 7)
    if len([item for item in look.items if item.place]) > 1:
        return press(look)
    x, y = dot.middle
    return f"drag {x} 60 to {x} 165" if way == "vertical" else f"drag 10 {y} to 145 {y}"


@expert("resize-textarea")
def resize(look: Look) -> str | None:
    axis, way = said(look, r"the (width|height) is (larger|smaller)")
    handle = next(item for item in look.items if item.text == ("resizable-e" if axis == "width" else "resizable-s"))
    x, y = handle.middle
    here, far = (x, 130 if way == "larger" else 40) if axis == "width" else (y, 180 if way == "larger" else 85)
    if here >= far - 3 if way == "larger" else here <= far + 3:
        return press(look)
    return f"drag {handle.n} to {far} {y}" if axis == "width" else f"drag {handle.n} to {x} {far}"
