"""Credit for every turn in TRL: `CreditTrainer`, a `GRPOTrainer` with advantages of shape (B, T), and `environment`, which makes an
`environment_factory` of any Turnwise environment. A turn is one response, and the return of an attempt is the reward that TRL logs; what no
turn was given of it belongs to the last one. Where a response starts is known from TRL. Who plays says more about it:

    environment_factory    attributes of the object: `anchor`, the state that it is in (without it: the text of the last tool results),
                           and `reward`, the sum of its rewards so far
    rollout_func           a field `turns`, per completion a list with one dictionary per response: `anchor`, `reward`, `valid`, `value`,
                           `token_value` and other columns by their names in `tw.credit.of_table`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from turnwise.config.objects import Handed
from turnwise.credit import algorithms, of_table, spans_of
from turnwise.data.tasks import Task
from turnwise.envs import answers, registry
from turnwise.envs.capabilities import Capabilities
from turnwise.hosts.versions import need_version
from turnwise.util.errors import TurnwiseError

need_version("trl", "1.16")
from accelerate.utils import gather_object  # type: ignore[import-untyped]  # noqa: E402  (after the check of the version)
from trl import GRPOTrainer  # type: ignore[import-not-found]  # noqa: E402

OVER = "The attempt is over."
NEEDED = {"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize", "off_policy_mask_threshold": None}


class CreditTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, with the credit of an algorithm: a name, or a function of rollouts."""

    def __init__(self, *args: Any, credit: str | Callable[..., Any] = "gigpo", credit_options: Any = None, **kwargs: Any):
        self._credit, self._credit_options = credit, dict(credit_options or {})
        algorithms.of(credit).bind(self._credit_options, algorithms.kind)  # a wrong option is an error before a model is loaded
        super().__init__(*args, **kwargs)
        for option, value in NEEDED.items():
            if getattr(self.args, option) != value:
                raise TurnwiseError(f"CreditTrainer: leave {option} at {value!r}. docs/trainers/trl.md has what credit offers instead")

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        self._read_environments()
        return super()._generate_single_turn(*args, **kwargs)

    def _generate(self, prompts: list[Any]) -> Any:
        self._states: list[list[tuple[Any, Any]]] = []  # before each round of responses, and after the last
        self._generated = super()._generate(prompts)
        self._read_environments()
        return self._generated

    def _read_environments(self) -> None:
        self._states.append([(getattr(env, "anchor", None), getattr(env, "reward", None)) for env in self.environments or ()])

    def _calculate_rewards(self, *args: Any) -> Any:
        per_function = super()._calculate_rewards(*args)  # of all processes
        rewards = (per_function * self.reward_weights.to(per_function.device)).nansum(1).double()
        self._rewards = rewards.masked_fill(per_function.isnan().all(1), np.nan).tolist()
        return per_function

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mode, process = ("train" if self.model.training else "eval"), self.accelerator.process_index
        first, size = process * len(inputs), self.num_generations if mode == "train" else self.num_generations_eval
        _, completion_ids, masks, completions, _, fields, *_ = self._generated  # the loss's masks leave truncated completions out
        sampled = np.zeros(output["completion_ids"].shape, np.bool_)
        for row, mask in enumerate(masks or [[1] * len(ids) for ids in completion_ids]):
            sampled[row, : len(mask)] = np.isfinite(self._rewards[first + row]) * np.asarray(mask)  # without a reward, no comparison
        responses, _, lengths = spans_of(sampled)
        table: list[dict[str, Any]] = []
        for row in np.unique(responses).tolist():
            turns = fields["turns"][row] if "turns" in fields else self._turns_of_calls(row, completions[row])
            tokens = lengths[responses == row].tolist()
            ids = {"process": process, "trajectory": first + row, "group": (first + row) // size}
            if len(turns) < len(tokens):  # more turns than responses: the end was cut off
                raise TurnwiseError(f"completion {row}: {len(tokens)} responses, {len(turns)} turns. See `turns` in docs/trainers/trl.md")
            table += [{"reward": 0.0} | turn | ids | {"tokens": count} for turn, count in zip(turns, tokens, strict=False)]
            rest = self._rewards[first + row] - sum(turn["reward"] for turn in table[-len(tokens) :])
            table[-1]["reward"] += rest if abs(rest) > 1e-6 * max(1.0, abs(self._rewards[first + row])) else 0.0  # sums in float32
        advantages = np.zeros(sampled.shape, np.float32)
        if table := gather_object(table):  # a group may lie in several processes
            further = {name: name for turn in table for name in turn if name.startswith(("turn.", "token."))}
            credit = of_table(self._credit, table, columns=further, **self._credit_options)
            own = [tokens for turn, tokens in zip(table, credit.tokens, strict=True) if turn["process"] == process]
            advantages[sampled] = np.concatenate([*own, advantages[0, :0]])
            for name, value in credit.diagnosis.items():
                for part, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                    self._metrics[mode][f"credit/{name}{'/' if part else ''}{part}"].append(float(number))
        return output | {"advantages": output["advantages"].new_tensor(advantages)}

    def _turns_of_calls(self, row: int, messages: Any) -> list[dict[str, Any]]:
        """The turns of a completion in TRL's loop of tool calls: it takes part in every round until its attempt ends."""
        turns, seen = list[dict[str, Any]](), ""
        for message in messages if isinstance(messages, list) else [{"role": "assistant"}]:
            if message["role"] == "tool":
                seen += str(message["content"])
                turns[-1]["valid"] &= not str(message["content"]).startswith("{'error': ")  # unknown tool, wrong arguments, exception
            else:
                turns.append({"anchor": seen, "valid": True})
                seen = ""
        for turn, before, after in zip(turns, self._states[:-1] if self.environments else (), self._states[1:], strict=False):
            (anchor, earned), (_, later) = before[row], after[row]
            turn |= ({} if anchor is None else {"anchor": anchor}) | ({} if earned is None else {"reward": later - earned})
        return turns


def environment(name: str | Callable[..., Any], **options: Any) -> Any:
    """An `environment_factory` of an environment: its name, `file.py:Class` or the class, and its options. `rows` make a dataset."""
    named = name if isinstance(name, str) else Handed().name(name)

    class Attempts:
        def __init__(self) -> None:
            self._env = registry.make(named, **options)

        @classmethod
        def rows(cls, split: str = "train", n: int | None = None) -> list[dict[str, Any]]:
            instructions = Capabilities(registry.spec(named).load()).instructions
            prompt = [{"role": "user", "content": instructions and f"{instructions}\n\n"}]
            return [{"prompt": prompt, "task": json.dumps(task.to_json())} for task in registry.tasks(named, split, n=n, **options)]

        def reset(self, *, task: str, seed: int = 0, **row: Any) -> str:
            self._left, self.reward, self.success = registry.turn_limit(named, self._env) or -1, 0.0, False
            return self._show(answers.read_observation(self._env.reset(Task.from_json(json.loads(task)), seed), self._env))

        def act(self, action: str) -> str:
            """Do something in the environment, and see what happens.

            Args:
                action: What to do.
            """
            if not self._left:
                return OVER
            transition = answers.read_transition(self._env.step(action.strip()), self._env)
            self.reward, self.success = self.reward + transition.reward, transition.done and transition.success
            self._left = 0 if transition.done else self._left - 1
            return self._show(transition.observation) + ("" if self._left else f"\n{OVER}")

        def get_reward(self) -> float:
            return self.reward

        def _show(self, observation: Any) -> str:
            self.anchor = observation.key
            return str(observation.text) + (f"\nActions: {', '.join(observation.actions)}" if observation.actions else "")

    Attempts.__name__ = named.rpartition(":")[2]  # TRL logs the reward under it
    return Attempts
