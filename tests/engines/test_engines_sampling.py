"""Drawing tokens and knowing when to stop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turnwise import TurnwiseError
from turnwise.engines.base import Sampling
from turnwise.engines.stopping import StopStrings, stop_tokens
from turnwise.kernels.sample import ATTEMPTS, Columns, sample, truncate, uniforms

MASK = (1 << 64) - 1


def byte_tokenizer(extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """One token a byte, so that most characters are several tokens, and some longer ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["".join(pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)[0][0]) for text in extra]
    inner = Tokenizer(models.BPE({piece: place for place, piece in enumerate([*alphabet, *pieces])}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def columns(*samplings: Sampling, seeds: Sequence[int] | None = None) -> Columns:
    return Columns.of(samplings, seeds or range(len(samplings)), "cpu")


def reference_uniforms(seed: int, position: int, count: int) -> list[float]:
    """The same hash in Python's own integers."""

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    numbers = [mix((mix((seed + golden) & MASK) + (position + 1) * golden) & MASK)]
    while len(numbers) < count:
        numbers.append(mix((numbers[-1] + golden) & MASK))
    return [(number >> 12) / 2**52 for number in numbers]


@given(st.integers(-(2**70), 2**70), st.integers(0, 10**6))
def test_chance_is_a_pure_function_of_seed_and_position(seed: int, position: int) -> None:
    settings = columns(Sampling(), seeds=[seed])
    assert uniforms(settings.seed, torch.tensor([position]), 5)[0].tolist() == reference_uniforms(seed, position, 5)


def test_chance_of_neighbouring_seeds_and_positions_is_even_and_unrelated() -> None:
    grid, later = uniforms(torch.arange(300)[:, None], torch.arange(300)[None, :], 2).unbind(-1)
    for numbers in (grid, later):
        counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
        assert (counts - 4500).abs().max() < 5 * 4500**0.5
    for shifted in (grid[1:] * grid[:-1], grid[:, 1:] * grid[:, :-1], grid * later, grid[1:] * later[:-1], grid[:, 1:] * later[:, :-1]):
        assert shifted.mean().item() == pytest.approx(0.25, abs=0.005)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, -torch.inf, 2.0])
    n = 40000
    drawn = sample(logits.expand(n, -1), columns(*[Sampling(temperature=temperature)] * n), torch.zeros(n, dtype=torch.long))
    expected = torch.softmax(logits / temperature, -1)
    found = torch.bincount(drawn.tokens, minlength=5) / n
    assert (found - expected).abs().max() < 0.012
    assert found[3] == 0
    assert torch.allclose(drawn.logprobs, torch.log_softmax(logits / temperature, -1)[drawn.tokens])


def test_a_row_draws_the_same_whatever_the_others_are_and_want() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 300) * 3
    wishes = [
        Sampling(),
        Sampling(temperature=0),
        Sampling(top_k=3),
        Sampling(temperature=0.7, top_p=0.8),
        Sampling(min_p=0.2),
        Sampling(1.3, 0.9, 20, 0.01),
    ]
    samplings = [wishes[row % len(wishes)] for row in range(40)]
    position = torch.arange(40)
    together = sample(logits, columns(*samplings), position)
    for row in range(40):
        alone = sample(logits[row : row + 1], columns(samplings[row], seeds=[row]), position[row : row + 1])
        assert alone.tokens[0] == together.tokens[row]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[row].item(), abs=1e-5)


def test_greedy_takes_the_most_likely_token_with_the_models_own_log_prob() -> None:
    torch.manual_seed(0)
    logits = torch.randn(9, 50)
    drawn = sample(logits, columns(*[Sampling(temperature=0, top_k=2)] * 9), torch.zeros(9, dtype=torch.long))
    assert torch.equal(drawn.tokens, logits.argmax(-1))
    assert torch.allclose(drawn.logprobs, torch.log_softmax(logits, -1).max(-1).values)


def slow_support(probabilities: list[float], sampling: Sampling) -> set[int]:
    order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    order = order[: sampling.top_k or len(order)]
    total, before, kept = sum(probabilities[token] for token in order), 0.0, set()
    for token in order:
        if before < sampling.top_p * total and probabilities[token] >= sampling.min_p * probabilities[order[0]]:
            kept.add(token)
        before += probabilities[token]
    return kept


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=12),
    st.sampled_from([0, 1, 2, 5, 100]),
    st.sampled_from([1.0, 0.9, 0.5, 0.1, 1e-6]),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
def test_truncation_keeps_exactly_the_tokens_of_the_slow_definition(counts: list[int], top_k: int, top_p: float, min_p: float) -> None:
    sampling = Sampling(top_k=top_k, top_p=top_p, min_p=min_p)
    weights = torch.tensor([counts], dtype=torch.float32) / 1024  # exact, so that no rounding decides at a border
    kept = truncate(weights, columns(sampling))[0]
    assert set(kept.nonzero()[:, 0].tolist()) == slow_support([count / 1024 for count in counts], sampling)
    assert torch.equal(kept[kept > 0], weights[0][kept > 0])


