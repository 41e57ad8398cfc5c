"""A model with planted roles that the command reads like any other: with a tokenizer, and with its sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mechclust.commands.heads import HeadsConfig
from tests.probes.planted_roles import LENGTH, N_SYMBOLS, PlantedRoles

SMALL = HeadsConfig(n_sequences=6, length=16, periods=(4, 6), max_offset=2, n_permutations=19, max_length=12)
"""For models whose context is 16 tokens."""
PLANTED_CONFIG = HeadsConfig(n_sequences=16, length=LENGTH, periods=(10, 16), n_permutations=999, untrained=0)


def words_tokenizer(n: int) -> Any:
    """Return a tokenizer of the words w0, w1 and so on, without special tokens."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(n)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words)


def planted(seed: int = 1) -> Any:
    """Return a model whose heads play the roles ``tests.probes.planted_roles.PLANTED``."""
    model: Any = PlantedRoles(seed)
    model.cfg = SimpleNamespace(n_layers=2, n_heads=8, d_model=N_SYMBOLS, d_vocab=N_SYMBOLS, n_ctx=LENGTH)
    model.tokenizer = words_tokenizer(N_SYMBOLS)
    return model
