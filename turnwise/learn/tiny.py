"""The embedded default model: a small causal transformer with a small tokenizer, made from text, without any download.

The tokenizer knows whole words: every word of the texts it was made from is one token, with and without a space before it, and every
digit is one, so that "cabinet 12" is similar to "cabinet 13". An unknown word splits into shorter words and bytes, longest first, so
nothing is ever lost: `decode(encode(text)) == text` for every text. Role boundaries are special tokens, and a message costs one token for
its role. Only the agent's message has an end token, because only there generation has to stop.

The model is a Llama of a few hundred thousand to a few million parameters. (Not a Qwen2: `AutoTokenizer` gives every folder with that model
type the Qwen2 tokenizer's way of splitting text, whatever the folder says.) Both are saved and loaded like any other model's folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

from turnwise.learn.sections import Tiny

UNKNOWN, PAD, SYSTEM, USER, AGENT, END = "<|unknown|>", "<|pad|>", "<|system|>", "<|user|>", "<|agent|>", "<|end|>"
SPECIAL = (UNKNOWN, PAD, SYSTEM, USER, AGENT, END)
LONGEST_WORD = 32
MOST_JOINED = 7  # further words of a name such as get_stock_info
LONGEST_TEXT = 1_000_000  # characters of one text that words are taken from: no prompt holds more, and an environment may say anything
INITIAL_SPREAD = 0.68  # over √hidden: 0.06 at 128. The 0.02 that suits wide models made one of 128 about five times slower to learn to copy
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}<|agent|>{{ message.content }}<|end|>"
    "{% elif message.role == 'system' %}<|system|>{{ message.content }}"
    "{% else %}<|user|>{{ message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|agent|>{% endif %}"
)


def build_tiny(
    texts: Iterable[str],
    layers: int = 4,
    hidden: int = 128,
    heads: int = 4,
    max_length: int = 4096,
    seed: int = 0,
    names: bool = False,
) -> tuple[Any, Any]:
    """A model with random weights and its tokenizer. `texts` may be texts or a list of words: every word in them becomes a token.
    The same texts in any order, sizes and seed give the same model and tokenizer."""
    size = Tiny(layers=layers, hidden=hidden, heads=heads, max_length=max_length)
    tokenizer = build_tokenizer(texts, max_length, names=names)
    return build_model(len(tokenizer), size, seed, tokenizer), tokenizer


def build_tokenizer(texts: Iterable[str], max_length: int = 4096, vocabulary: int = 16_384, names: bool = False) -> Any:
    """The tokenizer: bytes, digits, and the words of the texts (the most frequent ones, if there are more than `vocabulary`). With `names`,
    words joined by underscores, such as get_stock_info, are one word."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    joined = rf"(?:_\p{{L}}{{1,{LONGEST_WORD}}}){{0,{MOST_JOINED}}}" if names else ""
    pattern = Regex(rf" ?\p{{L}}{{1,{LONGEST_WORD}}}{joined}| ?\p{{N}}| ?[^\s\p{{L}}\p{{N}}]|\s")
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = chain.from_iterable([w, f"Ġ{w}"] for w in _words(texts, splitter))
    digits = (f"Ġ{digit}" for digit in "0123456789")
    tokens = list(dict.fromkeys(chain(SPECIAL, alphabet, digits, words)))[:vocabulary]
    core = Tokenizer(
        models.WordPiece(
            {token: number for number, token in enumerate(tokens)},
            unk_token=UNKNOWN,
            continuing_subword_prefix="",  # a part inside a word is the same token as at its start: longest match over plain parts
            max_input_chars_per_word=8 * LONGEST_WORD * (1 + names * MOST_JOINED),  # a letter is up to four bytes
        )
    )
    core.pre_tokenizer = splitter
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token=UNKNOWN,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[SYSTEM, USER, AGENT],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _words(texts: Iterable[str], splitter: Any) -> list[str]:
    """The words of the texts in byte letters, without the space before them; first those that occur in most different texts."""
    counts: Counter[str] = Counter()
    for text in set(texts):
        pieces = splitter.pre_tokenize_str(text[:LONGEST_TEXT].encode("utf-8", "replace").decode())
        counts.update(piece.removeprefix("Ġ") for piece, _ in pieces)
    return sorted((word for word in counts if word), key=lambda word: (-counts[word], word))


def build_model(vocabulary: int, size: Tiny, seed: int, tokenizer: Any) -> Any:
    """A Llama with random weights, the same for the same seed; torch's global generator is left as it was."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from turnwise.learn.device import rng_scope

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=size.hidden,
        intermediate_size=-(-size.hidden * 8 // 3 // 32) * 32,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.max_length,
        tie_word_embeddings=True,
        initializer_range=INITIAL_SPREAD / size.hidden**0.5,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with rng_scope(seed):
        model = LlamaForCausalLM(config)
    return model.eval()
