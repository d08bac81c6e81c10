"""SkyRL's own trainer, batch and generator output on a CPU: from the output of its generator to the advantages that it trains with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import METHODS, NEED_VALUES, STATES, Attempt, Turn, expected, random_attempts, rollouts_of

import turnwise as tw
from turnwise.util.errors import TurnwiseError

SEEDS = (0, 1, 2)
STATE = 1000  # tokens above stand for states
PADDED_TO = 8  # SkyRL fills a batch up to a multiple of its data-parallel size


def test_another_version_of_skyrl_is_one_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    from turnwise.hosts.skyrl import TurnCredit

    monkeypatch.setattr("turnwise.hosts.versions.metadata.version", lambda package: "0.5.1")
    with pytest.raises(TurnwiseError, match=r"written for skyrl 0\.4, and 0\.5\.1 is installed: pip install 'skyrl==0\.4\.\*'"):

        class Trainer(TurnCredit):
            pass


@pytest.fixture(scope="module")
def skyrl() -> Any:
    return pytest.importorskip("skyrl.train.trainer", reason="SkyRL is not installed here: make test-hosts ONLY=skyrl")


def trainer_of(skyrl: Any, name: str, options: dict[str, Any], groups: int, merged: bool) -> Any:
    """A trainer as SkyRL builds it, without models: only what distributes its batches is replaced."""
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.trainer import RayPPOTrainer

    from turnwise.hosts.skyrl import TurnCredit

    class Trainer(TurnCredit, RayPPOTrainer):
        credit = name

        def state_of(self, observation: Any) -> int:
            return int(observation[observation >= STATE][-1])

    Trainer.options = options
    config = SkyRLTrainConfig()
    config.generator.step_wise_trajectories = True
    config.generator.merge_stepwise_output = merged
    config.trainer.train_batch_size = groups
    config.trainer.policy_mini_batch_size = 1
    config.trainer.enable_ray_gpu_monitor = config.generator.inference_engine.enable_ray_prometheus_stats = False  # both ask Ray
    config.trainer.algorithm.advantage_estimator = "grpo"

    class Tokenizer:
        pad_token_id = 0

    class Dispatch:
        @staticmethod
        def get_lcm_dp_size() -> int:
            return PADDED_TO

    trainer = Trainer(cfg=config, tracker=None, tokenizer=Tokenizer(), train_dataset=None, inference_engine_client=None, generator=None)
    trainer.dispatch = Dispatch()
    return trainer


def state(turn: Turn) -> list[int]:
    return [*turn.prompt, STATE + STATES.index(turn.anchor)]


def generated(attempts: list[Attempt], *, retokenised: bool = False, closed: bool = True) -> dict[str, Any]:
    """The output of SkyRL's gym generator: a row per step, its response followed by the observation that came back. With `closed`,
    every third response ends in a token that was appended and not sampled. `retokenised`: a later prompt does not begin with earlier ones.
    """
    from skyrl.train.generators.base import TrajectoryID

    rows: dict[str, list[Any]] = {name: [] for name in ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "trajectory_ids")}
    rows["is_last_step"] = []
    for attempt in attempts:
        context = [5, 5, *state(attempt.turns[0])]
        for t, turn in enumerate(attempt.turns):
            last = t == len(attempt.turns) - 1
            appended = [2] if closed and (attempt.number + t) % 3 == 0 else []
            back = [] if last else state(attempt.turns[t + 1])
            response = turn.response + appended + back
            rows["prompt_token_ids"].append([7, *context] if retokenised and t else list(context))
            rows["response_ids"].append(response)
            rows["loss_masks"].append([1] * len(turn.response) + [0] * len(appended + back))
            rows["rewards"].append([0.0] * len(response))
            rows["rewards"][-1][len(turn.response + appended) - 1] = turn.reward
            rows["trajectory_ids"].append(TrajectoryID(attempt.group, attempt.number))
            rows["is_last_step"].append(last)
            context = context + response
    return rows | {"stop_reasons": None, "rollout_metrics": None, "rollout_logprobs": None}


def trained_on(trainer: Any, attempts: list[Attempt], output: dict[str, Any], values: bool = False) -> Any:
    """The way of a batch through SkyRL's own methods, from the generator's output to its advantages."""
    import torch
    from skyrl.train.utils.trainer_utils import validate_generator_output

    validate_generator_output(len(attempts), output, step_wise=True)
    uids = [one.instance_id for one in output["trajectory_ids"]]
    output, uids = trainer.postprocess_generator_output(output, uids)
    data = trainer.convert_to_training_input(output, uids)
    data["values"] = None
    if values:
        critic = np.random.default_rng(0).normal(size=data["loss_mask"].shape)
        tokens = [value for attempt in attempts for turn in attempt.turns for value in turn.token_values]
        critic[data["loss_mask"].numpy() > 0] = tokens  # filled-up rows are not trained on
        data["values"] = torch.tensor(critic, dtype=torch.float32)
    return trainer.compute_advantages_and_returns(data)


def in_groups(attempts: list[Attempt]) -> list[Attempt]:
    return sorted(attempts, key=lambda attempt: attempt.group)


def sampled_values(attempts: list[Attempt], by_turn: dict[tuple[int, int], Any]) -> np.ndarray:
    return np.concatenate([by_turn[attempt.number, t] for attempt in attempts for t in range(len(attempt.turns))])


def as_skyrl_knows_values(attempts: list[Attempt]) -> list[Attempt]:
    """SkyRL's critic values tokens: that of a turn's state is the one before the turn's first token."""
    for attempt in attempts:
        for turn in attempt.turns:
            turn.token_values = [float(np.float32(value)) for value in turn.token_values]
            turn.value = turn.token_values[0]
    return attempts


