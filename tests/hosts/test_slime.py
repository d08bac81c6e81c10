"""slime's own samples, conversion, schedule of ranks and advantage computation, from a checkout at the commit that was tried."""

from __future__ import annotations

import importlib
import os
import sys
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import METHODS, Attempt, expected, random_attempts

from turnwise.util.errors import TurnwiseError

CHECKOUT = os.environ.get("SLIME_CHECKOUT", "")
SEEDS = (0, 1, 2)
Trained = dict[int, dict[str, Any]]
PATHS = {
    "custom_convert_samples_to_train_data_path": "turnwise.hosts.slime.convert",
    "custom_advantage_function_path": "turnwise.hosts.slime.advantages",
}


def arguments(name: str = "gigpo", **options: Any) -> Namespace:
    """What slime's command line makes, with `turnwise` as `--custom-config-path` sets it."""
    credit = {"turnwise": {"credit": name} | options, "use_opd": False, "custom_reward_post_process_path": None, "reward_key": None}
    estimator = {"advantage_estimator": "grpo", "rewards_normalization": False, "normalize_advantages": False, "kl_coef": 0.0}
    batch = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 64, "balance_data": False, "balance_by_flops": False}
    return Namespace(**PATHS, **credit, **estimator, **batch, use_rollout_logprobs=False, global_batch_size=13)


def test_distillation_and_missing_parts_are_clear_messages() -> None:
    from turnwise.hosts import slime as host

    args = arguments()
    with pytest.raises(TurnwiseError, match=r"--custom-convert-samples-to-train-data-path turnwise\.hosts\.slime\.convert too"):
        host.advantages(args, {})
    args.use_opd = True
    for call in (lambda: host.advantages(args, {}), lambda: host.convert(args, [])):
        with pytest.raises(TurnwiseError, match="cannot run with --use-opd"):
            call()
    with pytest.raises(TurnwiseError, match=r"turn\.mc_value"):
        host.convert(arguments("vineppo"), [])


class Absent(types.ModuleType):
    """A package that only GPU machines have. What is imported from it is never called here."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@pytest.fixture(scope="module")
def slime() -> Any:
    """slime's modules from the checkout, which is never a part of this repository. SGLang and Megatron are replaced by empty packages."""
    if not (Path(CHECKOUT) / "slime" / "ray").is_dir():
        pytest.skip("slime is not on the package index: set SLIME_CHECKOUT to a checkout at 624b824, make test-hosts ONLY=slime")
    for package in ("torch", "ray", "httpx"):
        pytest.importorskip(package, reason=f"slime needs {package}: make test-hosts ONLY=slime")
    sys.path.insert(0, CHECKOUT)
    names = ["megatron", "megatron.core", "wandb", "sglang", "sglang.srt"]
    for name in [*names, *(f"sglang.srt.{part}" for part in ("constants", "server_args", "utils"))]:
        sys.modules[name] = Absent(name)
    mpu = types.SimpleNamespace(
        get_context_parallel_world_size=lambda: 1, get_context_parallel_rank=lambda: 0, is_pipeline_last_stage=lambda: True
    )
    sys.modules["megatron.core"].mpu = mpu  # type: ignore[attr-defined]
    return importlib.import_module("slime.ray.rollout")


def samples_of(attempts: list[Attempt], *, described: bool = True, parts: bool = False) -> list[Any]:
    """slime's samples: an attempt each, or with `parts` a sample per turn with a common rollout id, as its sub-agents make them."""
    from slime.utils.types import Sample

    samples = []
    for attempt in attempts:
        group = int(attempt.group.split()[1])
        spans = [[turn] for turn in attempt.turns] if parts else [attempt.turns]
        for turns in spans:
            tokens, mask = list(turns[0].prompt), []
            for i, turn in enumerate(turns):
                seen = turn.prompt if i else []
                tokens += [*seen, *turn.response]
                mask += [0] * len(seen) + [1] * len(turn.response)
            rows = [
                {"reward": turn.reward, "anchor": turn.anchor, "valid": turn.valid, "value": turn.value, "token_value": turn.token_values}
                for turn in turns
            ]
            samples.append(
                Sample(
                    group_index=group,
                    index=len(samples),
                    rollout_id=attempt.number,
                    tokens=tokens,
                    response_length=len(mask),
                    loss_mask=mask,
                    reward=attempt.outcome,
                    status=Sample.Status.COMPLETED,
                    metadata={"turns": rows} if described else {},
                )
            )
    return samples


