"""Credit in verl's V1 trainers: real trainers, a real TransferQueue, rows as verl's agent loop worker writes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed: make test-hosts ONLY=verl")
LOADED_BY_VERL = "turnwise.hosts.verl" in sys.modules  # nothing but verl's own loader has imported it by now

import transfer_queue as tq  # noqa: E402
from batches import METHODS, NEED_VALUES, Attempt, expected, random_attempts, rollouts_of  # noqa: E402
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY  # noqa: E402
from verl.trainer.ppo.v1 import PPOTrainerSync  # noqa: E402
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY  # noqa: E402
from verl_rows import (  # noqa: E402
    LONGEST,
    batch_of,
    by_attempt,
    by_step,
    config_of,
    local_cluster,
    put,
    put_tokens,
    read,
    trainer_of,
    truncated,
    uid_of,
)

import turnwise as tw  # noqa: E402
from turnwise.util.errors import TurnwiseError  # noqa: E402

MODES = ("sync", "colocate_async", "separate_async")
LAYOUTS = {"attempt": by_attempt, "step": by_step}
EVERY = {**METHODS, "gae of tokens": {"level": "token", "gamma": 0.99}}
PARTITION = "train"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_cluster():
        yield


@pytest.fixture(autouse=True)
def empty_queue() -> Iterator[None]:
    yield
    if keys := list(tq.kv_list(PARTITION).get(PARTITION, ())):
        tq.kv_clear(keys=keys, partition_id=PARTITION)


def test_verl_finds_the_plugin_by_itself() -> None:
    assert LOADED_BY_VERL
    assert "turnwise" in ADV_ESTIMATOR_REGISTRY
    assert {f"turnwise_{mode}" for mode in MODES} < TRAINER_REGISTRY.keys()


def spans(layout: str, attempt: Attempt) -> Iterator[tuple[str, int, int]]:
    """The row of each turn, and where in its response the turn's tokens start and end."""
    place = 0
    for t, turn in enumerate(attempt.turns):
        row = t if layout == "step" else 0
        place = 0 if layout == "step" else place + (len(turn.prompt) if t else 0)
        yield f"{uid_of(attempt)}_{attempt.number}_{row}", place, place + len(turn.response)
        place += len(turn.response)


def check_advantages(mode: str, name: str, layout: str, seed: int) -> None:
    """The advantages in TransferQueue after verl's `_compute_advantage` are those of `tw.credit`, and 0 outside of turns."""
    method, options = name.partition(" ")[0], EVERY[name]
    critic, attempts = method in NEED_VALUES, random_attempts(seed)
    if layout == "attempt" and method == "bi_level_gae":  # needs a token in every turn: an agent loop that stops where a row is cut
        truncated(attempts, whole_turns=True)
    put(attempts, LAYOUTS[layout], PARTITION)
    if layout == "attempt":  # the step data keep the turns whose tokens were cut off
        truncated(attempts, whole_turns=False)
    for turn in (turn for attempt in attempts for turn in attempt.turns):
        turn.value = turn.token_values[0] if turn.token_values else 0.0  # verl's critic has values of tokens only
    batch = batch_of(PARTITION, seed)
    lengths = dict(zip(batch.keys, (len(row["response_mask"]) for row in read(batch, "response_mask")), strict=True))
    assert sum(tag.get("is_padding", False) for tag in batch.tags) == 3
    assert layout == "step" or max(lengths.values()) == LONGEST

    values = {key: np.full(length, 7.0) for key, length in lengths.items()}  # 7: where nobody must look
    advantages = {key: np.zeros(length) for key, length in lengths.items()}
    returns = {key: np.zeros(length) for key, length in lengths.items()}
    credit, targets = expected(method, attempts, **options), expected_targets(method, attempts, **options)
    for attempt in attempts:
        for t, (key, start, end) in enumerate(spans(layout, attempt)):
            advantages[key][start:end] = credit[attempt.number, t]
            returns[key][start:end] = targets[attempt.number, t]
            values[key][start:end] = attempt.turns[t].token_values
    if critic:
        put_tokens(batch, "values", [values.get(key, [9.0]) for key in batch.keys])

    metrics: dict[str, Any] = {}
    trainer = trainer_of(config_of(mode, method, f"critic.enable={str(critic).lower()}", **options))
    assert trainer.trainer_mode == mode  # verl compares with its own names
    result = trainer._compute_advantage(batch, metrics)
    assert len(result.keys) == len(batch.keys)
    for key, row in zip(batch.keys, read(batch, "advantages", "returns"), strict=True):
        np.testing.assert_allclose(row["advantages"], advantages[key], atol=1e-6, err_msg=key)
        np.testing.assert_allclose(row["returns"], returns[key], atol=1e-6, err_msg=key)
    assert metrics["credit/size"] > 0.0


