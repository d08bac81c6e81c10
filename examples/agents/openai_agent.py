"""A shop assistant with the package openai and one tool, written as a loop of its own."""

import json
import os

from openai import OpenAI
from shop import price, right

TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of one item, in coins.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}


def solve(task, client=None):
    """The reward of one attempt. Without a client, the address and the key come from the environment, as in any program."""
    model = OpenAI() if client is None else client.openai()
    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(4):
        message = model.chat.completions.create(model="turnwise", messages=messages, tools=[TOOL]).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return float(right(task, message.content or ""))
        for call in message.tool_calls:
            try:
                result = price(**json.loads(call.function.arguments))
            except (TypeError, ValueError) as error:
                result = f"Error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return 0.0


if __name__ == "__main__":
    print(solve(json.loads(os.environ["TURNWISE_TASK"])))
