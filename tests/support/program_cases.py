"""Programs for the tests, and what they share: a tiny model, an engine, a collector."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from turnwise.data.attempts import Start
from turnwise.data.tasks import Task
from turnwise.envs.program.client import Client, Outcome


def ask(client: Client, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """One call without any package: the assistant's message."""
    from turnwise.util.transport import Transport

    body = {"model": client.model, "messages": messages, **more}
    found: dict[str, Any] = Transport(client.base_url, client.api_key, 60.0).post("chat/completions", body)["choices"][0]["message"]
    return found


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def two_turns(task: dict[str, Any], client: Client) -> float:
    talk = [user(task["prompt"])]
    talk.append(ask(client, talk))
    client.reward(0.25, "a first word")
    talk.append(user("go on"))
    ask(client, talk)
    return 0.5


async def later(task: dict[str, Any], client: Client) -> Outcome:
    await asyncio.sleep(0)
    await asyncio.to_thread(ask, client, [user(task["prompt"])])
    return Outcome(2.0, True, {"words": 3.0})


def crashes(task: dict[str, Any], client: Client) -> float:
    ask(client, [user(task["prompt"])])
    raise ValueError("the program is broken")


def hangs(task: dict[str, Any], client: Client) -> None:
    ask(client, [user(task["prompt"])])
    time.sleep(30)


def silent(task: dict[str, Any], client: Client) -> float:
    return 1.0


def talkative(task: dict[str, Any], client: Client) -> float:
    while True:
        ask(client, [user(task["prompt"])])


def family(task: dict[str, Any], client: Client) -> float:
    """A planner with two sub-agents, one of which uses two turns, and a summary that replaces the planner's context."""
    plan = [{"role": "system", "content": "You plan."}, user(task["prompt"])]
    plan.append(ask(client, plan))
    first = [{"role": "system", "content": "You are the first."}, user("look left")]
    first.append(ask(client, first))
    first.append(user("and now up"))
    ask(client, first)
    ask(client, [{"role": "system", "content": "You are the second."}, user("look right")])
    client.anchor("after both")
    plan.append(user("they are back"))
    plan.append(ask(client, plan))
    summary = ask(client, [user("Sum this up: " + str(plan[-1]["content"]))])
    ask(client, [{"role": "system", "content": "You plan."}, user(f"So far: {summary['content']}. Answer.")])
    return 1.0


def starts(n: int = 2, **changes: Any) -> list[Start]:
    task = Task("t", "train", {"prompt": "say something"})
    return [Start(task, 0, number, env_seed=7, policy_seed=100 + number, **changes) for number in range(n)]


def walk(task: dict[str, Any], client: Client) -> Outcome:
    """The environment `numberline`, played by a program."""
    import turnwise as tw
    from turnwise.agent import Parser

    env, parser = tw.make("numberline"), Parser("whole")
    seen = env.reset(Task(task["id"], task["split"], {name: task[name] for name in ("goal", "start", "target")}), client.seed)
    talk: list[dict[str, Any]] = [user(seen.text)]
    for _ in range(6):
        talk.append(ask(client, talk))
        moved = env.step(parser(talk[-1]["content"] or "").action)
        client.reward(moved.reward)
        if moved.done:
            return Outcome(success=moved.success)
        talk.append(user(moved.observation.text))
    return Outcome(success=False)


def said_length(task: dict[str, Any], client: Client) -> float:
    """A planner and a sub-agent; worth the length of what they write."""
    plan = ask(client, [{"role": "system", "content": "You plan."}, user(task["prompt"])])
    report = ask(client, [{"role": "system", "content": "You act."}, user("go on")])
    return (len(str(plan["content"])) + len(str(report["content"]))) / 100
