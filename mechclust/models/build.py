"""Models trained from scratch, on either TransformerLens major. The only place that chooses."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from typing import Any

import torch

from mechclust.models.config import AnyConfig, ModelConfig
from mechclust.models.model_kinds import model_class_of_kind
from mechclust.models.weights import initial_weights, set_weights
from probes.engine.hooked_model import HookedModel
from tasks import InputError, Task


def build_model(config: AnyConfig) -> HookedModel:
    """Return a hooked transformer with random weights drawn from ``config.seed``.

    On TransformerLens 4.x it is the native ``TransformerBridge``, on 3.9 a ``HookedTransformer``. Both have equal hook
    names and initial weights. The configuration of a paper's model gives that model. The global random state is left
    alone.

    Returns:
        A model that speaks TransformerLens's hook protocol.

    Example:
        >>> model = build_model(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1, d_model=8, n_heads=2))
        >>> "blocks.0.hook_resid_post" in model.hook_dict
        True
    """
    with warnings.catch_warnings():  # its progress bars warn in notebooks without ipywidgets
        warnings.simplefilter("ignore")
        import transformer_lens  # noqa: F401
    model: Any = _transformer(config) if isinstance(config, ModelConfig) else model_class_of_kind(config.kind)(config)
    object.__setattr__(model, "mechclust_config", config)
    return model


def _transformer(config: ModelConfig) -> Any:
    shape = {
        "n_layers": config.n_layers,
        "d_model": config.d_model,
        "n_heads": config.n_heads,
        "d_head": config.d_head,
        "d_mlp": config.d_feedforward,
        "attn_only": config.attn_only,
        "n_ctx": config.n_ctx,
        "d_vocab": config.d_vocab,
        "d_vocab_out": config.d_vocab,
        "act_fn": "gelu_new",
        "normalization_type": "LN",
        "attention_dir": config.attention,
        "init_weights": False,
    }
    is_bridge = int(version("transformer-lens").split(".")[0]) >= 4
    if config.tied and not is_bridge:  # HookedTransformer's W_U is the transpose of W_E: no parameter can be both
        raise InputError("tied is True, with TransformerLens 3.9; use TransformerLens 4, or tied=False")
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        model = _bridge(shape) if is_bridge else _hooked(shape)
    if config.tied:
        model.unembed.weight = model.embed.weight
    set_weights(model, initial_weights(config))
    return model


def model_for(task: Task, **fields: Any) -> ModelConfig:
    """Return a model configuration whose vocabulary and context fit ``task``.

    Args:
        task: the task that the model is trained on.
        **fields: further fields of ``ModelConfig``.

    Example:
        >>> from tasks import SparseModularAddition
        >>> config = model_for(SparseModularAddition(length=4, n_support=2, n_train=8, n_test=8), n_layers=2)
        >>> config.n_ctx, config.n_layers
        (4, 2)
    """
    return ModelConfig(d_vocab=task.d_vocab, n_ctx=task.n_ctx, **fields)


def _bridge(shape: dict[str, Any]) -> Any:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources import native  # noqa: F401  # attaches boot_native

    return TransformerBridge.boot_native(TransformerBridgeConfig(**shape))


def _hooked(shape: dict[str, Any]) -> Any:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    model = HookedTransformer(HookedTransformerConfig(**shape, device="cpu"))
    model.unembed.b_U.requires_grad_(False)  # the native bridge and GPT-2 have no such bias: it stays 0
    if shape["attention_dir"] == "bidirectional":
        model.register_forward_pre_hook(_refuse_padding, with_kwargs=True)
    return model


def _refuse_padding(model: Any, args: Any, kwargs: Any) -> None:
    """Refuse padding in bidirectional models: TransformerLens 3.9 attends to it, whatever the mask."""
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise InputError(
            "TransformerLens 3.9 ignores the attention mask of a bidirectional model; "
            "use TransformerLens 4, or sequences of one length"
        )
