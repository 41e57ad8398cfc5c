"""Models with hooks: built from a configuration, loaded from Hugging Face, saved and loaded."""

from mechclust.models.adapters import set_adapter
from mechclust.models.build import build_model, model_for
from mechclust.models.config import AnyConfig, ModelConfig
from mechclust.models.embeddings import token_embeddings
from mechclust.models.instruction_format import FormattedExample, InstructionFormat
from mechclust.models.pretrained import PretrainedModel, load_pretrained
from mechclust.models.saved_model import load_model, read_saved_model_metadata, save_model
from mechclust.models.tokenizers import load_tokenizer

__all__ = [
    "AnyConfig",
    "FormattedExample",
    "InstructionFormat",
    "ModelConfig",
    "PretrainedModel",
    "build_model",
    "load_model",
    "load_pretrained",
    "load_tokenizer",
    "model_for",
    "read_saved_model_metadata",
    "save_model",
    "set_adapter",
    "token_embeddings",
]
