"""An agent loop for verl that plays environments of Turnwise, and leaves the step data that `turnwise.hosts.verl` computes credit from.

verl makes a loop per attempt, as the file in `rollout.agent.agent_loop_config_path` says; its `env` and `agent` are sections of a recipe.
With `context: full` the dialogue grows and an attempt is one row; with `window`, every turn is a row. An attempt that outgrows
`prompt_length` or `response_length` ends there, so that no row is cut. Several players and pictures are left out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput

from turnwise.agent.agent import Agent
from turnwise.agent.settings import AgentSettings
from turnwise.data.tasks import Task
from turnwise.envs import registry
from turnwise.envs.base import Env, Transition
from turnwise.envs.capabilities import Capabilities
from turnwise.envs.settings import Env as EnvSettings
from turnwise.util.seeds import derive


def dataset(name: str, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Rows of a verl dataset, one per task. The prompt only satisfies verl: the environment's first observation is what the model sees."""
    return [
        {
            "agent_name": "turnwise",
            "data_source": name,
            "prompt": [{"role": "user", "content": task.id}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "split": task.split, "task": json.dumps(task.to_json())},
        }
        for index, task in enumerate(tasks)
    ]


class EnvLoop(AgentLoopBase):  # type: ignore[misc]
    """One attempt at the task of a dataset row. All attempts of a group have one seed, unless `env.own_seeds`. A response has `max_tokens`
    tokens at most."""

    def __init__(self, *args: Any, env: Any, agent: Any = None, max_tokens: int = 512, **kwargs: Any):
        super().__init__(*args, **kwargs)
        env, agent = (json.dumps(OmegaConf.to_container(OmegaConf.create(section or {}), resolve=True)) for section in (env, agent))
        self.prompt_length, self.response_length = self.rollout_config.prompt_length, self.rollout_config.response_length
        self.max_tokens, self.parts = max_tokens, Parts(self.tokenizer, env, agent, self.prompt_length, self.response_length)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[Any]:
        """The rows of an attempt. Environments play in threads, so that others continue; where one fails, verl drops the group."""
        task = Task.from_json(json.loads(kwargs["extra_info"]["task"]))
        seed = derive(0, str(kwargs["uid"]), kwargs["session_id"] if self.parts.settings.own_seeds else "")
        env = self.parts.spare.pop() if self.parts.spare else await asyncio.to_thread(self.parts.make)
        rows = await self.play(env, task, seed, sampling_params)
        self.parts.spare.append(env)
        return rows

    async def play(self, env: Env, task: Task, seed: int, sampling_params: dict[str, Any]) -> list[Any]:
        agent, request = self.parts.agent, uuid4().hex
        observation, context = await asyncio.to_thread(env.reset, task, seed), agent.context()
        context.start(task, observation)
        rows: list[Row] = []
        success, turns = False, 0
        while turns < self.parts.max_turns and (prompt := context.prompt()).fits:
            ids = list(prompt.ids)
            if not (rows and rows[-1].leads_to(ids)):
                rows.append(Row(ids))
            room = self.response_length - (len(ids) - len(rows[-1].prompt))
            if room < 1 or len(rows[-1].prompt) > self.prompt_length:
                break
            sampling = sampling_params | {"max_tokens": min(room, self.max_tokens)}
            output = await self.server_manager.generate(request_id=request, prompt_ids=ids, sampling_params=sampling)
            if not (response := output.token_ids[:room]):
                break
            parsed = agent.read(response, observation)[1]
            step: Transition = await asyncio.to_thread(env.step, parsed.action)
            reward = step.reward * self.parts.settings.reward_scale
            rows[-1].add(ids, response, output, anchor=observation.key, reward=reward, valid=parsed.valid)
            turns, observation = turns + 1, step.observation
            if step.done:
                success = step.success
                break
            context.record(response, parsed, observation)
        total = sum(reward for row in rows for reward in row.steps["reward"])
        return [row.output(total, success) for row in rows if row.response]


@dataclass
class Row:
    """A sequence of verl: a prompt, and what follows it. Tokens of later observations are masked."""

    prompt: list[int]
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    steps: dict[str, list[Any]] = field(default_factory=lambda: {"anchor": [], "reward": [], "valid": []})
    noted: dict[str, Any] = field(default_factory=dict)  # by the server: versions of the weights, and more

    def leads_to(self, ids: list[int]) -> bool:
        """Whether a prompt is this sequence, continued."""
        return ids[: len(self.prompt) + len(self.response)] == self.prompt + self.response

    def add(self, ids: list[int], response: list[int], output: Any, **step: Any) -> None:
        """A turn: its prompt, what was sampled, and its step data."""
        seen = ids[len(self.prompt) + len(self.response) :]
        self.response += [*seen, *response]
        self.mask += [0] * len(seen) + [1] * len(response)
        if output.log_probs:
            self.logprobs += [0.0] * len(seen) + list(output.log_probs[: len(response)])
        oldest = {"min_global_steps": self.noted["min_global_steps"]} if "min_global_steps" in self.noted else {}
        self.noted = {**output.extra_fields, **oldest}
        for column, value in step.items():
            self.steps[column].append(value)

    def output(self, total: float, success: bool) -> Any:
        """The row as verl has it. Each row of an attempt has the attempt's reward."""
        extra = {"turnwise": self.steps, "reward_extra_info": {"success": float(success)}, "turn_scores": self.steps["reward"]}
        return AgentLoopOutput(
            prompt_ids=self.prompt,
            response_ids=self.response,
            response_mask=self.mask,
            response_logprobs=self.logprobs or None,
            reward_score=total,
            num_turns=2 * len(self.steps["reward"]),
            metrics={},
            extra_fields={**self.noted, **extra, "tool_rewards": []},
        )


@lru_cache(maxsize=8)
class Parts:
    """What all loops of a process share: the agent, and the environments that nobody plays at the moment."""

    def __init__(self, tokenizer: Any, env: str, agent: str, prompt_length: int, response_length: int):
        self.settings, section = EnvSettings.model_validate_json(env), AgentSettings.model_validate_json(agent)
        self.spare = [self.make()]
        can = Capabilities(self.spare[0])
        longest = prompt_length + (response_length if section.context == "full" else 0)
        defaults = {"instructions": can.instructions, "tools": list(can.tools), "max_prompt_tokens": longest}
        self.agent = Agent(tokenizer, section.model_copy(update={key: defaults[key] for key in defaults.keys() - section.model_fields_set}))
        self.max_turns = self.settings.max_turns or registry.turn_limit(self.settings.name, self.spare[0]) or 50

    def make(self) -> Env:
        return registry.make(self.settings.name, **self.settings.options)
