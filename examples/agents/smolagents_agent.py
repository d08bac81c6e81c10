"""A shop assistant with the package smolagents and one tool."""

import json
import os

import shop
from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool


@tool
def price(item: str) -> str:
    """The price of one item, in coins.

    Args:
        item: what is bought
    """
    return shop.price(item)


if __name__ == "__main__":
    task = json.loads(os.environ["TURNWISE_TASK"])
    agent = ToolCallingAgent(tools=[price], model=OpenAIServerModel("turnwise"), max_steps=3, verbosity_level=LogLevel.OFF)
    print(float(shop.right(task, str(agent.run(task["prompt"])))))
