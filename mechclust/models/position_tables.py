"""Tables of absolute positions in Hugging Face models."""

from __future__ import annotations

from typing import Any

from torch import nn


def position_table(body: Any) -> Any:
    """Return the table of absolute positions, or ``None``. I-BERT's is no ``nn.Embedding``."""
    tables = (module for name, module in _text_part(body).named_modules() if "position" in name.rpartition(".")[2])
    return next((table for table in tables if hasattr(table, "padding_idx") and hasattr(table, "weight")), None)


def words_before_positions(body: Any) -> Any:
    """Return the token embedding of a decoder that has another table, of positions, or ``None`` for other models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING as MASKED

    words = body.get_input_embeddings()
    others = [
        module
        for name, module in _text_part(body).named_modules()
        if module is not words and (isinstance(module, nn.Embedding) or "embed_positions" in name)
    ]
    decoder = type(body.config) in CAUSAL and type(body.config) not in MASKED
    return words if decoder and others else None


def counts_by_token(positions: Any) -> bool:
    """Return whether positions count the tokens that are not padding, as in RoBERTa and its relatives."""
    return positions is not None and positions.padding_idx is not None


def n_positions(table: Any) -> int:
    """Count the rows that stand for a position: not BART's first two, nor RoBERTa's up to its padding index."""
    unused = 0 if table.padding_idx is None else table.padding_idx + 1
    return int(table.weight.shape[0] - getattr(table, "offset", 0) - unused)


def _text_part(body: Any) -> Any:
    """Return the part of a model that reads texts. If it reads pictures too, these have a table of positions."""
    for name in ("language_model", "text_model"):
        if hasattr(body, name):
            return getattr(body, name)
    return body