def trained_on(slime: Any, args: Namespace, samples: list[Any], monkeypatch: pytest.MonkeyPatch, ranks: int = 2) -> Trained:
    """From samples to the advantages on the ranks, through slime's own functions: what each trained sample gets, by its index."""
    import torch
    from slime.backends.megatron_utils.loss import compute_advantages_and_returns
    from slime.utils.data import process_rollout_data
    from slime.utils.misc import load_function

    manager = object.__new__(slime.RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    manager.custom_convert_samples_to_train_data_func = load_function(args.custom_convert_samples_to_train_data_path)
    manager.train_parallel_config = {"dp_size": ranks, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    monkeypatch.setattr("ray.put", lambda value: value)
    monkeypatch.setattr("ray.get", lambda value: value)
    references = manager._split_train_data_by_dp(manager._convert_samples_to_train_data(samples))
    result = {}
    for rank in range(ranks):
        data = process_rollout_data(args, references, rank, ranks)
        data["log_probs"] = [torch.zeros(length) for length in data["response_lengths"]]
        compute_advantages_and_returns(args, data)
        assert "teacher_log_probs" not in data
        for position, index in enumerate(data["sample_indices"]):
            result[int(index)] = {name: data[name][position].numpy() for name in ("advantages", "returns", "loss_masks")}
    assert len(result) == len(samples)
    return result


def compare(trained: Trained, attempts: list[Attempt], wanted: dict[tuple[int, int], Any]) -> None:
    values = [row["advantages"][row["loss_masks"] > 0] for _, row in sorted(trained.items())]
    expected_values = [wanted[attempt.number, t] for attempt in attempts for t in range(len(attempt.turns))]
    np.testing.assert_allclose(np.concatenate(values), np.concatenate(expected_values), atol=1e-6)
    for row in trained.values():
        assert not row["advantages"][row["loss_masks"] == 0].any()
        np.testing.assert_array_equal(row["advantages"], row["returns"])


@pytest.mark.parametrize("parts", [False, True], ids=["an attempt per sample", "a turn per sample"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_rank_gets_the_advantages_of_the_whole_batch(
    slime: Any, seed: int, name: str, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = random_attempts(seed, least=1)
    trained = trained_on(slime, arguments(name, **METHODS[name]), samples_of(attempts, parts=parts), monkeypatch)
    compare(trained, attempts, expected(name, attempts))


def test_without_a_description_the_reward_is_on_the_last_turn_and_states_are_observations(
    slime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = random_attempts(4, least=1, outcome_only=True)
    for attempt in attempts:
        for turn in attempt.turns:
            turn.anchor = str(turn.prompt)
    for parts in (False, True):
        samples = samples_of(attempts, described=False, parts=parts)
        for sample in samples:
            sample.rollout_id = sample.rollout_id if parts else None  # slime then counts each sample as an attempt
        compare(trained_on(slime, arguments(gamma=0.9), samples, monkeypatch), attempts, expected("gigpo", attempts))


def test_an_attempt_that_is_not_trained_still_counts_in_its_group(slime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = random_attempts(5, least=1)
    samples = samples_of(attempts)
    samples[2].remove_sample = True
    trained = trained_on(slime, arguments("grpo"), samples, monkeypatch)
    assert not trained[2]["loss_masks"].any()
    rest = {index: row for index, row in trained.items() if index != 2}
    compare(rest, [attempt for attempt in attempts if attempt.number != attempts[2].number], expected("grpo", attempts))


def test_the_page_names_what_slime_loads(slime: Any) -> None:
    """Its paths are functions, and its settings are those of an algorithm."""
    import yaml
    from slime.utils.misc import load_function

    page = (Path(__file__).parents[2] / "docs" / "trainers" / "slime.md").read_text(encoding="utf-8")
    for option, path in PATHS.items():
        assert f"--{option.replace('_', '-')} {path}\n" in page and callable(load_function(path))
    args = arguments()
    vars(args).update(yaml.safe_load(page.split("```yaml\n")[1].split("```")[0]))
    assert load_function(PATHS["custom_convert_samples_to_train_data_path"])(args, samples_of(random_attempts(0, least=1)))


def test_slimes_own_columns_are_as_without_turnwise(slime: Any) -> None:
    from turnwise.hosts.slime import convert

    manager = object.__new__(slime.RolloutManager.__ray_metadata__.modified_class)
    manager.args = arguments()
    manager.custom_convert_samples_to_train_data_func = manager.custom_reward_post_process_func = None
    attempts = random_attempts(0, least=1)
    own, ours = manager._convert_samples_to_train_data(samples_of(attempts)), convert(arguments(), samples_of(attempts))
    assert ours.pop("teacher_log_probs") and ours == own


def test_a_description_that_does_not_fit_is_a_clear_message(slime: Any) -> None:
    from turnwise.hosts.slime import convert

    samples = samples_of(random_attempts(0, least=1))
    samples[3].metadata["turns"].append({"reward": 1.0, "anchor": "hall"})
    with pytest.raises(TurnwiseError, match=r"sample 3: metadata\['turns'\] has \d turns, and its loss mask has \d runs"):
        convert(arguments(), samples)
    samples[3].metadata["turns"].pop()
    samples[0].group_index = None
    with pytest.raises(TurnwiseError, match="group_index"):
        convert(arguments(), samples)