def expected_targets(name: str, attempts: list[Attempt], **options: object) -> dict[tuple[int, int], Any]:
    """What a critic learns for each token: the targets of the algorithm; the advantages where it has none."""
    rollouts = rollouts_of(attempts)
    credit = tw.credit.assign(name, rollouts, **options)
    values = credit.values if credit.targets is None else credit.targets
    per_token = values if credit.level == "token" else np.repeat(values, np.diff(rollouts.token_offsets))
    turns = [(attempt.number, t) for attempt in attempts for t in range(len(attempt.turns))]
    return dict(zip(turns, np.split(per_token, rollouts.token_offsets[1:-1]), strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_each_turn_its_credit(mode: str) -> None:
    check_advantages(mode, "gigpo", "attempt", seed=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", EVERY)
def test_advantages_in_the_queue_are_those_of_credit_compute(name: str, layout: str) -> None:
    for seed in (2, 3):
        check_advantages("sync", name, layout, seed)
        tq.kv_clear(keys=list(tq.kv_list(PARTITION)[PARTITION]), partition_id=PARTITION)


def test_verls_own_score_is_the_reward_where_step_data_have_none() -> None:
    attempts = random_attempts(4, outcome_only=True)
    put(attempts, without("reward"), PARTITION)
    batch = batch_of(PARTITION, 4)
    trainer_of(config_of("sync", "grpo"))._compute_advantage(batch, {})
    advantages = dict(zip(batch.keys, (row["advantages"] for row in read(batch, "advantages")), strict=True))
    for (number, t), values in expected("grpo", attempts).items():
        attempt = next(attempt for attempt in attempts if attempt.number == number)
        np.testing.assert_allclose(advantages[f"{uid_of(attempt)}_{number}_{t}"], values, atol=1e-6)


def without(column: str) -> Any:
    def layout(attempt: Attempt) -> list[Any]:
        rows = by_step(attempt)
        for row in rows:
            del row.extra_fields["turnwise"][column]
        return rows

    return layout


def test_tokens_that_verl_rejects_move_no_turn() -> None:
    """`rollout_correction` clears the mask of tokens before it calls the estimator; turns are read from the mask as it was."""
    attempts = random_attempts(5)
    put(attempts, by_attempt, PARTITION)
    truncated(attempts, whole_turns=False)
    batch = batch_of(PARTITION, 5)
    rng = np.random.default_rng(5)
    for field, spread in (("rollout_log_probs", 0.0), ("old_log_probs", 3.0)):
        put_tokens(batch, field, [rng.normal(-1.0, spread, len(row["response_mask"])) for row in read(batch, "response_mask")])
    before = [row["response_mask"].sum() for row in read(batch, "response_mask")]
    correction = ("algorithm.rollout_correction.rollout_rs=token_k1", "algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0")
    trainer_of(config_of("sync", "gigpo", *correction, gamma=0.9))._compute_advantage(batch, {})
    rows = dict(zip(batch.keys, read(batch, "advantages", "response_mask"), strict=True))
    assert sum(row["response_mask"].sum() for row in rows.values()) < sum(before)
    credit = expected("gigpo", attempts)
    for attempt in attempts:
        for t, (key, start, end) in enumerate(spans("attempt", attempt)):
            np.testing.assert_allclose(rows[key]["advantages"][start:end], credit[attempt.number, t], atol=1e-6)


def test_the_estimator_says_that_a_trainer_is_missing() -> None:
    put(random_attempts(6), by_attempt, PARTITION)
    config = config_of("sync")
    config.trainer.v1.trainer_mode = "sync"
    with pytest.raises(TurnwiseError, match="trainer_mode=turnwise_sync"):
        PPOTrainerSync(config)._compute_advantage(batch_of(PARTITION, 6), {})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.adv_estimator=grpo"], "needs algorithm.adv_estimator=turnwise"),
        (["~algorithm.turnwise.name"], r"\+algorithm.turnwise.name"),
        (["algorithm.use_kl_in_reward=true"], "use_kl_loss"),
        (["algorithm.turnwise.name=gigpoo"], "Did you mean 'gigpo'"),
        (["+algorithm.turnwise.gama=0.9"], "gama.*gamma"),
    ],
)
def test_settings_that_contradict_credit_are_errors_before_anything_starts(overrides: list[str], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        trainer_of(config_of("sync", "gigpo", *overrides))


def more_turns(attempt: Attempt) -> list[Any]:
    [row] = by_attempt(attempt)
    row.extra_fields["turnwise"] = {name: [*column, column[0]] for name, column in row.extra_fields["turnwise"].items()}
    return [row]


def no_step_data(attempt: Attempt) -> list[Any]:
    [row] = by_attempt(attempt)
    del row.extra_fields["turnwise"]
    return [row]


@pytest.mark.parametrize(
    ("layout", "message"),
    [(more_turns, r"row task-\d_\d+_0.*: 2 turns, and 1 responses"), (no_step_data, "got none.*turnwise.hosts.verl_agent")],
)
def test_rows_without_fitting_step_data_are_named(layout: Any, message: str) -> None:
    put(random_attempts(7, longest=1, groups=1), layout, PARTITION)
    with pytest.raises(TurnwiseError, match=message):
        trainer_of(config_of("sync"))._compute_advantage(batch_of(PARTITION, 7), {})
