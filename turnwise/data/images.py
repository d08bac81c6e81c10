"""Images of an environment, for the prompt, the engine, the learner and the disk.

A picture is identified by a hash of its content, so that an image seen by every attempt of a group is processed and stored once. In the
text of a message, a picture is a mark that names its hash; the code that writes the tokens replaces it with the model's image tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_atomically
from turnwise.util.unpack import open_archive

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # never part of a text: Unicode reserves them for internal use
MARK = re.compile(f"{OPEN}([0-9a-f]{{32}}){CLOSE}")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Picture:
    """An RGB image (uint8, height × width × 3, read-only) and the hash of its content. Equal content, equal picture."""

    pixels: NDArray[np.uint8]
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picture) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def mark(self) -> str:
        """The mark of this picture in a text."""
        return f"{OPEN}{self.name}{CLOSE}"


def picture(image: Any) -> Picture:
    """A picture from an environment's image: an array or PIL image, RGB, RGBA (alpha is dropped) or grey, 8 bits per channel."""
    if isinstance(image, Picture):
        return image
    pixels = np.array(image)  # a copy: environments may draw into the same array again
    check_pixels(pixels)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None].repeat(3, axis=2)
    pixels = np.ascontiguousarray(pixels[:, :, :3])
    pixels.setflags(write=False)
    return Picture(pixels, content_hash((pixels,)).hex())


def check_pixels(pixels: NDArray[Any]) -> None:
    """Raise an error if an array is not a grey, RGB or RGBA image with 8 bits per channel."""
    grey = pixels.ndim == 2
    if not (grey or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))) or pixels.dtype != np.uint8 or 0 in pixels.shape:
        raise TurnwiseError(
            f"an observation's image must be a uint8 array, height × width × 3 (RGB), not {pixels.dtype} of shape {pixels.shape}. "
            "Convert it in the environment, for example (image * 255).astype(np.uint8)"
        )


def content_hash(images: Iterable[Any], text: str = "") -> bytes:
    """16 bytes that are equal if the images (and the text) are, on every machine."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    for image in images:
        array = np.ascontiguousarray(image)
        digest.update(f"\0{array.dtype.str} {array.shape}\0".encode())
        digest.update(array.data if array.size else b"")
    return digest.digest()


def split(text: str) -> list[str]:
    """A text split at its marks: texts at even positions, names of pictures at odd ones."""
    return MARK.split(text)


def without_marks(text: str, instead: str = "") -> str:
    """The text with each picture replaced."""
    return MARK.sub(instead, text)


def save_pictures(path: Path, pictures: Iterable[Picture]) -> Path:
    """Write each distinct picture once into one compressed file, atomically."""
    arrays: dict[str, Any] = {each.name: each.pixels for each in pictures}
    return write_atomically(path, lambda file: np.savez_compressed(file, **arrays))


def load_pictures(path: Path) -> Mapping[str, NDArray[np.uint8]]:
    """What `save_pictures` wrote: pixels by the picture's name."""
    try:
        with open_archive(path) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged archive fails in many ways
        raise TurnwiseError(f"{path}: not a file of pictures, or damaged ({error})") from None


def starts_with(longer: Sequence[Picture], shorter: Sequence[Picture]) -> bool:
    """Whether one list of pictures continues the other."""
    return len(longer) >= len(shorter) and all(a == b for a, b in zip(longer, shorter, strict=False))
