"""Writes the passages of the small search, one fact in each, beside this file. They are made up."""

import json
from pathlib import Path

from turnwise.envs.dice import Dice

PEOPLE = (
    "ada", "abe", "bob", "cal", "dot", "eli", "eve", "fay", "gus", "hew", "ida", "jon",
    "kay", "leo", "meg", "nia", "oto", "pam", "rex", "sue", "ted", "una", "vic", "zoe",
)  # fmt: skip
TOWNS = [first + last for first in ("dorn", "elm", "hart", "lim") for last in ("by", "ford")]
COUNTRIES, RIVERS = ("berland", "garland", "morland", "norland"), ("dava", "gava", "kava", "tava")
PETS, FOODS = ("cat", "dog", "hen", "owl", "pig", "rat"), ("bread", "figs", "plums", "rice", "soup", "tea")

dice, facts = Dice("small search"), []
for person in PEOPLE:  # a pet is asked for by nobody, and stands first, so that a query that fits no fact finds it
    others = [other for other in PEOPLE if other != person]
    kinds = {"pet": PETS, "food": FOODS, "friend": others, "rival": others, "teacher": others, "boss": others, "town": TOWNS}
    facts += [(kind, person, dice.pick(names)) for kind, names in kinds.items()]
for town in TOWNS:
    kinds = {"mayor": PEOPLE, "country": COUNTRIES, "river": RIVERS}
    facts += [(kind, town, dice.pick(names)) for kind, names in kinds.items()]
lines = [json.dumps({"id": str(n), "title": of, "text": f"{kind} of {of} is {name}"}) for n, (kind, of, name) in enumerate(facts)]
(Path(__file__).parent / "passages.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
