"""What is checked: settings before a model is loaded, and at the start whether vLLM can replace the weights of this model in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch

from turnwise.engines.base import Request, Response, Sampling
from turnwise.engines.module import evaluating
from turnwise.engines.reports import refuse
from turnwise.engines.vllm.weights import inner_model
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.engines.vllm.engine import VllmEngine

Update = Literal["auto", "keep", "abort"]
REPORTS = ("top_logprobs", "top_tokens")
CHECKED_TOKENS = 16
LARGEST_GAP = 1.0  # nats per token, on average: bfloat16 gives a few hundredths, wrong weights several


def check_sampling(sampling: Sampling) -> None:
    """vLLM's log-probs are those after top-k, top-p and min-p, and a learner needs those before."""
    if sampling.temperature > 0 and (sampling.top_k or sampling.top_p < 1 or sampling.min_p):
        raise TurnwiseError(
            "engine.name=vllm gives log-probs after top-k, top-p and min-p, and learning needs those before: leave them at their defaults "
            f"(engine.top_p={sampling.top_p:g}, engine.top_k={sampling.top_k}, engine.min_p={sampling.min_p:g}), or use engine.name=native"
        )
    refuse(sampling.report, REPORTS, "the vLLM engine")


def check_update(update: str, keep_cache: bool) -> None:
    """What happens to responses under way while weights are replaced."""
    if update not in get_args(Update):
        raise TurnwiseError(f"engine.options.update takes {', '.join(get_args(Update))}, not {update!r}")
    if keep_cache and update == "abort":
        raise TurnwiseError("engine.options.keep_cache is for update=keep: a request that is submitted again has no cache. Use update=auto")


def compare_transfers(engine: VllmEngine) -> None:
    """Greedy tokens must stay the same if the same weights are transferred again, and their log-probs must be the module's."""
    before = _greedy(engine)
    engine.refresh()
    after = _greedy(engine)
    model = type(inner_model(engine.model)).__name__
    if before.token_ids != after.token_ids:
        raise TurnwiseError(
            f"engine.name=vllm: transferring its own weights changed the greedy tokens of {model}: {before.token_ids} before, "
            f"{after.token_ids} after. vLLM cannot replace the weights of this model in place: use engine.name=native or transformers"
        )
    gap = gap_to_module(engine, after)
    if not gap < LARGEST_GAP:
        raise TurnwiseError(
            f"engine.name=vllm: with the same weights, its log-probs differ by {gap:.2f} nats per token from those of {model}: vLLM has "
            "not loaded this model's weights as they are meant"
        )


def _greedy(engine: VllmEngine) -> Response:
    request = Request(0, _prompt(engine), Sampling(temperature=0.0, max_tokens=min(CHECKED_TOKENS, engine.max_length - 8)))
    engine.submit([request])
    (found,) = engine.poll()
    return found


def _prompt(engine: VllmEngine) -> list[int]:
    words = int(inner_model(engine.model).get_input_embeddings().weight.shape[0])
    return [derive(0, "vllm", place) % words for place in range(min(8, engine.max_length // 2))]


def gap_to_module(engine: VllmEngine, found: Response) -> float:
    """The mean distance between a greedy response's log-probs and those of the learner's module, for the check's own prompt."""
    parameter = next(inner_model(engine.model).parameters())
    if parameter.is_meta or not found.token_ids:
        return 0.0
    prompt = _prompt(engine)
    ids = torch.tensor([prompt + list(found.token_ids)], device=parameter.device)
    with evaluating(engine.model), torch.no_grad():
        logits = engine.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    own = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()
    return float((own - torch.tensor(found.logprobs)).abs().mean())
