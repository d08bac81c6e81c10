"""Tiny vision-language models made in the tests, with random weights and processors of their own, without any download.

Two kinds that differ in what matters here: LLaVA gives a picture a fixed number of tokens and counts positions through; Qwen2-VL gives it
as many as its size asks for and places them on a grid, which shifts the positions of all that follows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import LlavaConfig, LlavaForConditionalGeneration, Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.processing_utils import ProcessorMixin

from turnwise.learn.tiny import build_tokenizer

WORDS = "pick left right up down the picture shows room red blue again your task is number action"
KINDS = ("llava", "qwen2_vl")


def template(slot: str) -> str:
    """A chat template that takes lists of texts and images, and a role border that only it can write."""
    return (
        "{% for message in messages %}"
        "{% if message.role == 'assistant' %}<|agent|>{% elif message.role == 'system' %}<|system|>{% else %}<|user|>{% endif %}"
        "{% for part in message.content %}{% if part.type == 'image' %}" + slot + "{% else %}{{ part.text }}{% endif %}{% endfor %}"
        "{% if message.role == 'assistant' %}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|agent|>{% endif %}"
    )


def tokenizer_with(*special: str) -> Any:
    made = build_tokenizer([WORDS])
    made.add_tokens([AddedToken(token, special=True) for token in special], special_tokens=True)
    return made


class GridProcessor(Qwen2VLProcessor):
    """Qwen2-VL's processor without videos, whose part of it would need torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None):
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = map(tokenizer.convert_tokens_to_ids, (self.image_token, self.video_token))
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def processor_of(kind: str) -> Any:
    """The processor of a tiny model."""
    if kind == "llava":
        size = {"height": 16, "width": 16}
        return LlavaProcessor(
            CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False, resample=0),
            tokenizer_with("<image>"),
            patch_size=8,
            vision_feature_select_strategy="full",
            num_additional_image_tokens=0,
            image_token="<image>",
            chat_template=template("<image>"),
        )
    tokenizer = tokenizer_with("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    images = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 4096})
    return GridProcessor(images, tokenizer, chat_template=template("<|vision_start|><|image_pad|><|vision_end|>"))


def model_of(kind: str, processor: Any, hidden: int = 32, layers: int = 2, seed: int = 0) -> Any:
    """A tiny model with random weights."""
    tokenizer = processor.tokenizer
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.68 / hidden**0.5,
        "tie_word_embeddings": False,
    }
    image_token_id = tokenizer.convert_tokens_to_ids(processor.image_token)
    torch.manual_seed(seed)
    if kind == "llava":
        vision = {"hidden_size": hidden, "intermediate_size": hidden, "num_hidden_layers": 1, "num_attention_heads": 2}
        config: Any = LlavaConfig(
            vision_config={"model_type": "siglip_vision_model", **vision, "image_size": 16, "patch_size": 8, "vision_use_head": False},
            text_config={"model_type": "llama", **text},
            image_token_index=image_token_id,
            vision_feature_select_strategy="full",
            vision_feature_layer=-1,
        )
        return LlavaForConditionalGeneration(config).eval()
    grid = {"depth": 1, "embed_dim": 16, "hidden_size": hidden, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "mlp_ratio": 2}
    sections = {"rope_type": "default", "mrope_section": [1, 1, hidden // 8 - 2], "rope_theta": 10000.0}
    config = Qwen2VLConfig(
        vision_config={**grid, "temporal_patch_size": 2, "in_channels": 3},
        text_config={**text, "rope_parameters": sections},
        image_token_id=image_token_id,
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    return Qwen2VLForConditionalGeneration(config).eval()


@cache
def seeing(kind: str) -> tuple[Any, Any]:
    """Model and processor, made once for tests that do not change them."""
    processor = processor_of(kind)
    return model_of(kind, processor), processor
