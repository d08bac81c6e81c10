"""Small tokenizers made in the tests: byte-level BPE that merges wherever it can, with chat templates of the shapes that models ship."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 12, a desk 1, and a drawer 3.",
    "Your task is to: put a mug in desk.\n\nuser\nassistant\nsystem\n<think>\n</think>\n\n<action>go to desk 1</action>",
    "go to cabinet 12\nopen drawer 3\nNothing happens.\n\nYou arrive at desk 1. On the desk 1, you see a mug 2.",
] * 3

# role borders with an end token and a newline after it; a default system message
QWEN = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# a begin token, headers, trimmed contents, no newline after the end token; tool answers are quoted
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}<|head|>\n\n"
    "{% if m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content | trim }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|head|>\n\n{% endif %}"
)
# earlier thoughts are dropped when a later message comes; without thinking an empty thought is put into the agent's mouth
FORGETFUL = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "<|im_start|>assistant\n{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# no system role; a space before the end token; the end token is followed by a begin token
INST = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% elif m.role == 'assistant' %} {{ m.content }} <|im_end|>{% else %}<|im_start|>[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
# the agent's message has no end: the next role's border ends it
BORDERS = (
    "{% for m in messages %}<|{{ 'im_start' if m.role == 'assistant' else 'head' }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>\n{% endif %}"
)
# the system message moves to the last message
MOVING = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ m.content }}<|im_end|>{% elif m.role != 'system' %}[INST] {% if loop.last and system %}{{ system }}\n\n{% endif %}"
    "{{ m.content }}[/INST]{% endif %}{% endfor %}"
)
# shows the last message alone
AMNESIC = "<|im_start|>{{ messages[-1].content }}<|im_end|>"

KEEPING = {"qwen": QWEN, "llama": LLAMA, "borders": BORDERS}
ALL = {**KEEPING, "forgetful": FORGETFUL, "inst": INST, "moving": MOVING}


@cache
def _core(merging: bool) -> str:
    core = Tokenizer(models.BPE())
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.Split(Regex(r"\s*\n+| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
    core.pre_tokenizer = letters if merging else pre_tokenizers.Sequence([words, letters])
    core.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|head|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    return str(core.to_str())


def tokenizer(template: str | None, eos: str = "<|im_end|>", merging: bool = True) -> Any:
    """A fresh tokenizer with this chat template; `merging` merges across words, lines and the borders of messages."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_core(merging)), bos_token="<|begin|>", eos_token=eos, pad_token="<|endoftext|>"
    )
    made.chat_template = template
    return made
