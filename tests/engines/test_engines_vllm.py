"""The vLLM engine on a stand-in for vLLM (`fake_vllm.py`): tokens and log-probs are exact, vLLM is called as it wants to be, no
prefix of old weights is reused, and a round of weights that fails ends the engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest
import torch
from cluster_runs import SMALL
from conftest import ROOT
from native_models import drain, make
from test_engines_sampling import byte_tokenizer

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.collect.hooks import Hooks
from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.transformers import TransformersEngine
from turnwise.engines.vllm import VllmEngine
from turnwise.engines.vllm import weights as vllm_weights
from turnwise.engines.vllm.compat import check
from turnwise.recipe.schema import Config
from turnwise.setup.build import build_policy, engine_options, load_model
from turnwise.setup.cluster import ActorSpec

SERVED = SMALL | {"engine.name": "vllm", "collect.groups": 2, "collect.group_size": 2, "eval.n": 1, "model.tiny.vocabulary_tasks": 8}
GREEDY = Sampling(temperature=0.0, max_tokens=6)
PROMPT = [5, 9, 11, 3, 17, 23, 2, 8, 31]
Make = Callable[..., tuple[VllmEngine, Any]]


@pytest.fixture(autouse=True)
def short_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.engines.vllm.engine.CHECKED_TOKENS", 3)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Make:
    """An engine on a small model, and the stand-in's engine inside it."""
    fake_vllm.install(monkeypatch)

    def made(model: Any = None, **options: Any) -> tuple[VllmEngine, Any]:
        found = VllmEngine(
            model or make("qwen2, tied"), max_batch=8, max_length=64, **{"self_check": False, "stop_token_ids": (), **options}
        )
        return found, fake_vllm.LLMEngine.made[-1]

    return made


def answers(engine: Any, *requests: Request) -> list[Response]:
    engine.submit(requests)
    return [response for _, response in sorted(drain(engine).items())]


class Third:
    """A rule that ends a response at its third token."""

    reads = ()

    def watch(self, tokenizer: Any) -> Any:
        seen: list[int] = []
        return lambda token, reports: seen.append(token) or len(seen) == 3


def changed(model: Any, seed: int = 7) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {name: weight.detach() + 0.1 * torch.randn_like(weight) for name, weight in model.named_parameters()}


def test_greedy_tokens_and_log_probs_are_those_of_the_learners_model(engine: Make) -> None:
    model = make("qwen2, tied")
    requests = [Request(key, PROMPT[: 3 + key], GREEDY) for key in range(3)]
    found = answers(engine(model)[0], *requests)
    wanted = answers(TransformersEngine(model, max_length=64, stop_token_ids=()), *requests)
    for one, other in zip(found, wanted, strict=True):
        assert one.token_ids == other.token_ids and one.finish is Finish.LENGTH and one.version == 0
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_log_probs_are_at_the_temperature_and_a_seed_draws_the_same_tokens(engine: Make) -> None:
    model = make("qwen2")
    warm = Sampling(temperature=1.7, max_tokens=8)
    first, second, other = answers(engine(model)[0], *(Request(key, PROMPT, warm, seed) for key, seed in enumerate((-3, -3, 2**64 + 5))))
    assert first.token_ids == second.token_ids != other.token_ids
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPT + list(first.token_ids)])).logits[0, len(PROMPT) - 1 : -1]
    own = torch.log_softmax(logits / 1.7, -1).gather(1, torch.tensor(first.token_ids)[:, None])[:, 0]
    assert first.logprobs == pytest.approx(own.tolist(), abs=1e-4)


def test_stop_tokens_strings_and_rules_end_responses_as_in_other_engines(engine: Make) -> None:
    model, tokenizer = make("qwen2", vocab_size=300), byte_tokenizer()
    (free,) = answers(engine(model, tokenizer=tokenizer)[0], Request(0, PROMPT, Sampling(temperature=0.0, max_tokens=9)))
    text = tokenizer.decode(list(free.token_ids[:4]))[-1:]

    sampling = Sampling(temperature=0.0, max_tokens=9)
    stopped, inner = engine(model, tokenizer=tokenizer, stop_token_ids=(free.token_ids[5],))
    by_string, by_rule, by_token = answers(
        stopped,
        Request(1, PROMPT, Sampling(temperature=0.0, max_tokens=9, stop=(text,))),
        Request(2, PROMPT, Sampling(temperature=0.0, max_tokens=9, rule=Third())),
        Request(3, PROMPT, sampling),
    )
    plain = TransformersEngine(model, tokenizer, max_length=64, stop_token_ids=(free.token_ids[5],))
    (wanted,) = answers(plain, Request(1, PROMPT, Sampling(temperature=0.0, max_tokens=9, stop=(text,))))
    assert (by_string.token_ids, by_string.finish) == (wanted.token_ids, Finish.STOP)
    assert (by_rule.token_ids, by_rule.finish) == (free.token_ids[:3], Finish.RULE)
    first = free.token_ids.index(free.token_ids[5])
    assert (by_token.token_ids, by_token.finish) == (free.token_ids[: first + 1], Finish.STOP)
    assert inner.calls.count("abort") == 2 and not inner.output_processor.request_states


