"""Checkpoints' tokenizers: loaded, used for token ids, and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mechclust.models.chat_templates import templated_tokenizer
from mechclust.models.hugging_face_checkpoint import (
    HuggingFaceCheckpoint,
    check_tokenizer_downloaded,
    find_checkpoint,
    read_checkpoint_config,
    reading_checkpoint_part,
)
from mechclust.models.resolved import ResolvedModel, resolve_model
from mechclust.models.sizes import Sizes
from probes.engine.text_tokenizer import tokenizer_of
from probes.store.digest import digest_of
from tasks import Batch, InputError
from tasks.text.bos_token import Bos, leading_bos
from tasks.text.prompts import Encode
from tasks.text.text_encoder import tokenization as plain_tokenization

_UNKNOWN_SHARE_NOTED = 0.1  # of the tokens
_MAX_TEXTS_COMPARED = 64  # texts that distinguish a tokenizer from others, with its vocabulary
_LEAST_WORDS = 2  # tokens besides special ones. Of missing files, T5 makes one: the space


def load_tokenizer(name_or_path: str | Path, *, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Return the tokenizer and the Hugging Face configuration of a checkpoint, without its weights.

    Args:
        name_or_path: a hub name, a local directory, which must hold a model too, a GGUF file, or an adapter. Of an
            adapter the base is read, with the tokenizer that was saved with the adapter if there is one.
        trust_remote_code: run code that the checkpoint brings.

    Raises:
        InputError: as ``load_pretrained``, and for a file of ``save_model``, which has no tokenizer.
    """
    return tokenizer_and_config(resolve_model(name_or_path), trust_remote_code=trust_remote_code)


