"""Compute with plain Hugging Face the numbers that a hooked model must give too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mechclust.commands.check.inputs import LENGTH, dtypes_of, on_cpu, ordinary_ids, pad_id
from probes.engine.devices import device_of
from probes.engine.hooked_model import evaluation_mode
from tasks import Batch
from tasks._random import generator

_States = Float[Tensor, "batch pos d"]
_Pattern = Float[Tensor, "batch head query key"]

_ATTENTION_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}  # of blocks, with patterns
_FINAL_NORMS = {"norm", "ln_f", "final_layer_norm", "final_layernorm", "final_norm"}


class ReferenceValues(NamedTuple):
    """Values that a model gives for a batch, on the CPU.

    Attributes:
        embeddings: two values that layer 0 may stand for: token embeddings with all that is added to them before the
            first block, and alone.
        states: the residual stream by layer: 0 before the first block, ``l + 1`` behind block ``l``. Behind the last
            block it is missing if only its normalised form is known.
        patterns: attention by block, of those whose attention Hugging Face gives.
        outputs: logits, if there is a head, and the last hidden state.
        n_layers: how many blocks there are.
    """

    embeddings: list[_States]
    states: dict[int, _States]
    patterns: dict[int, _Pattern]
    outputs: list[_States]
    n_layers: int


class ReferenceCase(NamedTuple):
    """One batch, and Hugging Face's values for it.

    Attributes:
        batch: the batch, without padding or padded on the right.
        values: the values of the bare forward pass.
    """

    batch: Batch
    values: ReferenceValues

    @property
    def is_padded(self) -> bool:
        """Whether the batch has an attention mask."""
        return self.batch.attention_mask is not None


@dataclass(frozen=True)
class Reference:
    """Values that plain Hugging Face gives, without its model.

    Attributes:
        model: class of the model and version of the library that computed them.
        dtype: dtype of the values; the coarsest if there are several.
        weights: dtypes of the weights, in words.
        cases: batches without padding and padded on the right.
        base_outputs: outputs without the adapter for the first case; empty if there is no adapter.
    """

    model: str
    dtype: torch.dtype
    weights: str
    cases: list[ReferenceCase]
    base_outputs: list[_States]


def take_reference(plain: Any, tokenizer: Any, seed: int) -> Reference:
    """Run a Hugging Face model, or peft's with an adapter beside its weights, on random tokens.

    Args:
        plain: the model; nothing of it is changed.
        tokenizer: if there is one, its special tokens are left out.
        seed: seed of the tokens.
    """
    adapted = hasattr(plain, "disable_adapter")
    whole = plain.get_base_model() if adapted else plain
    model = whole.get_encoder() if whole.config.is_encoder_decoder else whole
    batches = _batches(model, tokenizer, seed)
    with torch.inference_mode(), evaluation_mode(plain):
        cases = [ReferenceCase(batch, _values(model, batch)) for batch in batches]
        base_outputs = []
        if adapted:
            with plain.disable_adapter():
                base_outputs = _values(model, batches[0]).outputs
    values = cases[0].values
    rounding = {value.dtype: torch.finfo(value.dtype).eps for value in (*values.states.values(), *values.outputs)}
    return Reference(
        model=f"{type(whole).__name__} (transformers {version('transformers')})",
        dtype=max(rounding, key=rounding.__getitem__),
        weights=dtypes_of(model),
        cases=cases,
        base_outputs=base_outputs,
    )


def _batches(model: Any, tokenizer: Any, seed: int) -> list[Batch]:
    """Return four sequences of full length, and cut to different lengths with padding on the right."""
    table = getattr(model.get_input_embeddings(), "weight", None)
    d_vocab = model.config.get_text_config().vocab_size if table is None else table.shape[0]
    length = min(LENGTH, getattr(model.config, "max_position_embeddings", None) or LENGTH)
    lengths = [max(1, length - shorter) for shorter in (0, 1, 3, 5)]
    ids = ordinary_ids(d_vocab, tokenizer, model.config)
    pad = pad_id(d_vocab, tokenizer, model.config)
    tokens = torch.from_numpy(generator(seed, "reference").choice(ids, size=(len(lengths), length))).long()
    if length == 1:
        return [Batch(tokens)]
    mask = torch.arange(length) < torch.tensor(lengths)[:, None]
    return [Batch(tokens), Batch(tokens.masked_fill(~mask, pad), mask)]


def _values(model: Any, batch: Batch) -> ReferenceValues:
    device = device_of(model)
    mask = batch.attention_mask
    eager = getattr(model.config, "_attn_implementation", None) == "eager"
    embedded: list[_States] = []
    blocks: list[_States] = []
    with _watched(model, embedded, blocks):
        out = model(
            input_ids=batch.tokens.to(device),
            output_hidden_states=True,
            output_attentions=eager,
            **({} if mask is None else {"attention_mask": mask.long().to(device)}),
        )
    hidden = [on_cpu(state) for state in out.hidden_states]
    states = dict(enumerate(hidden))
    last = len(hidden) - 1
    if len(blocks) == last and _are_equal(blocks, hidden):  # recurrent models leave out the embeddings
        states = dict(enumerate([embedded[0], *blocks]))
    elif len(blocks) == last and _are_equal(blocks[:-1], hidden[1:]):
        states[last] = blocks[-1]  # hidden_states has it behind the final norm, if there is one
    elif _has_final_norm(model):
        del states[last]
    logits = getattr(out, "logits", None)
    return ReferenceValues(
        embeddings=[states[0], *embedded],
        states=states,
        patterns=_patterns_by_block(model, getattr(out, "attentions", None) or (), last),
        outputs=[hidden[-1]] if logits is None else [on_cpu(logits), hidden[-1]],
        n_layers=last,
    )


def _patterns_by_block(model: Any, patterns: Sequence[Tensor | None], n_layers: int) -> dict[int, _Pattern]:
    """Return attention by block. Models that mix kinds of blocks give it for their blocks of attention alone."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    blocks = [block for block, kind in enumerate(kinds) if kind in _ATTENTION_TYPES]
    if len(patterns) == n_layers:
        blocks = list(range(n_layers))
    if len(patterns) != len(blocks):
        return {}
    states = {block for block, kind in enumerate(kinds) if kind == "linear_attention"}  # which MiniMax gives
    return {
        block: on_cpu(pattern)
        for block, pattern in zip(blocks, patterns, strict=True)
        if pattern is not None and pattern.ndim == 4 and block not in states  # RWKV's have three axes
    }


def _are_equal(blocks: list[_States], hidden: list[_States]) -> bool:
    """Return whether each block's output is the hidden state in its place, to the bit."""
    return all(torch.equal(output, state) for output, state in zip(blocks, hidden, strict=False))


def _has_final_norm(model: Any) -> bool:
    """Return whether a norm stands behind the last block, so that the last hidden state is not the block's output."""
    return any(name.rpartition(".")[2] in _FINAL_NORMS for name, _ in model.named_modules())


@contextmanager
def _watched(model: Any, embedded: list[_States], blocks: list[_States]) -> Iterator[None]:
    """Append the outputs of token embeddings and blocks inside the block to two lists."""
    n_layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == n_layers]
    with ExitStack() as hooks:
        embedding = model.get_input_embeddings()
        hooks.callback(embedding.register_forward_hook(partial(_append, embedded)).remove)
        for block in lists[0] if lists else ():
            hooks.callback(block.register_forward_hook(partial(_append, blocks)).remove)
        yield


def _append(values: list[_States], module: nn.Module, inputs: Any, output: Any) -> None:
    values.append(on_cpu(output[0] if isinstance(output, tuple) else output))