def test_reports_are_the_most_likely_tokens_and_others_are_refused(engine: Make) -> None:
    model = make("qwen2")
    sampling = Sampling(max_tokens=3, report=("top_logprobs:2", "top_tokens:3"))
    (found,) = answers(engine(model)[0], Request(0, PROMPT, sampling, seed=4))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPT + list(found.token_ids)])).logits[0, len(PROMPT) - 1 : -1]
    top = torch.log_softmax(logits, -1).topk(3)
    assert list(found.reports["top_token_3"]) == top.indices[:, 2].tolist()
    assert found.reports["top_logprob_2"] == pytest.approx(top.values[:, 1].tolist(), abs=1e-4)
    with pytest.raises(TurnwiseError, match="cannot report 'entropy'"):
        engine(model)[0].submit([Request(0, PROMPT, Sampling(report=("entropy",)))])


def test_requests_that_can_never_be_answered_are_refused_and_the_rest_is_answered(engine: Make) -> None:
    made, _ = engine()
    found = answers(made, *(Request(key, prompt, GREEDY) for key, prompt in enumerate(([], [1] * 64, [1, 97], [1] * 62))))
    assert [response.finish for response in found] == [Finish.REFUSED] * 3 + [Finish.LENGTH]
    assert "empty" in found[0].message and "may have 64" in found[1].message and "another tokenizer" in found[2].message
    assert len(found[3].token_ids) == 2
    with pytest.raises(TurnwiseError, match=r"top_p=0\.9.*native"):
        made.submit([Request(0, PROMPT, Sampling(top_p=0.9))])


def test_a_published_version_changes_the_tokens_the_salt_and_the_version(engine: Make) -> None:
    model = make("qwen2, tied")
    made, inner = engine(model)
    answers(made, Request(0, PROMPT, GREEDY))
    weights = changed(model)
    made.publish(3, {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]})  # tied weights may be given twice
    (found,) = answers(made, Request(0, PROMPT, GREEDY))
    model.load_state_dict(weights, strict=False)
    (wanted,) = answers(TransformersEngine(model, max_length=64, stop_token_ids=()), Request(0, PROMPT, GREEDY))
    assert found.token_ids == wanted.token_ids and found.version == made.version == 3
    salts = [call[2] for call in inner.calls if call[0] == "add"]
    assert salts[0] != salts[1] and inner.stale == 0 and len(made.transfer_seconds) == 2


def test_the_global_random_generators_are_as_they_were(engine: Make) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2)
    model = make("qwen2")
    torch.manual_seed(3)
    engine(model)
    assert torch.equal(torch.rand(2), wanted)


def test_weights_from_elsewhere_stay_when_the_module_is_read_again(engine: Make) -> None:
    made, inner = engine()
    weights = changed(made.model)
    made.publish(1, weights)
    made.refresh()
    assert torch.equal(inner.worker.model.state_dict()["model.norm.weight"], weights["model.norm.weight"]) and made.version == 1
    made.publish(2)
    assert torch.equal(inner.worker.model.state_dict()["model.norm.weight"], made.model.state_dict()["model.norm.weight"])


def test_forgetting_keeps_the_version_and_shares_no_prefix_with_before(engine: Make) -> None:
    made, inner = engine()
    for _ in range(2):
        answers(made, Request(0, PROMPT, GREEDY), Request(1, PROMPT, GREEDY))
        hits = inner.hits
        made.forget()
    (again,) = answers(made, Request(0, PROMPT, GREEDY))
    assert again.version == made.version == 0 and inner.hits == hits > 0


