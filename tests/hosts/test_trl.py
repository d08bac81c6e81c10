"""Credit in TRL's own trainer equals `tw.credit.compute` on the same attempts: through `rollout_func` and the loop of tool calls, in a step
of training, in evaluation, and with groups that lie in two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import METHODS, Attempt, Turn, expected, random_attempts

pytest.importorskip("trl", reason="TRL is not installed here: make test-hosts ONLY=trl")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch
from datasets import Dataset
from tiny_trl import tiny_model, tiny_tokenizer
from transformers.utils import get_json_schema
from trl import GRPOConfig

import turnwise as tw
from turnwise.hosts.trl import OVER, CreditTrainer, environment

GROUP = 4
UNSCORED = -1  # the number of an attempt that no reward function scores
Rows = list[dict[str, Any]]


def whole_groups(seed: int, **options: Any) -> list[Attempt]:
    """Random attempts in groups of equal size, as TRL has them. In the first group, only one attempt has a reward."""
    attempts = random_attempts(seed, attempts=GROUP, least=1, **options)
    unscored = [Attempt("task 0", UNSCORED, [Turn("hall", [5], [6, 7], 1.0, True, 0.0, [0.0, 0.0])]) for _ in range(GROUP - 1)]
    return sorted(attempts + unscored, key=lambda attempt: attempt.group)


def truncated(attempt: Attempt, rng: np.random.Generator) -> Attempt:
    """The attempt as if its last tokens had been cut off: what its lost turns earned belongs to the last turn that is left."""
    turns = attempt.turns[: int(rng.integers(1, len(attempt.turns) + 1))]
    last, size = turns[-1], int(rng.integers(1, len(turns[-1].response) + 1))
    earned = attempt.outcome - sum(turn.reward for turn in turns[:-1])
    cut = replace(last, response=last.response[:size], token_values=last.token_values[:size], reward=earned)
    return replace(attempt, turns=[*turns[:-1], cut])


def rollout(attempts: list[Attempt], visible: list[Attempt], rewards: bool = True) -> Callable[..., dict[str, Any]]:
    """A rollout function that returns these attempts; `visible` is what is left of their tokens."""
    tokens, masks, turns = [], [], []
    for attempt, rest in zip(attempts, visible, strict=True):
        observed = [[], *([1, *turn.prompt] for turn in rest.turns[1:])]
        tokens.append([token for seen, turn in zip(observed, rest.turns, strict=True) for token in (*seen, *turn.response)])
        masks.append([mark for seen, turn in zip(observed, rest.turns, strict=True) for mark in [0] * len(seen) + [1] * len(turn.response)])
        shown = [*rest.turns, *attempt.turns[len(rest.turns) :]]
        columns = [{"anchor": turn.anchor, "valid": turn.valid, "value": turn.value, "token_value": turn.token_values} for turn in shown]
        earned = [{"reward": turn.reward} if rewards else {} for turn in attempt.turns]
        turns.append([column | reward for column, reward in zip(columns, earned, strict=True)])
    result = {
        "prompt_ids": [attempt.turns[0].prompt for attempt in attempts],
        "completion_ids": tokens,
        "logprobs": None,
        "env_mask": masks,
        "turns": turns,
        "outcome": [None if attempt.number == UNSCORED else attempt.outcome for attempt in attempts],
    }
    return lambda prompts, trainer: result


def outcomes(outcome: list[float | None], **_: Any) -> list[float | None]:
    return outcome


def make_trainer(folder: Path, rows: Rows, credit: Any = "gigpo", credit_options: Any = None, **options: Any) -> CreditTrainer:
    tokenizer = tiny_tokenizer()
    named = ("rollout_func", "environment_factory", "reward_funcs", "eval_dataset")
    arguments = {name: options.pop(name) for name in named if name in options}
    config = {"per_device_train_batch_size": len(rows) * GROUP, "num_generations": GROUP, "max_steps": 1, "logging_steps": 1}
    fixed = {"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True}
    return CreditTrainer(
        credit=credit,
        credit_options=credit_options,
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(str(folder), **{**config, **fixed, **options}),
        **arguments,
    )


def scored(trainer: CreditTrainer, rows: Rows) -> dict[str, Any]:
    """What TRL makes of one batch: every row of the dataset `GROUP` times, as its sampler repeats it."""
    return trainer._generate_and_score_completions([dict(row) for row in rows for _ in range(GROUP)])


def check(output: dict[str, Any], attempts: list[Attempt], name: str, **options: Any) -> None:
    """Sampled tokens have the credit of their turn (or their own); everything else, and attempts without a reward, 0."""
    wanted = np.zeros(output["completion_ids"].shape, np.float32)
    credit = expected(name, [attempt for attempt in attempts if attempt.number != UNSCORED], **options)
    for row, attempt in enumerate(attempts):
        position = 0
        for t, turn in enumerate(attempt.turns):
            position += (1 + len(turn.prompt)) if t else 0
            if attempt.number != UNSCORED:
                wanted[row, position : position + len(turn.response)] = credit[attempt.number, t]
            position += len(turn.response)
    assert np.abs(wanted).sum() > 0
    np.testing.assert_allclose(output["advantages"].numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_advantages_of_a_rollout_function_are_those_of_the_algorithm(tmp_path: Path, name: str, seed: int) -> None:
    attempts, rng = whole_groups(seed), np.random.default_rng(seed)
    visible = [truncated(attempt, rng) if rng.random() < 0.3 and attempt.number != UNSCORED else attempt for attempt in attempts]
    rows = [{"prompt": f"go {group}"} for group in range(4)]
    options = {"rollout_func": rollout(attempts, visible), "reward_funcs": outcomes, "pad_to_multiple_of": 8}
    output = scored(make_trainer(tmp_path, rows, name, METHODS[name], **options), rows)
    assert output["completion_ids"].shape[1] % 8 == 0
    check(output, visible, name)


def test_the_last_turn_gets_what_no_turn_was_given(tmp_path: Path) -> None:
    attempts = whole_groups(5, outcome_only=True)
    rows = [{"prompt": f"go {group}"} for group in range(4)]
    options = {"rollout_func": rollout(attempts, attempts, rewards=False), "reward_funcs": outcomes}
    check(scored(make_trainer(tmp_path, rows, **options), rows), attempts, "gigpo", gamma=0.95)


def test_a_credit_function_reads_columns_that_a_rollout_function_adds(tmp_path: Path) -> None:
    attempts = whole_groups(10)
    result = rollout(attempts, attempts)([], None)
    result["turns"] = [[turn | {"turn.bonus": float(len(turns) - t)} for t, turn in enumerate(turns)] for turns in result["turns"]]
    rows = [{"prompt": f"go {group}"} for group in range(4)]
    options = {"rollout_func": lambda prompts, trainer: dict(result), "reward_funcs": outcomes}
    trainer = make_trainer(tmp_path, rows, lambda rollouts: rollouts.column("turn.bonus"), **options)
    left = [
        [0.0] * len(attempt.turns) if attempt.number == UNSCORED else [float(len(attempt.turns) - t) for t in range(len(attempt.turns))]
        for attempt in attempts
    ]
    assert advantages_per_turn(trainer, scored(trainer, rows)) == left


def test_completions_that_are_left_out_of_the_loss_are_compared_all_the_same(tmp_path: Path) -> None:
    attempts = whole_groups(6)
    rows = [{"prompt": f"go {group}"} for group in range(4)]
    options = {"rollout_func": rollout(attempts, attempts), "reward_funcs": outcomes, "mask_truncated_completions": True}
    output = scored(make_trainer(tmp_path, rows, **options), rows)
    assert not output["completion_mask"].any()  # none of these ends with the token <eos>
    check(output, attempts, "gigpo", gamma=0.95)


def test_a_training_step_learns_from_the_credit_of_its_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = whole_groups(7)
    rows = [{"prompt": f"go {group}"} for group in range(4)]
    options = {"rollout_func": rollout(attempts, attempts), "reward_funcs": outcomes, "shuffle_dataset": False}
    whole = scored(make_trainer(tmp_path, rows, **options), rows)
    wanted = {tuple(ids): values for ids, values in zip(whole["completion_ids"].tolist(), whole["advantages"].tolist(), strict=True)}
    seen = {}
    trainer = make_trainer(tmp_path, rows, **options, per_device_train_batch_size=GROUP, gradient_accumulation_steps=GROUP)
    before = [weights.clone() for weights in trainer.model.parameters()]
    loss_of = trainer._compute_loss

    def watch(model: Any, inputs: Any) -> Any:
        seen.update(
            {tuple(ids): values for ids, values in zip(inputs["completion_ids"].tolist(), inputs["advantages"].tolist(), strict=True)}
        )
        return loss_of(model, inputs)

    monkeypatch.setattr(trainer, "_compute_loss", watch)
    trainer.train()
    assert seen == wanted
    assert any((weights != old).any() for weights, old in zip(trainer.model.parameters(), before, strict=True))
    line = next(line for line in trainer.state.log_history if "credit/step_credit_share" in line)
    scored_attempts = [attempt for attempt in attempts if attempt.number != UNSCORED]
    turns = [(attempt, t, turn) for attempt in scored_attempts for t, turn in enumerate(attempt.turns)]
    diagnosis = tw.credit.of_table(
        "gigpo",
        [
            {
                "group": attempt.group,
                "trajectory": attempt.number,
                "t": t,
                "anchor": turn.anchor,
                "reward": turn.reward,
                "valid": turn.valid,
            }
            for attempt, t, turn in turns
        ],
    ).diagnosis
    assert line["credit/step_credit_share"] == pytest.approx(diagnosis["step_credit_share"])
    assert line["credit/anchor_size_histogram/2-3"] == pytest.approx(diagnosis["anchor_size_histogram"]["2-3"])


def test_in_evaluation_a_group_may_be_one_attempt(tmp_path: Path) -> None:
    attempts = whole_groups(8)
    rows = [{"prompt": f"go {number}"} for number in range(4)]
    options = {"rollout_func": rollout(attempts, attempts), "reward_funcs": outcomes, "num_generations_eval": 1}
    trainer = make_trainer(tmp_path, rows, **options, eval_dataset=Dataset.from_list(rows))
    trainer.model.eval()
    output = scored(trainer, rows)
    alone = [replace(attempt, group=str(row)) for row, attempt in enumerate(attempts)]
    credit = expected("gigpo", [attempt for attempt in alone if attempt.number != UNSCORED], gamma=0.95)
    assert max(np.abs(values).max() for values in credit.values()) > 0  # a state that an attempt comes back to
    assert np.abs(output["advantages"].numpy()).max() == pytest.approx(max(np.abs(values).max() for values in credit.values()))
    assert trainer._metrics["eval"]["credit/constant_group_share"] == [1.0]


class Bare:
    """A walk along numbers that says nothing about its states and rewards."""

    def reset(self, **row: Any) -> str:
        self._at, self._earned = 0, 0.0
        return " : 0"

    def act(self, action: str) -> str:
        """Walk.

        Args:
            action: + or -
        """
        self._at += 1 if action == "+" else -1
        self._earned += 0.5 if self._at == 2 else 0.0
        if self._at == -2:
            raise ValueError("there is nothing")
        return f"Current {self._at}"

    def get_reward(self) -> float:
        return self._earned + (self._at == 3)


class Walk(Bare):
    """The same with the two attributes that the trainer reads."""

    @property
    def anchor(self) -> int:
        return self._at

    @property
    def reward(self) -> float:
        return self._earned


SCRIPTS = [
    ["+ <eos>", "+ <eos>", "+ <eos>", "go <eos>"],
    ["+ <eos>", "- <eos>", "+ <eos>", "go go <eos>"],
    ["+ + <eos>", "- <eos>", "go <eos>"],  # two calls in a response
    ["- <eos>", "- <eos>", "+ <eos>", "go <eos>"],  # the second call ends in an exception
]
# What the attempts consist of: the state before each response, what it earned, and whether its call went through.
PLAYED = [
    [(0, 0.0, True), (1, 0.5, True), (2, 0.0, True), (3, 1.0, True)],
    [(0, 0.0, True), (1, 0.0, True), (0, 0.0, True), (1, 0.0, True)],
    [(0, 0.5, True), (2, 0.0, True), (1, 0.0, True)],
    [(0, 0.0, True), (-1, 0.0, False), (-2, 0.0, True), (-1, 0.0, True)],
]
SEEN = [["", "1", "2", "3"], ["", "1", "0", "1"], ["", "1 2", "1"], ["", "-1", "error", "-1"]]


def speak(trainer: CreditTrainer, monkeypatch: pytest.MonkeyPatch, scripts: list[list[str]]) -> None:
    """Let the model say these responses, each attempt its own, in TRL's loop of tool calls."""
    said: dict[int, int] = {}
    tokenizer = trainer.processing_class

    def generate(input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        rounds = max(said.values(), default=0)
        active = [row for row in range(len(scripts)) if said.get(row, 0) == rounds and rounds < len(scripts[row])]
        assert len(active) == len(input_ids)
        for row in active:
            said[row] = rounds + 1
        words = [tokenizer(scripts[row][rounds])["input_ids"] for row in active]
        longest = max(map(len, words))
        padded = [ids + [tokenizer.pad_token_id] * (longest - len(ids)) for ids in words]
        return torch.cat([input_ids, torch.tensor(padded)], 1)

    monkeypatch.setattr(trainer.model, "generate", generate)


def advantages_per_turn(trainer: CreditTrainer, output: dict[str, Any]) -> list[list[float]]:
    """The advantage of each response; its tokens have the same one, and others have none."""
    mask = (output["completion_mask"] * output["tool_mask"]).bool()
    values = output["advantages"]
    assert values.shape == mask.shape and not values[~mask].any()
    result = []
    for row in range(len(mask)):
        starts = [i for i in range(mask.shape[1]) if mask[row, i] and not (i and mask[row, i - 1])]
        ends = [i + 1 for i in range(mask.shape[1]) if mask[row, i] and not (i + 1 < mask.shape[1] and mask[row, i + 1])]
        assert all(len(set(values[row, start:end].tolist())) == 1 for start, end in zip(starts, ends, strict=True))
        result.append([float(values[row, start]) for start in starts])
    return result


def credit_of(played: list[list[tuple[Any, float, bool]]], **options: Any) -> list[list[float]]:
    rows = [(attempt, t, *turn) for attempt, turns in enumerate(played) for t, turn in enumerate(turns)]
    attempt, t, anchor, reward, valid = zip(*rows, strict=True)
    columns = {"group": [0] * len(rows), "trajectory": attempt, "t": t, "anchor": anchor, "reward": reward, "valid": valid}
    values = tw.credit.compute("gigpo", tw.Rollouts.from_columns(**columns), **options).tolist()
    return [[value for row, value in zip(rows, values, strict=True) if row[0] == number] for number in range(len(played))]


@pytest.mark.parametrize("factory", [Walk, Bare])
def test_turns_of_tool_calls_are_read_from_the_loop_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: type[Bare]
) -> None:
    rows = [{"prompt": [{"role": "user", "content": "go"}]}]
    options = {"invalid_penalty": 0.25, "gamma": 0.9}
    trainer = make_trainer(tmp_path, rows, "gigpo", options, environment_factory=factory, max_completion_length=200)
    speak(trainer, monkeypatch, SCRIPTS)
    output = scored(trainer, rows)
    played: list[list[tuple[Any, float, bool]]] = PLAYED
    if factory is Bare:  # states are what the tools said, and the reward is the attempt's
        totals = [sum(turn[1] for turn in turns) for turns in PLAYED]
        played = [
            [(seen[t], totals[row] if t == len(turns) - 1 else 0.0, turn[2]) for t, turn in enumerate(turns)]
            for row, (turns, seen) in enumerate(zip(PLAYED, SEEN, strict=True))
        ]
    for credit, wanted in zip(advantages_per_turn(trainer, output), credit_of(played, **options), strict=True):
        assert credit == pytest.approx(wanted, abs=1e-6)


