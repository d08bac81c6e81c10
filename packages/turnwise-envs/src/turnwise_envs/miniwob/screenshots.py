"""Screenshots: for models that see, with the numbers of the elements drawn on them; and small ones for people who look at a run."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.util.errors import MissingExtra
from turnwise_envs.miniwob.page import AREA, Page
from turnwise_envs.miniwob.view import Look

SCALE = 2  # pixels of a screenshot per pixel of the page: numbers stay readable
LARGEST = 32_768  # bytes of a screenshot that is kept with a turn
QUALITIES = (70, 40, 15)


def kept_screenshot(page: Page) -> str:
    """A small picture of the page as a data address, of at most `LARGEST` bytes; empty if it cannot be made that small."""
    for quality in QUALITIES:
        data = page.screenshot("webp", quality=quality)
        if len(data) <= LARGEST * 3 // 4:
            return f"data:image/webp;base64,{b64encode(data).decode('ascii')}"
    return ""


def seen_screenshot(page: Page, look: Look) -> NDArray[np.uint8]:
    """What a model sees: the page in colours, a frame and a number for everything that can be acted on."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingExtra("miniwob with screenshots", "images") from error
    image = Image.open(io.BytesIO(page.screenshot("png", SCALE))).convert("RGB")
    pen: Any = ImageDraw.Draw(image)
    for item in look.items:
        if not item.n or item.kind == "area" or not (0 <= item.x < AREA[0] and 0 <= item.y < AREA[1]):
            continue
        left, top = item.x * SCALE, item.y * SCALE
        pen.rectangle((left, top, left + item.width * SCALE, top + item.height * SCALE), outline=(255, 0, 0))
        width = 6 * len(str(item.n)) + 2
        corner = max(0, left - width)
        pen.rectangle((corner, top, corner + width, top + 11), fill=(255, 0, 0))
        pen.text((corner + 1, top), str(item.n), fill=(255, 255, 255))
    return np.asarray(image, np.uint8)
