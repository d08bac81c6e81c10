"""Writes the goods of the small shop, in the format of WebShop's files, beside this file. They are made up: 4 kinds of 4 materials."""

import json
from pathlib import Path

KINDS, MATERIALS = ("lamp", "rug", "mug", "bed"), ("oak", "tin", "wool", "clay")
OPTIONS = {"color": ("red", "blue", "green", "black"), "size": ("small", "medium", "large")}
FOLDER = Path(__file__).parent

goods, attributes = [], {}
for kind in KINDS:
    for material in MATERIALS:
        name = f"{material} {kind}"
        goods.append(
            {
                "asin": name,
                "name": name,
                "full_description": "",
                "small_description": [],
                "pricing": "$999",  # above the highest limit, so that instructions name none
                "customization_options": {option: [{"value": value} for value in values] for option, values in OPTIONS.items()},
                "category": kind,
                "query": kind,
                "product_category": kind,
            }
        )
        attributes[name] = {"attributes": [material], "instruction": f"{material} {kind}", "instruction_attributes": [material]}
(FOLDER / "items_shuffle_1000.json").write_text(json.dumps(goods, indent=0) + "\n", encoding="utf-8")
(FOLDER / "items_ins_v2_1000.json").write_text(json.dumps(attributes, indent=0) + "\n", encoding="utf-8")
