"""A shop assistant with the package openai-agents and one tool."""

import json
import os

import shop
from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # otherwise the package sends traces to its maker


@function_tool
def price(item: str) -> str:
    """The price of one item, in coins."""
    return shop.price(item)


if __name__ == "__main__":
    task = json.loads(os.environ["TURNWISE_TASK"])
    agent = Agent(name="assistant", instructions="Answer with a number.", tools=[price], model="turnwise")
    answer = Runner.run_sync(agent, task["prompt"], max_turns=4).final_output
    print(float(shop.right(task, answer)))
