"""Write prompts.jsonl: digits to be sorted, each with its answer. `python examples/sorting/make.py > prompts.jsonl`"""

import json
import random

chance = random.Random("sorting")
seen = set()
while len(seen) < 2000:
    digits = "".join(chance.choices("0123456789", k=5))
    if digits not in seen:
        seen.add(digits)
        print(json.dumps({"prompt": f"Sort: {' '.join(digits)}", "answer": " ".join(sorted(digits))}))