def test_vllm_is_called_in_order(engine: Make) -> None:
    made, inner = engine()
    made.publish(2)
    round_ = ["sleep", "start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache", "wake_up"]
    assert inner.calls == ["init_weight_transfer_engine", *round_, *round_]
    assert inner.args.given["logprobs_mode"] == "processed_logprobs" and inner.args.given["gpu_memory_utilization"] == 0.4
    sizes = inner.args.given["compilation_config"]["cudagraph_capture_sizes"]
    assert sizes == sorted(set(sizes)) and 8 in sizes and sizes[-1] == 2048  # beyond the rows: prompts join them
    made.close()
    assert inner.calls[-1] == "shutdown"
    with pytest.raises(TurnwiseError, match="closed"):
        made.poll()


def test_workers_in_other_processes_get_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch, gpus=2)
    monkeypatch.setattr(vllm_weights, "_handle", lambda tensor: ("gpu-0", (tensor,)))
    monkeypatch.setattr(vllm_weights, "CHUNK", 20_000)
    monkeypatch.setattr(vllm_weights, "_copy", lambda tensor, gpu: tensor)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    engine = VllmEngine(make("qwen2"), max_batch=8, max_length=64, tensor_parallel=2)
    inner = fake_vllm.LLMEngine.made[-1]
    assert inner.args.given["weight_transfer_config"].backend == "ipc" and inner.calls.count("update_weights") > 4
    weights = changed(engine.model)
    engine.publish(1, weights)
    assert torch.equal(inner.worker.model.state_dict()["model.norm.weight"], weights["model.norm.weight"])


def test_weights_that_do_not_fit_are_refused_before_the_round_starts(engine: Make) -> None:
    made, inner = engine()
    weights, calls = changed(made.model), list(inner.calls)
    for wrong, words in (
        ({**weights, "model.norm.bias": weights["model.norm.weight"]}, "no weights 'model.norm.bias'"),
        ({name: weight for name, weight in weights.items() if "norm" not in name}, "missing"),
        ({**weights, "model.norm.weight": torch.zeros(3)}, "shape"),
    ):
        with pytest.raises(TurnwiseError, match=words):
            made.publish(1, wrong)
    assert inner.calls == calls and made.version == 0 and not made.dead


