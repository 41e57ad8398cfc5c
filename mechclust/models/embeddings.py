"""The token embeddings of any model."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from probes.engine.hooked_model import HookedModel
from tasks import InputError


def token_embeddings(model: HookedModel | nn.Module) -> Float[Tensor, "d_vocab d_embedding"]:
    """Return the input embedding matrix, one row per token.

    The weights are not normalised, scaled (BART may multiply by the root of its width) or projected (ALBERT and ELECTRA
    embed in ``embedding_size`` dimensions, fewer than ``d_model``). Positions are not added.

    Args:
        model: from ``build_model``, ``load_model`` or ``load_pretrained``, or a Hugging Face model.

    Returns:
        The weights themselves, detached: clone them before training goes on.

    Raises:
        InputError: for a model that embeds no tokens.

    Example:
        >>> from mechclust import ModelConfig, build_model
        >>> token_embeddings(build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))).shape
        torch.Size([9, 8])
    """
    untyped: Any = model
    embed = getattr(untyped, "embed", None)
    if embed is None and hasattr(untyped, "get_input_embeddings"):
        embed = untyped.get_input_embeddings()
    for name in ("W_E", "weight"):  # HookedTransformer's name, everyone else's
        weight = getattr(embed, name, None)
        if isinstance(weight, Tensor) and weight.ndim == 2:
            return weight.detach()
    raise InputError(
        f"a {type(model).__name__} has no matrix of token embeddings; "
        "give a model from build_model, load_model or load_pretrained"
    )
