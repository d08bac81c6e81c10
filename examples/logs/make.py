"""Writes household.jsonl: attempts of an agent that tidies up, as OpenAI's messages with tool calls.

python examples/logs/make.py

The agent is a script that plays Turnwise's household. It knows what to do, and has two weaknesses. Once it holds what it
should clean, it often carries it straight to where it belongs. And it opens what is open already, again and again.
"""

import json
import random
import re
from pathlib import Path

import turnwise as tw

TASKS, ATTEMPTS, MOST_TURNS = 6, 18, 20
PROMPT = "You tidy up a household. Call one tool at a time. Say so when the task is done."
FORMS = {  # from a command to a tool and its arguments
    "go": r"go to (?P<place>.+)",
    "open": r"open (?P<place>.+)",
    "take": r"take (?P<object>.+) from (?P<place>.+)",
    "put": r"move (?P<object>.+) to (?P<place>.+)",
    "clean": r"clean (?P<object>.+) with (?P<place>.+)",
    "heat": r"heat (?P<object>.+) with (?P<place>.+)",
    "cool": r"cool (?P<object>.+) with (?P<place>.+)",
    "use": r"use (?P<object>.+)",
}


def call_of(command):
    """A command as the name of a tool and its arguments."""
    return next((name, match.groupdict()) for name, form in FORMS.items() if (match := re.fullmatch(form, command)))


def attempt(env, task, place, number):
    """One attempt, as a line of the log."""
    chance = random.Random(f"{task.id} {number}")
    observation = env.reset(task, seed=0)
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": observation.text}]
    success, seen, careless, opened = False, observation.text, None, None
    for turn in range(MOST_TURNS):
        command, careless, opened = decide(env, chance, seen, careless, opened)
        if command is None:
            break
        name, arguments = call_of(command)
        call = {"id": f"call_{number}_{turn}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        transition = env.step(command)
        seen, success = transition.observation.text, transition.success
        result = seen.replace("Nothing happens.", "Error: nothing happens.")
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if transition.done:
            break
    messages.append({"role": "assistant", "content": "The task is done."})
    name = f"clean-{task.id.split('-')[1]}-{place}"
    return {"id": f"{name}/{number}", "task_id": name, "messages": messages, "success": success}


def decide(env, chance, seen, careless, opened):
    """The agent's next command, None if it thinks that it is done, and what it remembers."""
    plan = env.expert_plan()
    if careless is None and seen.startswith("You pick up") and any(step.startswith("clean") for step in plan):
        careless = chance.random() < 0.45
    if careless:  # straight to the place, as if that were all
        last = plan[-1]
        place = call_of(last)[1]["place"] if last.startswith("move") else None
        if seen.startswith("You move") or place is None:
            return None, careless, opened
        if f"arrive at {place}" in seen and "is closed" in seen:
            return f"open {place}", careless, opened
        return (last if f"at {place}" in seen or f"open the {place}" in seen else f"go to {place}"), careless, opened
    command = plan[0]
    if command.startswith("take") and opened and chance.random() < 0.35:
        return opened, careless, opened
    if command.startswith("go") and chance.random() < 0.1:
        command = chance.choice(["go to sinkbasin 1", "go to countertop 1", "go to drawer 1"])
    return command, careless, command if command.startswith("open") else None


if __name__ == "__main__":
    env = tw.make("household")
    tasks = [task for task in tw.tasks("household", split="train", n=60) if task.id.startswith("pick_clean")][:TASKS]
    lines = [json.dumps(attempt(env, task, place, number)) for place, task in enumerate(tasks) for number in range(ATTEMPTS)]
    Path(__file__).with_name("household.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
