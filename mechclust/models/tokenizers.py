"""Checkpoints' own tokenizers: loaded, asked for token ids, and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mechclust.models.huggingface import is_local, reading
from tasks import InputError

Encode = Callable[[str], list[int]]


def load_tokenizer(name_or_path: str | Path) -> tuple[Any, Any]:
    """The tokenizer and the Hugging Face configuration of a checkpoint, without its weights.

    Args:
        name_or_path: a hub name, or a local directory, which must hold a model too.

    Raises:
        InputError: as ``load_pretrained``, and for a file, which has no tokenizer.
    """
    name = str(name_or_path)
    if Path(name).is_file():
        raise InputError(f"{name!r} has no tokenizer to read prompts; give a Hugging Face checkpoint")
    local = is_local(name)
    with reading(name, local):
        return tokenizer_and_config(name, local)


def tokenizer_and_config(name: str, local: bool) -> tuple[Any, Any]:
    """Both of a checkpoint, as Hugging Face loads them."""
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(name, local_files_only=local)
    return AutoTokenizer.from_pretrained(name, local_files_only=local), config


def encoder(tokenizer: Any, chat: bool = False, template: Any = None) -> Encode:
    """A function from text to token ids.

    Args:
        tokenizer: of the model.
        chat: give the text as a user's message in a chat template, up to where the answer begins.
        template: the tokenizer whose chat template that is; by default its own.

    Raises:
        InputError: where there is no chat template.
    """
    if not chat:
        return lambda text: list(tokenizer(text)["input_ids"])
    template = tokenizer if template is None else template
    if not getattr(template, "chat_template", None):
        raise InputError("this model's tokenizer has no chat template; leave out --chat")

    def encode(text: str) -> list[int]:
        message = [{"role": "user", "content": text}]
        rendered = template.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])

    return encode


def check_read_alike(texts: Mapping[str, str], readers: Mapping[str, tuple[Any, Encode]]) -> list[str]:
    """Refuse models that do not read texts as the same tokens.

    Args:
        texts: by what to call them, such as ``"prompt 3 of file.jsonl"``.
        readers: tokenizer and encoder of each model, by what to call it. The first is compared with each other.

    Returns:
        Notes: of vocabularies that differ where no text reaches.

    Raises:
        InputError: naming the first text that is other ids, or ids that stand for other tokens.
    """
    (first, (tokenizer, encode)), *others = readers.items()
    encoded = {name: encode(text) for name, text in texts.items()}
    names = {i: tokenizer.convert_ids_to_tokens(i) for ids in encoded.values() for i in ids}
    notes = []
    for other, (theirs, encode_theirs) in others:
        their_names = {i: theirs.convert_ids_to_tokens(i) for i in names if i < len(theirs)}
        for name, text in texts.items():
            ids, their_ids = encoded[name], encode_theirs(text)
            if ids == their_ids and all(names[i] == their_names.get(i) for i in ids):
                continue
            raise InputError(
                f"{name} is not the same tokens to {first} and {other} "
                f"({_difference(tokenizer, ids, theirs, their_ids)}); compare models with one tokenizer"
            )
        vocabularies = (set(t.get_vocab().items()) for t in (tokenizer, theirs))
        if unlike := len({token for token, _ in set.symmetric_difference(*vocabularies)}):
            notes.append(
                f"The vocabularies of {first} and {other} differ in {unlike} token{'s' * (unlike != 1)}, which no "
                "prompt uses."
            )
    return notes


def _difference(tokenizer: Any, ids: list[int], theirs: Any, their_ids: list[int]) -> str:
    """Where two readings part."""
    for place, (i, j) in enumerate(zip(ids, their_ids, strict=False), start=1):
        one, other = tokenizer.convert_ids_to_tokens(i), theirs.convert_ids_to_tokens(j)
        if (i, one) != (j, other):
            return f"token {place} is {one!r}, id {i}, and {other!r}, id {j}"
    return f"{len(ids)} and {len(their_ids)} tokens"
