"""Check the tokens and labels of an attention view before a model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Int, Integer, Shaped
from torch import Tensor

from probes import HookedModel
from probes.engine.text_tokenizer import text_tokenizers_of
from tasks import InputError
from tasks.text.bos_token import Bos
from tasks.text.text_encoder import text_encoder

Labels: TypeAlias = Sequence[str | int | None] | Shaped[Tensor, "pos"]


def encode_view_tokens(models: Mapping[str, HookedModel], text: str, bos: Bos) -> list[int]:
    """Return the token ids of a text, identical in every model that has a tokenizer."""
    ids = {name: text_encoder(tokenizer, bos)([text])[0] for name, tokenizer in text_tokenizers_of(models).items()}
    if not ids:
        who = " and ".join(dict.fromkeys(type(model).__name__ for model in models.values()))
        raise InputError(
            f"tokens is the text {text[:40]!r}, but this {who} has no tokenizer; "
            "give token ids, and their strings as str_tokens"
        )
    (first, tokens), *others = ids.items()
    for name, other in others:
        if tokens != other:
            raise InputError(
                f"the tokenizers of models {first!r} and {name!r} make different token ids of the text {text[:40]!r}; "
                "compare models with one tokenizer, or give token ids"
            )
    return tokens


def check_view_tokens(models: Mapping[str, HookedModel], ids: Int[Tensor, "pos"]) -> None:
    """Refuse token ids that a model does not know, and a sequence longer than its context."""
    for name, model in models.items():
        who = f"model {name!r}" if name else "the model"
        cfg = getattr(model, "cfg", None)
        d_vocab = getattr(cfg, "d_vocab", None)
        if d_vocab is not None:
            unknown = ids[(ids < 0) | (ids >= d_vocab)].tolist()
            if unknown:
                raise InputError(f"tokens has the id {unknown[0]}, but {who} knows ids 0 to {d_vocab - 1}; give others")
        n_ctx = getattr(cfg, "n_ctx", None)
        if n_ctx is not None and len(ids) > n_ctx:
            raise InputError(f"there are {len(ids)} tokens, but {who} reads at most {n_ctx}; give fewer")


def real_view_tokens(attention_mask: Any, ids: Int[Tensor, "pos"]) -> Bool[Tensor, "pos"]:
    """Return the positions of a sequence that hold real tokens. These are all positions if there is no mask."""
    if attention_mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    mask = view_token_sequence("attention_mask", attention_mask).bool().to(ids.device)
    if mask.shape != ids.shape or not mask.any():
        raise InputError(
            f"attention_mask has length {len(mask)} and {int(mask.sum())} real tokens for {len(ids)} token ids; "
            "expected one value per token, true on the real ones"
        )
    return mask


def decode_view_tokens(models: Mapping[str, HookedModel], ids: Sequence[int]) -> list[str]:
    """Return a string for each token id, by the first tokenizer. Without one, the ids."""
    for model in models.values():
        tokenizer: Any = getattr(model, "tokenizer", None)
        if tokenizer is not None:
            texts = tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
            return [_with_spaces(*pair) for pair in zip(tokenizer.convert_ids_to_tokens(ids), texts, strict=True)]
    return [str(i) for i in ids]


def _with_spaces(piece: str | None, text: str) -> str:
    """Return a token's text with the spaces that begin it, one of which Llama 2's and T5's decoders remove."""
    if not piece or not piece.startswith("▁") or text.startswith("▁"):
        return text
    spaces = piece[: len(piece) - len(piece.lstrip("▁"))]
    return spaces.replace("▁", " ") + text.lstrip(" ")


def view_token_sequence(name: str, value: Any) -> Integer[Tensor, "pos"] | Bool[Tensor, "pos"]:
    """Return one sequence of integers, given ``[pos]`` or ``[1 pos]``."""
    try:
        row = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is {repr(value)[:60]}; expected one sequence of integers; give token ids") from None
    shape = tuple(row.shape)
    row = row[0] if row.ndim == 2 and len(row) == 1 else row
    if row.ndim != 1 or not len(row) or row.is_floating_point():
        raise InputError(
            f"{name} has shape {shape} of {str(row.dtype).removeprefix('torch.')}; expected one sequence of integers, "
            f"[pos] or [1 pos]; give one row of a batch such as {name}[:1]"
        )
    return row


def view_token_labels(labels: Labels | None, n: int) -> tuple[str | None, ...]:
    """Return labels as strings, one for each of ``n`` positions. Empty without labels."""
    if labels is None:
        return ()
    if isinstance(labels, str):
        raise InputError(f"labels is the text {labels[:40]!r}; expected one label per position, such as batch.labels")
    values = labels.tolist() if isinstance(labels, Tensor) else list(labels)
    if not isinstance(values, list) or len(values) != n or any(isinstance(label, list) for label in values):
        shape = f"shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else f"{len(values)} labels"
        raise InputError(
            f"labels has {shape} for {n} {'token' if n == 1 else 'tokens'}; "
            "expected one label per position, None where there is none"
        )
    return tuple(None if label is None else str(label) for label in values)
