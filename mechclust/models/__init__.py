"""Models with hooks: built from a configuration, loaded from Hugging Face, saved and loaded."""

from importlib import import_module
from typing import Any

from mechclust.models.build import build_model, model_for
from mechclust.models.checkpoint import load_model, read_metadata, save_model
from mechclust.models.config import ModelConfig, PoolingTransformerConfig, TopicTransformerConfig
from mechclust.models.embeddings import token_embeddings
from mechclust.models.pretrained import PretrainedModel, load_pretrained, load_tokenizer

__all__ = [
    "ModelConfig",
    "PoolingTransformer",
    "PoolingTransformerConfig",
    "PretrainedModel",
    "TopicTransformer",
    "TopicTransformerConfig",
    "build_model",
    "load_model",
    "load_pretrained",
    "load_tokenizer",
    "model_for",
    "read_metadata",
    "save_model",
    "token_embeddings",
]


_LAZY = {"PoolingTransformer": "pooling_transformer", "TopicTransformer": "topic_transformer"}


def __getattr__(name: str) -> Any:
    """Classes that need TransformerLens, whose import takes seconds, are imported when asked for."""
    if name in _LAZY:
        return getattr(import_module(f"mechclust.models.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
