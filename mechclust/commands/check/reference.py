"""What plain Hugging Face computes for a checkpoint: the numbers that a hooked model must give too."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mechclust.commands.check.inputs import LENGTH, dtypes_of, example_generator, ordinary_ids, pad_id
from probes.engine.hooks import device_of, evaluation_mode
from tasks import Batch

AS_IT_IS = "as it is"  # positions as the bare forward pass counts them: with the padding, but for RoBERTa, OPT, Bloom
FROM_THE_MASK = "from the mask"  # as ``generate`` makes them: from the first real token


class ReferenceValues(NamedTuple):
    """What a model gives for a batch, on the CPU.

    Attributes:
        embeddings: what layer 0 may be called: token embeddings alone, and with all that is added to them before the
            first block; ``[batch pos d_model]`` each.
        states: the residual stream ``[batch pos d_model]`` by layer: 0 before the first block, ``l + 1`` behind block
            ``l``. Behind the last block it is missing where only its normalised form is known.
        patterns: attention ``[batch head query key]`` by block; empty where Hugging Face does not give them.
        outputs: logits ``[batch pos d_vocab]``, if there is a head, and the last hidden state ``[batch pos d_model]``.
        n_layers: how many blocks there are.
    """

    embeddings: list[Tensor]
    states: dict[int, Tensor]
    patterns: list[Tensor]
    outputs: list[Tensor]
    n_layers: int


class ReferenceCase(NamedTuple):
    """One batch, and what Hugging Face gives for it: once, or with padding on the left by how positions are counted."""

    padded: str  # "", "right" or "left"
    batch: Batch
    found: Mapping[str, ReferenceValues]


@dataclass(frozen=True)
class Reference:
    """What plain Hugging Face gives, without its model.

    Attributes:
        model: what computed it.
        dtype: of what is computed; the coarsest where there are several.
        weights: dtypes of the weights, in words.
        cases: batches without padding, padded on the right, and on the left.
        base: the same without the adapter; empty where there is none.
    """

    model: str
    dtype: torch.dtype
    weights: str
    cases: list[ReferenceCase]
    base: list[ReferenceCase]


def take_reference(plain: Any, tokenizer: Any, seed: int) -> Reference:
    """Run a Hugging Face model, or peft's with an adapter beside its weights, on random tokens.

    Args:
        plain: the model; nothing of it is changed.
        tokenizer: if there is one: its special tokens are left out.
        seed: for the tokens.
    """
    disable = getattr(plain, "disable_adapter", None)
    whole = plain if disable is None else plain.get_base_model()
    model = whole.get_encoder() if whole.config.is_encoder_decoder else whole
    batches = _batches(model, tokenizer, seed)
    with torch.inference_mode(), evaluation_mode(plain):
        cases = [_case(model, padded, batch) for padded, batch in batches]
        base = []
        if disable is not None:
            with disable():
                base = [_case(model, padded, batch) for padded, batch in batches]
    values = next(iter(cases[0].found.values()))
    dtypes = {x.dtype for x in (*values.states.values(), *values.outputs)}
    return Reference(
        model=f"{type(whole).__name__} (transformers {version('transformers')})",
        dtype=max(dtypes, key=lambda dtype: torch.finfo(dtype).eps),
        weights=dtypes_of(model),
        cases=cases,
        base=base,
    )


def _batches(model: Any, tokenizer: Any, seed: int) -> list[tuple[str, Batch]]:
    """Four sequences of different lengths, padded on either side, and without: those of full length, cut."""
    table = getattr(model.get_input_embeddings(), "weight", None)
    d_vocab = model.config.get_text_config().vocab_size if table is None else table.shape[0]
    length = min(LENGTH, getattr(model.config, "max_position_embeddings", None) or LENGTH)
    lengths = [max(1, length - k) for k in (0, 1, 3, 5)]
    ids, pad = ordinary_ids(d_vocab, tokenizer, model.config), pad_id(d_vocab, tokenizer, model.config)
    tokens = torch.from_numpy(example_generator(seed, "reference").choice(ids, size=(len(lengths), length))).long()
    batches = [("", Batch(tokens))]
    for padded in ("right", "left") if length > 1 else ():
        mask = torch.arange(length) < torch.tensor(lengths)[:, None]
        mask = mask if padded == "right" else mask.flip(1)
        batches.append((padded, Batch(tokens.masked_fill(~mask, pad), mask)))
    return batches


def _case(model: Any, padded: str, batch: Batch) -> ReferenceCase:
    found = {AS_IT_IS: _values(model, batch, {})}
    if padded == "left" and _takes_positions(model):
        assert batch.attention_mask is not None
        mask = batch.attention_mask.long()
        positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
        found[FROM_THE_MASK] = _values(model, batch, {"position_ids": positions})
    return ReferenceCase(padded, batch, found)


def _takes_positions(model: Any) -> bool:
    """RoBERTa and its like number positions by themselves, from their padding token on."""
    own = any(hasattr(module, "create_position_ids_from_input_ids") for module in model.modules())
    return not own and "position_ids" in inspect.signature(model.forward).parameters


def _values(model: Any, batch: Batch, options: dict[str, Tensor]) -> ReferenceValues:
    device = device_of(model)
    if batch.attention_mask is not None:
        options = {**options, "attention_mask": batch.attention_mask.long()}
    patterns = getattr(model.config, "_attn_implementation", None) == "eager"
    with _watched(model) as (embedded, blocks):
        out = model(
            input_ids=batch.tokens.to(device),
            output_hidden_states=True,
            output_attentions=patterns,
            **{name: value.to(device) for name, value in options.items()},
        )
    hidden = [_kept(x) for x in out.hidden_states]
    states = dict(enumerate(hidden))
    last = len(hidden) - 1
    if len(blocks) == last and all(torch.equal(blocks[i], hidden[i + 1]) for i in range(last - 1)):
        states[last] = blocks[-1]  # hidden_states has it behind the final norm, where there is one
    elif not _bare(model):
        del states[last]
    logits = getattr(out, "logits", None)
    return ReferenceValues(
        embeddings=[hidden[0], *embedded],
        states=states,
        patterns=[_kept(x) for x in getattr(out, "attentions", None) or () if x is not None],
        outputs=[hidden[-1]] if logits is None else [_kept(logits), hidden[-1]],
        n_layers=last,
    )


def _bare(model: Any) -> bool:
    """Whether the last hidden state is what the last block gives: no decoder norm is known behind it."""
    return not any(name.rpartition(".")[2] in _FINAL_NORMS for name, _ in model.named_modules())


_FINAL_NORMS = {"norm", "ln_f", "final_layer_norm", "final_layernorm", "final_norm"}


@contextmanager
def _watched(model: Any) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """What token embeddings and blocks give inside the block; two lists that fill up."""
    embedded: list[Tensor] = []
    blocks: list[Tensor] = []

    def keep(into: list[Tensor]) -> Any:
        def hook(module: nn.Module, given: Any, gives: Any) -> None:
            into.append(_kept(gives[0] if isinstance(gives, tuple) else gives))

        return hook

    n = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == n]
    with ExitStack() as hooks:
        hooks.callback(model.get_input_embeddings().register_forward_hook(keep(embedded)).remove)
        for block in lists[0] if lists else ():
            hooks.callback(block.register_forward_hook(keep(blocks)).remove)
        yield embedded, blocks


def _kept(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)
