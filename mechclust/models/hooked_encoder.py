"""Encoders that TransformerLens does not know, with hook points to read from.

Imported only when such a model is loaded: it needs TransformerLens, which takes seconds to import.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, NoReturn

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformer_lens.hook_points import HookPoint

from mechclust.models.config import ModelShape
from tasks import InputError


def is_read_only(config: Any) -> bool:
    """Whether a checkpoint with this Hugging Face configuration is loaded as a ``ReadOnlyEncoder``.

    ALBERT and ELECTRA are unknown to TransformerLens, its BART has no ``blocks``, and it knows
    RoBERTa from 4 on, only where the checkpoint was saved with its masked-LM head.
    """
    if config.model_type == "roberta":
        return SUPPORTED_ARCHITECTURES.keys().isdisjoint(config.architectures or ())
    return config.model_type in ("albert", "bart", "electra")


class ReadOnlyEncoder(HookedRootModule):  # type: ignore[misc]  # untyped
    """A Hugging Face encoder behind TransformerLens's hook protocol, for reading only.

    Hugging Face computes the whole forward pass; then its ``hidden_states`` and ``attentions`` pass
    the hook points in their order. What a hook sees is therefore exactly what Hugging Face computed,
    and a hook cannot change it: one that returns a value is refused, and so is one that edits in
    place, outside inference mode, where PyTorch counts edits. Backward hooks are refused when they
    are added, since no gradient passes these hook points; but activations are part of the graph, so
    ``activation.retain_grad()`` in a forward hook works.

    Hook points, for every block ``l``:

    - ``hook_embed`` ``[batch pos d_model]``: ``hidden_states[0]``, what enters the first block. Token,
      position and type embeddings are added and normalised; ALBERT and ELECTRA then project them
      from ``embedding_size`` to ``d_model``.
    - ``blocks.{l}.hook_resid_pre``, ``blocks.{l}.hook_resid_post`` ``[batch pos d_model]``:
      ``hidden_states[l]`` and ``hidden_states[l + 1]``, after the block's last normalisation.
    - ``blocks.{l}.attn.hook_pattern`` ``[batch head query key]``: ``attentions[l]``. Kept only while
      someone reads a pattern, but then those of all layers at once.

    Where ALBERT shares weights between blocks, each application is a block of its own.

    Args:
        model: an ``AlbertModel``, ``BartModel`` (of which the encoder is used), ``ElectraModel`` or
            ``RobertaModel`` with eager attention. Its pooler is removed.
        tokenizer: kept as ``model.tokenizer``.

    Attributes:
        cfg: sizes, see ``ModelShape``.
        encoder: the Hugging Face module.
        tokenizer: as given.

    Example:
        >>> import torch
        >>> from transformers import ElectraConfig, ElectraModel
        >>> shape = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        >>> theirs = ElectraModel(ElectraConfig(vocab_size=9, embedding_size=4, attn_implementation="eager", **shape))
        >>> model = ReadOnlyEncoder(theirs.eval())
        >>> last, cache = model.run_with_cache(torch.tensor([[3, 1, 4], [1, 5, 8]]))
        >>> list(cache)[:4]
        ['hook_embed', 'blocks.0.hook_resid_pre', 'blocks.0.attn.hook_pattern', 'blocks.0.hook_resid_post']
        >>> cache["blocks.1.attn.hook_pattern"].shape, torch.equal(last, cache["blocks.1.hook_resid_post"])
        (torch.Size([2, 2, 3, 3]), True)
    """

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        super().__init__()
        self.cfg = _sizes(model.config)
        self.tokenizer = tokenizer
        self.hook_embed = _ReadOnlyPoint()
        self.blocks = nn.ModuleList(_block() for _ in range(self.cfg.n_layers))
        self.setup()  # before the encoder is added: it would write a name on Hugging Face's modules too
        self.encoder = model.get_encoder() if model.config.is_encoder_decoder else model
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # never read, and random in many checkpoints

    def forward(
        self, tokens: Int[Tensor, "batch pos"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """The last hidden state, ``hidden_states[-1]``; there is no head, hence no logits.

        Args:
            tokens: token ids ``[batch pos]``; moved to the model's device.
            attention_mask: 1 for tokens, 0 for padding ``[batch pos]``; no padding when ``None``.
                RoBERTa's positions follow its padding token instead, as in Hugging Face.

        Raises:
            InputError: for tokens of another shape or longer than ``cfg.n_ctx``, and for hooks that
                return a value.
        """
        if tokens.ndim != 2 or (self.cfg.n_ctx is not None and tokens.shape[1] > self.cfg.n_ctx):
            raise InputError(
                f"this model reads tokens [batch pos] with at most {self.cfg.n_ctx} positions, "
                f"not of shape {list(tokens.shape)}; give a batch of sequences cut to model.cfg.n_ctx"
            )
        blocks: Any = self.blocks
        device = self.encoder.device
        patterns = any(block.attn.hook_pattern._forward_hooks for block in blocks)
        out = self.encoder(
            tokens.to(device),
            attention_mask=None if attention_mask is None else attention_mask.to(device),
            output_hidden_states=True,
            output_attentions=patterns,
            return_dict=True,
        )
        states = out.hidden_states
        attentions = out.attentions if patterns else [None] * len(blocks)
        self.hook_embed(states[0])
        for block, before, pattern, after in zip(blocks, states[:-1], attentions, states[1:], strict=True):
            block.hook_resid_pre(before)
            if pattern is not None:
                block.attn.hook_pattern(pattern)
            block.hook_resid_post(after)
        return out.last_hidden_state

    def get_input_embeddings(self) -> Any:
        """Hugging Face's module that embeds the tokens."""
        return self.encoder.get_input_embeddings()


class _ReadOnlyPoint(HookPoint):  # type: ignore[misc]  # untyped
    """A hook point after the fact. TransformerLens adds its hooks through these two methods."""

    def register_forward_hook(self, hook: Any, **options: Any) -> Any:
        @wraps(hook)
        def read(*arguments: Any) -> None:
            activation = arguments[-1]
            edits = None if activation.is_inference() else activation._version
            returned = hook(*arguments)
            if returned is not None or (edits is not None and activation._version != edits):
                did = "edited the activation in place" if returned is None else "returned a value"
                raise InputError(
                    f"a hook at {self.name!r} {did}, but this hook point is read-only, because Hugging Face has "
                    "finished its computation when it fires; return None and leave the activation as it is, "
                    "or edit with PyTorch's own hooks (prepend=True) on the modules of model.encoder"
                )

        return super().register_forward_hook(read, **options)

    def register_full_backward_hook(self, hook: Any, prepend: bool = False) -> NoReturn:
        raise InputError(
            f"no backward hook can be added at {self.name!r}, because no gradient passes the hook points of this "
            "read-only model; call activation.retain_grad() in a forward hook and read activation.grad after backward()"
        )


def _block() -> nn.Module:
    block = nn.Module()
    block.hook_resid_pre = _ReadOnlyPoint()
    block.attn = nn.Module()
    block.attn.hook_pattern = _ReadOnlyPoint()
    block.hook_resid_post = _ReadOnlyPoint()
    return block


def _sizes(config: Any) -> ModelShape:
    first_position = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    return ModelShape(
        n_layers=config.num_hidden_layers * getattr(config, "inner_group_num", 1),
        n_heads=config.num_attention_heads,
        d_model=config.hidden_size,
        d_head=config.hidden_size // config.num_attention_heads,
        d_vocab=config.vocab_size,
        n_ctx=config.max_position_embeddings - first_position,
    )
