"""A shop assistant with the package pydantic-ai and one tool."""

import json
import os

import shop
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("turnwise"), instructions="Answer with a number.")


@agent.tool_plain
def price(item: str) -> str:
    """The price of one item, in coins."""
    return shop.price(item)


if __name__ == "__main__":
    task = json.loads(os.environ["TURNWISE_TASK"])
    answer = agent.run_sync(task["prompt"], usage_limits=UsageLimits(request_limit=4)).output
    print(float(shop.right(task, answer)))