def test_what_a_call_earned_whose_result_was_too_long_belongs_to_its_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": [{"role": "user", "content": "go"}]}]
    room = 11  # two responses of two tokens and the first result of four or five; the second result does not fit
    trainer = make_trainer(tmp_path, rows, environment_factory=Walk, max_completion_length=room)
    speak(trainer, monkeypatch, [["+ <eos>", "+ <eos>"], ["- <eos>", "+ <eos>"], ["+ <eos>", "- <eos>"], ["go <eos>"]])
    output = scored(trainer, rows)
    played = [[(0, 0.0, True), (1, 0.5, True)], [(0, 0.0, True), (-1, 0.0, True)], [(0, 0.0, True), (1, 0.0, True)], [(0, 0.0, True)]]
    assert [walk._at for walk in trainer.environments] == [2, 0, 0, 0]
    for credit, wanted in zip(advantages_per_turn(trainer, output), credit_of(played), strict=True):
        assert credit == pytest.approx(wanted, abs=1e-6)


def test_a_turnwise_environment_is_an_environment_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = environment("numberline", highest=5)
    rows = [row for row in line.rows() if json.loads(row["task"])["id"] == "numberline-2-1"]
    assert len(line.rows(n=3)) == 3 and len(rows) == 1
    schema = get_json_schema(line().act)["function"]
    assert schema["name"] == "act" and list(schema["parameters"]["properties"]) == ["action"]
    trainer = make_trainer(tmp_path, rows, environment_factory=line, max_completion_length=300)
    scripts = [
        ["+ <eos>", "- <eos>", "- <eos>", "go <eos>"],
        ["+ <eos>", "go <eos>"],
        ["- <eos>", "go <eos>"],
        ["- <eos>", "- <eos>", "go <eos>"],
    ]
    speak(trainer, monkeypatch, scripts)
    output = scored(trainer, rows)
    start, far, there = (f"Target: 1\nCurrent: {position}" for position in (2, 3, 1))
    played = [
        [(start, -1.0, True), (far, 0.0, True), (start, 1.0, True), (there, 0.0, True)],
        [(start, -1.0, True), (far, 0.0, True)],
        [(start, 1.0, True), (there, 0.0, True)],
        [(start, 1.0, True), (there, 0.0, True), (there, 0.0, True)],  # a call after the end changes nothing
    ]
    for credit, wanted in zip(advantages_per_turn(trainer, output), credit_of(played), strict=True):
        assert credit == pytest.approx(wanted, abs=1e-6)
    assert [attempt.success for attempt in trainer.environments] == [True, False, True, True]
    assert trainer._metrics["train"]["rewards/numberline/mean"] == [pytest.approx(0.25)]


