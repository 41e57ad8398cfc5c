"""Tiny random language models, and prompts with answers for them."""

from __future__ import annotations

from typing import Any

import torch

from mechclust.models.instruction_format import FormattedExample
from mechclust.training.tuning import TuneConfig

VOCABULARY = 40
SHAPE = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.3,
}
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**SHAPE, "num_key_value_heads": 1}),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            **{"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 64, "vocab_size": VOCABULARY},
            **{"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.3},
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **{**SHAPE, "head_dim": 8, "num_key_value_heads": 1, "sliding_window": 4, "query_pre_attn_scalar": 8},
            **{"layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0},
        },
    ),
}
MODULES = {"llama": ("q_proj", "v_proj"), "gpt2": ("c_attn",), "gemma3": ("q_proj", "v_proj")}


def language_model(family: str = "llama", seed: int = 3, **fields: Any) -> Any:
    """A new model, as Hugging Face makes it."""
    import transformers

    configuration, model, known = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return getattr(transformers, model)(getattr(transformers, configuration)(**{**known, **fields}))


def examples(n: int = 13, seed: int = 0, longest: int = 9) -> list[FormattedExample]:
    """Prompts and answers of several lengths."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n):
        start, more = (int(torch.randint(1, longest, (), generator=draw)) for _ in range(2))
        found.append(FormattedExample(torch.randint(1, VOCABULARY, (start + more,), generator=draw).tolist(), start))
    return found


def settings(**fields: Any) -> TuneConfig:
    """Few steps with a rate that moves the weights; 13 examples are 4 steps."""
    return TuneConfig(**{"batch_size": 2, "accumulation": 2, "lr": 1e-2, "epochs": 2, "rank": 2, **fields})