TRUNCATIONS = [Sampling(top_p=0.9), Sampling(top_k=3), Sampling(min_p=0.3), Sampling(1.3, 0.8, 5, 0.05), Sampling(top_p=0.02)]


@pytest.mark.parametrize("sampling", TRUNCATIONS, ids=repr)
def test_tokens_that_are_kept_come_as_often_as_among_themselves(sampling: Sampling) -> None:
    """However many draws a row needs; the last of these settings keeps so little that many rows use up their attempts."""
    logits = torch.linspace(0.3, -2.0, 9)[torch.randperm(9, generator=torch.Generator().manual_seed(1))].repeat_interleave(4)
    n = 40000
    settings = columns(*[sampling] * n)
    drawn = sample(logits.expand(n, -1), settings, torch.arange(n) % 3)
    whole = torch.softmax(logits / sampling.temperature, -1)
    expected = truncate(whole[None], columns(sampling))[0]
    found = torch.bincount(drawn.tokens, minlength=36) / n
    assert (found[expected == 0] == 0).all()
    assert (found - expected / expected.sum()).abs().max() < 0.012
    assert torch.allclose(drawn.logprobs, whole.log()[drawn.tokens])


def test_a_truncated_row_draws_the_first_of_its_numbers_that_gives_a_token_which_is_kept() -> None:
    torch.manual_seed(0)
    logits, seeds, position = torch.randn(300, 20), list(range(300)), torch.arange(300) % 5
    sampling = Sampling(top_k=4)
    drawn = sample(logits, columns(*[sampling] * 300, seeds=seeds), position).tokens
    used = []
    for row in range(300):
        probabilities = torch.softmax(logits[row], -1).tolist()
        kept = slow_support(probabilities, sampling)
        numbers = reference_uniforms(seeds[row], int(position[row]), ATTEMPTS + 1)
        found = [next(t for t in range(20) if sum(probabilities[: t + 1]) > number) for number in numbers[:-1]]
        attempt = next((n for n, token in enumerate(found) if token in kept), ATTEMPTS)
        left = [p if t in kept else 0.0 for t, p in enumerate(probabilities)]
        last = next(t for t in range(20) if sum(left[: t + 1]) > numbers[-1] * sum(left))
        used.append(attempt)
        assert drawn[row] == (found[attempt] if attempt < ATTEMPTS else last)
    assert set(used) == set(range(ATTEMPTS + 1))


def test_logits_that_are_not_numbers_give_a_log_prob_that_is_none_either() -> None:
    logits = torch.randn(3, 10)
    logits[1, 4] = torch.nan
    for sampling in (Sampling(), Sampling(temperature=0), Sampling(top_p=0.5)):
        drawn = sample(logits, columns(*[sampling] * 3), torch.zeros(3, dtype=torch.long))
        assert torch.isfinite(drawn.logprobs).tolist() == [True, False, True]
        assert 0 <= drawn.tokens[1] < 10


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"stop": "###"}, "stop"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, object], name: str) -> None:
    with pytest.raises(TurnwiseError, match=f"sampling: {name} takes"):
        Sampling(**wrong)  # type: ignore[arg-type]


TOKENIZER = byte_tokenizer(["</action>", "ction>x", "on>", "é"])


def spaced_tokenizer() -> PreTrainedTokenizerFast:
    """Words that carry the space before them, dropped at the very beginning of a text; characters that it does not know are bytes."""
    words = ["\u2581go", "\u2581to", "\u2581", "go", "to", "x", "\u2581go\u2581to", ".", *[f"<0x{byte:02X}>" for byte in "é語".encode()]]
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="x"))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=inner)


SPACED = spaced_tokenizer()


@given(
    st.tuples(
        st.just(TOKENIZER),
        st.lists(st.sampled_from([*range(256), *range(256, 260)]) | st.sampled_from([256, 257, 258]), max_size=40)
        | st.text("a</cdei→ö語🙂>", max_size=30).map(lambda text: TOKENIZER.encode(text)),
        st.sampled_from([("</action>",), ("on>",), ("🙂", "語語"), ("a", "</c"), ("ö→",)]),
    )
    | st.tuples(
        st.just(SPACED),
        st.lists(st.integers(0, 12), max_size=25),
        st.sampled_from([("go to",), (" to.", "xx"), ("語",), ("é go",), ("  ",)]),
    )
)
def test_a_stop_string_is_seen_at_the_token_that_completes_it(case: tuple[PreTrainedTokenizerFast, list[int], tuple[str, ...]]) -> None:
    """Where characters are several tokens, and where tokens carry their spaces."""
    tokenizer, ids, stop = case
    watch = StopStrings(tokenizer, stop)
    found = next((place for place, token in enumerate(ids) if watch.push(token)), None)
    texts = [tokenizer.decode(ids[: place + 1], skip_special_tokens=False) for place in range(len(ids))]
    assert found == next((place for place, text in enumerate(texts) if any(s in text for s in stop)), None)


def test_end_tokens_come_from_all_that_name_them() -> None:
    class Source:
        def __init__(self, eos_token_id: object):
            self.eos_token_id = eos_token_id

    assert stop_tokens(Source(2), Source([3, 2]), Source(None), None, Source(torch.tensor([7]))) == {2, 3, 7}