def test_a_turnwise_environment_ends_an_attempt_at_its_limit_of_turns() -> None:
    line = environment("numberline", highest=5)
    played = line()
    first = next(row for row in line.rows() if json.loads(row["task"])["id"] == "numberline-2-1")
    assert "Current: 2" in played.reset(**first)
    said = [played.act(action) for action in ("+", "-") * 6]
    assert [OVER in text for text in said] == [False] * 9 + [True] * 3 and said[-1] == OVER
    assert "Current: 2" in played.reset(**first) and played.get_reward() == 0.0


def test_the_example_of_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_tokenizer()
    for part in (tokenizer, tiny_model(tokenizer)):
        part.save_pretrained(tmp_path / "model")
    page = (Path(__file__).parents[2] / "docs" / "trainers" / "trl.md").read_text()
    code = page.split("```python\n")[1].split("```")[0].replace("Qwen/Qwen3-1.7B", str(tmp_path / "model"))
    small = {"max_steps": 1, "max_completion_length": 8, "report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no"}
    monkeypatch.setattr("trl.GRPOConfig", partial(GRPOConfig, **small))
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["trainer"].state.global_step == 1


@pytest.mark.parametrize(
    "option",
    [{"scale_rewards": "none"}, {"multi_objective_aggregation": "normalize_then_sum"}, {"off_policy_mask_threshold": 0.1}],
)
def test_options_that_credit_replaces_are_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(tw.TurnwiseError, match=f"leave {next(iter(option))} at"):
        make_trainer(tmp_path, [{"prompt": "go"}], reward_funcs=outcomes, **option)


