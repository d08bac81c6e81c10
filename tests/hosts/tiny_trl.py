"""A tiny chat model for TRL on a CPU: a word is a token, and every + or - in a response is a call of the tool `act`."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MARKS = ("<pad>", "<eos>", "<unk>", "<user>", "<assistant>", "<tool>")
WORDS = ("+", "-", "Target", "Current", ":", "Actions", ",", "The", "attempt", "is", "over", ".", "go")
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {% for call in message['tool_calls'] %}{{ call['function'] }} {% endfor %}"
    "{{ message['content'] }} {% if message['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
RESPONSES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"(?P<move>[+-])",
            "close_pattern": r"",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "act", "arguments": {"action": "{move}"}}},
        },
        "content": {"close": "<eos>", "content": "text"},
    },
}


def tiny_tokenizer(numbers: int = 100) -> Any:
    words = {word: number for number, word in enumerate((*MARKS, *WORDS, *map(str, range(numbers))))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left")
    fast.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>", "<tool>"]})
    fast.chat_template = TEMPLATE
    fast.response_template = RESPONSES
    return fast


def tiny_model(tokenizer: Any, seed: int = 0, hidden: int = 32, layers: int = 1) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=2,
            max_position_embeddings=512,
            initializer_range=0.1,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