@pytest.mark.parametrize("phase", ["start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache"])
def test_a_round_that_fails_anywhere_ends_the_engine(engine: Make, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    made, inner = engine()

    def fails(*values: Any, **more: Any) -> Any:
        raise RuntimeError("NCCL went away")

    monkeypatch.setattr(inner if phase == "reset_prefix_cache" else inner.worker, phase, fails)
    with pytest.raises(TurnwiseError, match=r"dead and has to be made again.*NCCL went away"):
        made.publish(1)
    for call in (lambda: made.submit([Request(0, PROMPT, GREEDY)]), made.poll, made.refresh, lambda: made.publish(2), made.forget):
        with pytest.raises(TurnwiseError, match="NCCL went away"):
            call()
    made.close()
    assert inner.calls[-1] == "shutdown" and made.version == 0


def test_an_interrupt_in_a_round_is_an_interrupt_and_the_engine_is_dead(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made, inner = engine()

    def interrupt(*values: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inner.worker, "update_weights", interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.publish(1)
    assert "version 1" in made.dead


def test_a_weight_that_vllm_does_not_take_ends_the_engine(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made, inner = engine()
    load = inner.worker.model.load_weights
    monkeypatch.setattr(inner.worker.model, "load_weights", lambda pairs: load(pairs) - {"model.norm.weight"})
    with pytest.raises(TurnwiseError, match=r"1 weights of vLLM's model were not given, among them 'model\.norm\.weight'"):
        made.publish(1)


def test_a_model_whose_weights_vllm_cannot_replace_is_found_at_the_start(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(self_check=True)
    load = fake_vllm.Worker.load_weights

    def spoils(self: Any, pairs: Any) -> Any:
        found = load(self, pairs)
        if self.epoch > 1:  # the second transfer of the same weights
            self.model.get_input_embeddings().weight.data.mul_(-3)
        return found

    monkeypatch.setattr(fake_vllm.Worker, "load_weights", spoils)
    with pytest.raises(TurnwiseError, match="changed the greedy tokens"):
        engine(self_check=True)

    def scales(self: Any, pairs: Any) -> Any:
        return load(self, [(name, weight * 3) for name, weight in pairs])

    monkeypatch.setattr(fake_vllm.Worker, "load_weights", scales)
    with pytest.raises(TurnwiseError, match="nats per token"):
        engine(self_check=True)


def test_adapters_are_merged_into_what_is_transferred(engine: Make) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make("qwen2"), peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.3)
    (found,) = answers(engine(model)[0], Request(0, PROMPT, GREEDY))
    (wanted,) = answers(TransformersEngine(model.eval(), max_length=64, stop_token_ids=()), Request(0, PROMPT, GREEDY))
    assert found.token_ids == wanted.token_ids and found.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)


def test_logits_that_are_not_numbers_are_a_fault(engine: Make) -> None:
    made, _ = engine()
    made.publish(1, {name: weight * float("nan") for name, weight in changed(made.model).items()})
    (found,) = answers(made, Request(0, PROMPT, GREEDY))
    assert found.finish is Finish.FAULT and "not numbers" in found.message


def test_a_step_that_fails_ends_the_engine(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made, inner = engine()
    monkeypatch.setattr(inner, "_draw", lambda state: 1 / 0)
    made.submit([Request(0, PROMPT, GREEDY)])
    with pytest.raises(TurnwiseError, match="a step of vLLM failed: ZeroDivisionError"):
        made.poll()
    assert made.dead


def recipe(**changes: Any) -> Config:
    return Config.load(None, {"engine.name": "vllm", "agent.max_prompt_tokens": 100, **changes})


def test_what_is_missing_is_said_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TurnwiseError, match=r"pip install .*\[vllm\]'"):
        engine_options(recipe())
    for version, gpus, changes, words in (
        ("0.25.1", 1, {}, r"vLLM 0\.25\.1 is installed, and 0\.26 is needed"),
        ("0.27.0", 1, {}, r"vLLM 0\.27\.0 is installed, and 0\.26 is needed"),
        ("0.26.0", 1, {"engine.options.keep_cache": True}, "no option 'keep_cache' any more"),
        ("0.26.0", 0, {}, "needs a GPU"),
        ("0.26.0", 1, {"engine.options.tensor_parallel": 2}, "sees 1 GPU$"),
        ("0.26.0", 1, {"engine.top_p": 0.9}, r"engine\.top_p=0\.9"),
        ("0.26.0", 1, {"engine.options.memroy": 0.3}, "Did you mean 'memory'"),
        ("0.26.0", 1, {"engine.options.update": "abort"}, "no option 'update' any more: responses under way stay in vLLM"),
    ):
        fake_vllm.install(monkeypatch, version, gpus)
        with pytest.raises(TurnwiseError, match=words):
            engine_options(recipe(**changes))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fake_vllm.install(monkeypatch, "0.26.0", 2)
    with pytest.raises(TurnwiseError, match="imports ray"):
        check(tensor_parallel=2)


def test_a_part_of_vllm_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch)
    monkeypatch.delattr(sys.modules["vllm.inputs"], "tokens_input")
    with pytest.raises(TurnwiseError, match=r"vllm\.inputs cannot be used.*vLLM 0\.26 needs one exact version of torch"):
        VllmEngine(make("qwen2"), max_length=64)


def test_a_run_learns_with_vllm_and_the_learner_sees_its_own_log_probs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_vllm.install(monkeypatch)
    result = tw.train(ROOT / "recipes" / "own-env.toml", quiet=True, **SERVED, out=str(tmp_path))
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    gaps = [line["learner/engine_gap_max"] for line in lines if "learner/engine_gap_max" in line]
    assert len(gaps) == 2 and max(gaps) < 1e-4
    (inner,) = fake_vllm.LLMEngine.made
    assert inner.stale == 0 and inner.calls.count("finish_weight_update") == 4  # the start, its check, two updates


def test_an_actor_on_a_cluster_loads_what_the_learner_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch, gpus=2)
    config = Config.load(ROOT / "recipes" / "own-env.toml", SERVED)
    loaded = load_model(config)
    policy = build_policy(config, loaded)
    parts = ActorSpec.of(config, loaded.tokenizer)(Hooks())
    (inner,) = fake_vllm.LLMEngine.made
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.05)
    parts.publish(4, SimpleNamespace(tensors=lambda device: dict(policy.full_weights())))
    assert inner.stale == 0
    for name, weight in policy.full_weights():
        assert torch.equal(inner.worker.model.state_dict()[name], weight)
    parts.close()
    wide = Config.load(ROOT / "recipes" / "own-env.toml", SERVED | {"cluster.tensor_parallel": 2, "cluster.placement": "apart"})
    assert ActorSpec.of(wide, loaded.tokenizer).config.engine.options == {"tensor_parallel": 2}
