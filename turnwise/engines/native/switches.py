"""Ways in which the engine can work on a GPU. Each can be turned on and off alone, so that before and after are measured in one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from turnwise.util.errors import TurnwiseError

WAYS = ("rows", "tiles", "fused", "product", "auto")
# Up to so many lanes, this way of drawing; "rows" beyond the last one.
MEASURED: tuple[tuple[int, str], ...] = ((64, "tiles"), (4096, "product"))


@dataclass(frozen=True, slots=True)
class Switches:
    """`record`: prompts run as recorded graphs, and a step takes one copy to the GPU and one back. `draw`: how tokens are drawn where no
    row has a top-p, top-k or min-p: `rows` one program per row over its logits, `tiles` many programs per row, `fused` within the output
    layer's matrix product without writing logits, `product` the same on a Hopper GPU with a kernel made for it (`head_tiles.py`; elsewhere
    as `tiles`), `auto` what was measured to be best for that many rows. `merge`: the parts of a long sequence's attention are merged by the
    last program that is done, without another kernel. `products`: the engine's own kernels for the products with few rows, `gate`: for the
    two halves of an MLP with the activation between, both for the shapes where they were measured to be faster (`product_table`).
    `gate_tiles`: on a Hopper GPU, the kernel for those two halves whose blocks share what they read (`gate_tiles.py`), for the shapes of
    `product_table.TILES`. `overlap`: a product or norm may begin before the last kernel has ended (GPUs since Hopper). `prompts`: attention
    of prompts that is arranged for a GPU's copy engine. `cascade`: pages that several rows of a decode step have in common, as the prompt
    of a group, are read once for all of them, where that saves enough (`cascade.py`); `auto`: only in large steps that save much.
    `balance`: the programs of a decode step's attention read about the same number of pages each, whatever the lengths of its rows
    (`balance_kernel.py`); steps with a cascade do not. `stream`: on a Hopper GPU, attention of large decode steps and of
    uneven ones in CUDA (`hopper_attention.py`), whose blocks take one row after another.
    `nucleus`: rows with top-p are drawn by many programs each, which read every logit once (`nucleus_kernel.py`).
    `packed`: 2 to 64 rows are multiplied by weights in 4 bits without unpacking those to memory (`packed_product.py`)."""

    record: bool = True
    draw: str = "auto"
    merge: bool = True
    products: bool = True
    gate: bool = True
    gate_tiles: bool = True
    overlap: bool = True
    prompts: bool = True
    cascade: bool | str = "auto"
    balance: bool = False
    nucleus: bool = True
    stream: bool = True
    packed: bool = True

    def __post_init__(self) -> None:
        if self.draw not in WAYS:
            raise TurnwiseError(f"engine: the switch draw is one of {', '.join(WAYS)}, not {self.draw!r}")
        for name in (field.name for field in fields(self) if field.name != "draw"):
            value, auto = getattr(self, name), name == "cascade"
            if not isinstance(value, bool) and not (auto and value == "auto"):
                raise TurnwiseError(f"engine: the switch {name} is true{', false or auto' if auto else ' or false'}, not {value!r}")

    @classmethod
    def of(cls, chosen: Mapping[str, Any] | None) -> Switches:
        """The switches that a caller names; the others keep their defaults."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(chosen or ()) - set(known)):
            raise TurnwiseError(f"engine: there is no switch {unknown[0]!r}; there are {', '.join(known)}")
        return cls(**(chosen or {}))

    @property
    def changed(self) -> bool:
        """Whether anything is done in another way than the plain one."""
        return replace(self, cascade=self.cascade is True) != PLAIN

    def way(self, lanes: int) -> str:
        """How so many lanes draw, none of them with a truncated distribution."""
        if self.draw != "auto":
            return self.draw
        return next((way for most, way in MEASURED if lanes <= most), "rows")


PLAIN = Switches(
    record=False, draw="rows", merge=False, products=False, gate=False, gate_tiles=False, prompts=False, overlap=False, cascade=False,
    nucleus=False, stream=False, packed=False,
)  # fmt: skip
