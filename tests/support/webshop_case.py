"""A shop of six products in the official file format, so that most of WebShop is tested without the benchmark's data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def item(identity: str, name: str, **more: Any) -> dict[str, Any]:
    base = {
        "asin": identity,
        "name": name,
        "full_description": f"All about {name}.",
        "small_description": ["First feature ", "Second feature"],
        "pricing": "$12.5",
        "customization_options": "",
        "category": "garden",
        "query": "Lamps ",
        "product_category": "Home › Lighting › Lamps",
        "images": ["none"],
    }
    return base | more


def values(*names: str) -> list[dict[str, str]]:
    return [{"value": name} for name in names]


PRODUCTS = [
    item(
        "B000000001",
        "Brass Desk Lamp",
        customization_options={"Color": values("Stone Wash", "Red/Blue"), "Size": values("Small", " Large ")},
    ),
    item("B000000002", "Oak Floor Lamp", pricing="$20.0$40.0", customization_options={"Color": None}),
    item("B000000003", "Garden Hose [green]", pricing="", query="hoses", product_category="Garden › Tools"),
    item("B000000001", "A second product with the first one's id"),
    item("nan", "No id"),
    item("B000000004", "Desk Lamp Café ★", small_description="one text", pricing="$1.2.3"),
    item("B000000005", "Steel Kettle", query="kettles", product_category="Kitchen › Tea", pricing="$985"),
    item("B000000006", "Glass Kettle", query="kettles", product_category="Kitchen › Tea"),
]
ATTRIBUTES: dict[str, Any] = {
    "B000000001": {
        "attributes": ["easy clean", "solid brass"],
        "instruction": "Find me easy clean lamps",
        "instruction_attributes": ["easy clean"],
    },
    "B000000005": {"attributes": ["bpa free"], "instruction": "Find me bpa free kettles", "instruction_attributes": ["bpa free"]},
    "B000000006": {"attributes": []},
}
HUMAN = {
    "B000000001": [
        {"instruction": "i want a small lamp.", "instruction_attributes": ["solid brass"], "instruction_options": ["small"]},
        {"instruction": "no attribute", "instruction_attributes": [], "instruction_options": []},
    ]
}


def write_shop(folder: Path, ascii_only: bool = True) -> Path:
    """The files of the shop, in a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("items_shuffle_1000", PRODUCTS), ("items_ins_v2_1000", ATTRIBUTES), ("items_human_ins", HUMAN)):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=ascii_only), encoding="utf-8")
    return folder
