"""Guess a word from its letters, which are told one by one."""

import asyncio
import random

import verifiers as vf
from datasets import Dataset

WORDS = ["apple", "grape", "lemon", "melon", "peach", "plum", "fig", "date", "pear", "lime", "kiwi", "mango"]


class Letters(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["told"] = 0

    async def env_response(self, messages, state, **kwargs):
        await asyncio.sleep(0)
        last = messages[-1].content
        if last == "boom":
            raise ZeroDivisionError("boom")
        if last == "fail":
            raise vf.Error("the word list is gone")
        if last == "hang":
            await asyncio.sleep(60)
        if last == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "Right."}]
            return state["final_env_response"]
        state["told"] += 1
        return [{"role": "user", "content": f"No. It begins with {state['answer'][: state['told']]}. {random.random():.3f}"}]


async def exact(completion, answer, **kwargs):
    return 1.0 if any(message.role == "assistant" and message.content == answer for message in completion) else 0.0


def turns_used(state, **kwargs):
    return len(state["trajectory"])


def load_environment(held_out: bool = False, **kwargs):
    rows = Dataset.from_list([{"question": f"A fruit of {len(word)} letters?", "answer": word} for word in WORDS])
    rubric = vf.Rubric(funcs=[exact, turns_used], weights=[1.0, 0.0])
    more = {"eval_dataset": rows.select(range(2))} if held_out else {}
    return Letters(dataset=rows, rubric=rubric, max_turns=4, system_prompt="Answer with one word.", **more, **kwargs)


def load_single():
    return "nothing"