@pytest.mark.parametrize("merged", [False, True], ids=["a row per step", "merged"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_sampled_token_gets_the_advantage_of_its_turn(skyrl: Any, seed: int, name: str, merged: bool) -> None:
    attempts = as_skyrl_knows_values(in_groups(random_attempts(seed, least=1)))
    trainer = trainer_of(skyrl, name, dict(METHODS[name]), groups=4, merged=merged)
    output = generated(attempts, retokenised=not merged)
    data = trained_on(trainer, attempts, output, values=name in NEED_VALUES)
    mask = data["loss_mask"].numpy() > 0
    assert data.metadata["pad_size"] > 0 or len(mask) % PADDED_TO == 0
    if merged:
        assert len(mask) - data.metadata["pad_size"] == len(attempts), "every attempt is one row"
    np.testing.assert_allclose(data["advantages"].numpy()[mask], sampled_values(attempts, expected(name, attempts)), atol=1e-6)
    assert not data["advantages"].numpy()[data["response_mask"].numpy() == 0].any()


def test_filled_up_rows_change_no_advantage(skyrl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of a method that normalises over the batch."""
    attempts = in_groups(random_attempts(3, least=1))
    results = []
    for padded_to in (1, 64):
        monkeypatch.setitem(globals(), "PADDED_TO", padded_to)
        trainer = trainer_of(skyrl, "reinforce_pp", {}, groups=4, merged=False)
        data = trained_on(trainer, attempts, generated(attempts))
        rows = len(data["advantages"]) - data.metadata["pad_size"]
        assert not data["advantages"][rows:].any()
        results.append(data["advantages"][:rows].numpy())
    np.testing.assert_array_equal(*results)


def test_a_critic_learns_the_targets_and_of_turns_only_at_their_first_tokens(skyrl: Any) -> None:
    attempts = as_skyrl_knows_values(in_groups(random_attempts(1, least=1)))
    rollouts = rollouts_of(attempts)
    for name in NEED_VALUES:
        trainer = trainer_of(skyrl, name, dict(METHODS[name]), groups=4, merged=False)
        data = trained_on(trainer, attempts, generated(attempts), values=True)
        returns = data["returns"].numpy()[data["loss_mask"].numpy() > 0]
        credit = tw.credit.assign(name, rollouts, **METHODS[name])
        wanted = np.asarray(rollouts.token_value, np.float64).copy()
        if credit.level == "token":
            wanted = credit.targets
        else:
            wanted[rollouts.token_offsets[:-1]] = credit.targets
        np.testing.assert_allclose(returns, wanted, atol=1e-5)


def test_a_step_that_is_not_trained_still_counts_with_its_reward(skyrl: Any) -> None:
    """Overlong filtering sets a step's loss mask to 0; the turns before it are judged by what it earned."""
    attempts = in_groups(random_attempts(5, least=1))
    output = generated(attempts)
    output["loss_masks"] = [
        [0] * len(mask) if last else mask for mask, last in zip(output["loss_masks"], output["is_last_step"], strict=True)
    ]
    trainer = trainer_of(skyrl, "grpo", {}, groups=4, merged=False)
    data = trained_on(trainer, attempts, output)
    by_turn = expected("grpo", attempts)
    kept = [by_turn[attempt.number, t] for attempt in attempts for t in range(len(attempt.turns) - 1)]
    np.testing.assert_allclose(data["advantages"].numpy()[data["loss_mask"].numpy() > 0], np.concatenate(kept), atol=1e-6)


def test_by_default_a_state_is_the_observation_before_the_turn(skyrl: Any) -> None:
    from turnwise.hosts.skyrl import TurnCredit

    attempts = in_groups(random_attempts(2, least=1))
    for attempt in attempts:
        for turn in attempt.turns:
            turn.prompt = []
    for merged in (False, True):
        trainer = trainer_of(skyrl, "gigpo", {"gamma": 0.9}, groups=4, merged=merged)
        type(trainer).state_of = TurnCredit.state_of
        output = generated(attempts, closed=False)
        output["prompt_token_ids"] = [ids[2:] for ids in output["prompt_token_ids"]]  # without a task before the first state
        data = trained_on(trainer, attempts, output)
        advantages = data["advantages"].numpy()[data["loss_mask"].numpy() > 0]
        np.testing.assert_allclose(advantages, sampled_values(attempts, expected("gigpo", attempts)), atol=1e-6)


def test_skyrls_metrics_are_of_these_advantages(skyrl: Any) -> None:
    attempts = in_groups(random_attempts(4, least=1))
    trainer = trainer_of(skyrl, "gigpo", {}, groups=4, merged=False)
    data = trained_on(trainer, attempts, generated(attempts))
    sampled = data["advantages"].numpy()[data["loss_mask"].numpy() > 0]
    assert trainer.all_metrics["loss/avg_raw_advantages_abs"] == pytest.approx(np.abs(sampled).mean())
    assert "credit/singleton_share" in trainer.all_metrics and "loss/avg_final_rewards" in trainer.all_metrics


def test_the_code_of_the_page_makes_skyrls_trainer(skyrl: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "trainers" / "skyrl.md").read_text(encoding="utf-8")
    scope: dict[str, Any] = {"__name__": "page"}
    exec(page.split("```python\n")[1].split("```")[0], scope)
    parts = dict.fromkeys(("tracker", "tokenizer", "train_dataset", "eval_dataset", "inference_engine_client", "generator", "colocate_pg"))
    config = trainer_of(skyrl, "gigpo", {}, groups=4, merged=False).cfg
    trainer = object.__new__(scope["Experiment"]).get_trainer(cfg=config, **parts)
    assert isinstance(trainer, skyrl.RayPPOTrainer) and trainer.credit == "gigpo"
    assert type(trainer).compute_advantages_and_returns.__module__ == "turnwise.hosts.skyrl"


def test_wrong_settings_are_clear_messages(skyrl: Any) -> None:
    from turnwise.hosts.skyrl import TurnCredit

    with pytest.raises(TurnwiseError, match=r"needs turn\.mc_value, which SkyRL does not have"):
        type("Trainer", (TurnCredit,), {"credit": "vineppo"})
    with pytest.raises(TurnwiseError, match="gama"):
        type("Trainer", (TurnCredit,), {"credit": "gigpo", "options": {"gama": 0.9}})
    trainer = trainer_of(skyrl, "gigpo", {}, groups=4, merged=False)
    trainer.cfg.generator.step_wise_trajectories = False
    with pytest.raises(TurnwiseError, match=r"generator\.step_wise_trajectories=true"):
        trainer.compute_advantages_and_returns(None)
