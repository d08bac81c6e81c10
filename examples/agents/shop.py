"""The tasks of the shop, their reward, and its tools as plain functions.

python examples/agents/shop.py > shop.jsonl     writes the tasks
"""

import json

PRICES = {"apple": 3, "bread": 4, "cheese": 7, "milk": 2, "pear": 5, "rice": 6}
STOCK = {"apple": 9, "bread": 0, "cheese": 2, "milk": 8, "pear": 4, "rice": 1}


def price(item: str) -> str:
    """The price of one item, in coins."""
    return str(PRICES.get(item, f"The shop does not sell {item}."))


def stock(item: str) -> str:
    """How many of an item are left."""
    return str(STOCK.get(item, f"The shop does not sell {item}."))


def right(task, answer) -> bool:
    """Whether the answer is the number that was asked for."""
    return answer.strip().strip(".") == task["data"]["answer"]


def tasks():
    """Every question, each with its answer and with the calls that find it."""
    for tool, asked, known in (("price", "What does {} cost?", PRICES), ("stock", "How many of {} are left?", STOCK)):
        for number, (item, value) in enumerate(known.items()):
            call = {"name": tool, "arguments": {"item": item}}
            yield {
                "id": f"{tool}-{item}",
                "prompt": asked.format(item),
                "data": {"answer": str(value)},
                "expert": [call, {"name": "answer", "arguments": {"answer": str(value)}}],
                "split": "train" if number % 3 else "valid",
            }


if __name__ == "__main__":
    for task in tasks():
        print(json.dumps(task))
