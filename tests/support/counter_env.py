"""An environment with instructions and tools of its own: a counter that is to be brought to three."""

import json

from turnwise import Observation, Transition


class Counter:
    """Takes calls of its tool `add` as JSON, and the plain action "add one"."""

    max_turns = 4
    instructions = "Bring the counter to three."
    tools = (
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Add to the counter.",
                "parameters": {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
            },
        },
    )

    def reset(self, task, seed=0):
        self.count = 0
        return self._look()

    def step(self, action):
        if action.startswith("{"):
            self.count += int(json.loads(action)["arguments"]["amount"])
        else:
            self.count += action == "add one"
        return Transition(self._look(), float(self.count == 3), self.count >= 3, self.count == 3)

    def _look(self):
        return Observation(f"The counter shows {self.count}.", actions=("add one", "wait", "help"))