def test_a_wrong_option_of_the_algorithm_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(tw.TurnwiseError, match="gama"):
        make_trainer(tmp_path, [{"prompt": "go"}], "gigpo", {"gama": 0.9}, reward_funcs=outcomes)


def test_a_rollout_function_that_says_nothing_about_its_turns_is_an_error(tmp_path: Path) -> None:
    attempts = whole_groups(9)
    result = rollout(attempts, attempts)([], None)
    del result["turns"]
    rows = [{"prompt": f"go {group}"} for group in range(4)]
    trainer = make_trainer(tmp_path, rows, rollout_func=lambda prompts, trainer: dict(result), reward_funcs=outcomes)
    with pytest.raises(tw.TurnwiseError, match=r"completion 0: 3 responses, 1 turns\. See `turns` in docs/trainers/trl\.md"):
        scored(trainer, rows)


def test_a_group_may_lie_in_two_processes(tmp_path: Path) -> None:
    """Three groups of four in two processes of six: each process has half of the second group."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, str(tmp_path)]
    paths = os.pathsep.join([str(Path(tw.__file__).parent.parent), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    halves = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    attempts = straddling()
    for rank, half in enumerate(halves):
        own = attempts[6 * rank : 6 * rank + 6]
        wanted = expected("gigpo", [attempt for attempt in attempts if attempt.number != UNSCORED], gamma=0.95)
        flat = np.concatenate([wanted[attempt.number, t] for attempt in own for t in range(len(attempt.turns))])
        np.testing.assert_allclose(half["advantages"][half["mask"].bool()].numpy(), flat, atol=1e-6)
        assert not half["advantages"][~half["mask"].bool()].any()


def straddling() -> list[Attempt]:
    return whole_groups(11)[GROUP:]  # without the group in which only one attempt has a reward


def one_of_two_processes(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    own = straddling()[6 * rank : 6 * rank + 6]
    rows = [{"prompt": f"go {group}"} for group in range(3)]
    options = {"rollout_func": rollout(own, own), "reward_funcs": outcomes, "per_device_train_batch_size": 6}
    trainer = make_trainer(folder / str(rank), rows, **options)
    assert trainer.accelerator.num_processes == 2
    output = trainer._generate_and_score_completions([{"prompt": f"go {(6 * rank + i) // GROUP}"} for i in range(6)])
    mask = output["completion_mask"] * output["tool_mask"]
    torch.save({"advantages": output["advantages"], "mask": mask}, folder / f"{rank}.pt")


if __name__ == "__main__":
    one_of_two_processes(Path(sys.argv[1]))