def tokenizer_and_config(model: ResolvedModel, *, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Return the tokenizer and the configuration of a model from ``resolve_model``, as ``load_tokenizer``."""
    if model.is_own_file:
        raise InputError(f"{model.source!r} has no tokenizer to read prompts; give a Hugging Face checkpoint")
    source = find_checkpoint(model.base, trust_remote_code=trust_remote_code)
    config = read_checkpoint_config(source)
    return read_checkpoint_tokenizer(tokenizer_source(model.merged_adapter, source)), config


def tokenizer_and_sizes(model: ResolvedModel, *, trust_remote_code: bool = False) -> tuple[Any, Sizes]:
    """Return a model's tokenizer and its sizes, without loading weights.

    Args:
        model: by name or in memory. One in memory without a tokenizer gives ``None``.
        trust_remote_code: run code that the checkpoint brings.

    Raises:
        InputError: as ``load_tokenizer``, and for something that is not a model.
    """
    if model.in_memory:
        return tokenizer_of(model.source), Sizes.from_model(model.source)
    tokenizer, config = tokenizer_and_config(model, trust_remote_code=trust_remote_code)
    return tokenizer, Sizes.from_config(config)


def tokenizer_source(adapter: str | Path | None, base: HuggingFaceCheckpoint) -> HuggingFaceCheckpoint:
    """Return the source of the tokenizer for a model with an adapter, whose own tokenizer often has a chat template."""
    if adapter is None or not (Path(adapter) / "tokenizer_config.json").exists():
        return base
    return HuggingFaceCheckpoint(str(adapter), local=True, trusted=base.trusted)


def read_checkpoint_tokenizer(source: HuggingFaceCheckpoint) -> Any:
    """Read a checkpoint's tokenizer, as Hugging Face gives it.

    Raises:
        InputError: for a tokenizer that is damaged, encodes no text, or has no vocabulary.
    """
    from transformers import AutoTokenizer

    with reading_checkpoint_part(source, "tokenizer"):
        check_tokenizer_downloaded(source)
        tokenizer = AutoTokenizer.from_pretrained(source.name, **source.options)
        tokenizer("a")  # with no token for unknown words, or a length that is no number, this fails
        if len(tokenizer) - len(tokenizer.all_special_ids) < _LEAST_WORDS:  # its files are not those of its family
            raise InputError("its tokenizer has no vocabulary; save it there with tokenizer.save_pretrained")
    return tokenizer


def check_has_tokenizer(model: str, tokenizer: Any, what: str) -> None:
    """Refuse a model without a tokenizer to read ``what``.

    Args:
        model: its name, for the error.
        tokenizer: the one found; ``None``: there is none.
        what: what is read, in words.
    """
    if tokenizer is None:
        raise InputError(f"{model} has no tokenizer to read {what}; give a Hugging Face checkpoint, or tokenizer=")


def tokenization_of(tokenizer: Any, *, chat: bool = False, template: Any = None, bos: Bos = "model") -> dict[str, Any]:
    """Return how texts become tokens, to be kept with a result.

    Args:
        tokenizer, chat, template, bos: as for ``templated_tokenizer``.

    Returns:
        For plain texts as ``tasks.text.text_encoder.tokenization``. A chat template adds different tokens to different
        texts. Then ``adds`` is left out, and ``begins`` is the beginning-of-sequence token, or ``"none"``.
    """
    plain = plain_tokenization(tokenizer, bos)
    if not chat:
        return plain
    (ids,) = templated_tokenizer(tokenizer, chat, template, bos)(["a"])
    return {"tokenizer": plain["tokenizer"], "bos": bos, "chat": True, "begins": leading_bos(tokenizer, ids)}


def tokenizer_digest(tokenizer: Any, texts: Sequence[str], *, chat: bool = False, bos: Bos = "model") -> str:
    """Return a digest of a tokenizer's vocabulary and of its tokens for the first texts.

    Args:
        tokenizer, chat, bos: as for ``templated_tokenizer``.
        texts: at most 64 of them are read.
    """
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    tokens = templated_tokenizer(tokenizer, chat, bos=bos)(list(texts[:_MAX_TEXTS_COMPARED]))
    return digest_of([vocabulary, json.dumps(tokens)])


def tokenizer_unknown_token_notes(tokenizer: Any, batches: Sequence[Batch]) -> list[str]:
    """Note if more than a tenth of the tokens are unknown words.

    Args:
        tokenizer: that read the texts.
        batches: the texts as tokens.
    """
    if tokenizer.unk_token_id is None or tokenizer.unk_token in (tokenizer.bos_token, tokenizer.eos_token):
        return []
    n_tokens = sum(int(batch.lengths().sum()) for batch in batches)
    n_unknown = sum(_n_unknown(batch, tokenizer.unk_token_id) for batch in batches)
    if n_unknown <= _UNKNOWN_SHARE_NOTED * n_tokens:
        return []
    return [
        f"{n_unknown / n_tokens:.0%} of the tokens are {tokenizer.unk_token}: the tokenizer does not know "
        "these texts, so the numbers say little about what is in them."
    ]


def _n_unknown(batch: Batch, unknown: int) -> int:
    """Count the unknown tokens of a batch, without padding."""
    tokens = batch.tokens if batch.attention_mask is None else batch.tokens[batch.attention_mask]
    return int((tokens == unknown).sum())


def tokenization_in_words(tokenization: Mapping[str, Any]) -> str:
    """Return the mapping from ``tokenization_of`` as a sentence.

    Example:
        >>> adds = "[CLS] before, [SEP] after"
        >>> tokenization_in_words({"tokenizer": "BertTokenizer", "bos": "model", "chat": False, "adds": adds})
        "Texts are read with Hugging Face's BertTokenizer; special tokens: [CLS] before, [SEP] after (the last token)."
    """
    bos = "" if tokenization["bos"] == "model" else f" (--bos {tokenization['bos']})"
    special_tokens = _special_tokens_in_words(tokenization)
    return f"Texts are read with Hugging Face's {tokenization['tokenizer']}; {special_tokens}{bos}."


def _special_tokens_in_words(tokenization: Mapping[str, Any]) -> str:
    if tokenization["chat"]:
        begins = tokenization.get("begins", "none")
        how = "without a beginning-of-sequence token" if begins == "none" else f"which begins with {begins}"
        return f"as a user's message in the chat template, {how}"
    adds = tokenization["adds"]
    if adds == "none":
        return "no special tokens are added"
    return f"special tokens: {adds}" + (" (the last token)" if adds.endswith(" after") else "")


def check_tokenizers_alike(texts: Mapping[str, str], readers: Mapping[str, tuple[Any, Encode]]) -> list[str]:
    """Refuse models that turn one of the texts into different tokens.

    Args:
        texts: by their names in errors, such as ``"prompt 3 of file.jsonl"``.
        readers: tokenizer and encoder of each model, by its name in errors. All others are compared with the first.

    Returns:
        Notes on vocabularies that differ only in tokens that no text has.

    Raises:
        InputError: naming the first text with different ids, or with ids of different tokens.
    """
    (first, (tokenizer, encode)), *others = readers.items()
    encoded = dict(zip(texts, encode([*texts.values()]), strict=True))
    used_ids = set().union(*encoded.values())
    names = {i: tokenizer.convert_ids_to_tokens(i) for i in used_ids}
    notes = []
    for other, (other_tokenizer, other_encode) in others:
        other_names = {i: other_tokenizer.convert_ids_to_tokens(i) for i in used_ids if i < len(other_tokenizer)}
        for (text, ids), other_ids in zip(encoded.items(), other_encode([*texts.values()]), strict=True):
            if ids != other_ids or any(names[i] != other_names.get(i) for i in ids):
                difference = _difference(tokenizer, ids, other_tokenizer, other_ids)
                raise InputError(
                    f"{text} is read as different tokens by {first} and {other} ({difference}); compare models with "
                    "one tokenizer"
                )
        n_different = _n_different_tokens(tokenizer, other_tokenizer)
        if n_different:
            tokens = "1 token" if n_different == 1 else f"{n_different} tokens"
            notes.append(
                f"The vocabularies of {first} and {other} differ in {tokens}, which none of the compared prompts uses."
            )
    return notes


def _n_different_tokens(tokenizer: Any, other: Any) -> int:
    """Count the tokens that only one vocabulary has, or that have another id in the other."""
    different = set(tokenizer.get_vocab().items()) ^ set(other.get_vocab().items())
    return len({token for token, _ in different})


def _difference(tokenizer: Any, ids: list[int], other: Any, other_ids: list[int]) -> str:
    """Return the first token at which two readings of a text differ, in words."""
    for place, (i, j) in enumerate(zip(ids, other_ids, strict=False), start=1):
        name = tokenizer.convert_ids_to_tokens(i)
        other_name = other.convert_ids_to_tokens(j)
        if (i, name) != (j, other_name):
            return f"token {place} is {name!r}, id {i}, and {other_name!r}, id {j}"
    return f"{len(ids)} and {len(other_ids)} tokens"
