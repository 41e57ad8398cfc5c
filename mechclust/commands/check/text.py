"""Does the tokenizer belong to the model, and which tokens does it add?"""

from __future__ import annotations

from typing import Any

from mechclust.commands.check.inputs import CheckedModel
from mechclust.commands.check.result import NotTried
from mechclust.report.text import counted
from tasks.text.text_encoder import text_encoder_special_tokens


def text(checked: CheckedModel) -> tuple[bool, str] | tuple[bool, str, bool]:
    """Check that ids fit the model, and say which tokens are added to a text and its padding."""
    tokenizer = _tokenizer(checked)
    d_vocab = checked.model.cfg.d_vocab
    ids_beyond = {i: token for token, i in tokenizer.get_vocab().items() if i >= d_vocab}
    only_pad = set(ids_beyond.values()) == {tokenizer.pad_token}
    if ids_beyond and not only_pad:
        first = min(ids_beyond)
        return False, (
            f"{counted(len(ids_beyond), 'token')} without an embedding, the first {ids_beyond[first]!r}, id {first} of "
            f"{d_vocab}: the tokenizer is another model's, or tokens were added to it; use the model's own, or "
            "model.resize_token_embeddings"
        )
    return True, f"{_special(tokenizer)}; {_pad(checked)}", only_pad


def check_beginning_token(checked: CheckedModel) -> tuple[bool, str] | tuple[bool, str, bool]:
    """Say which token begins a text, if any: states depend on it, and tokenizers differ in whether they add it."""
    tokenizer = _tokenizer(checked)
    token = getattr(tokenizer, "bos_token", None) or getattr(tokenizer, "cls_token", None)
    if token is None:
        return True, "the tokenizer has no token for it; texts begin with their first word"
    i = tokenizer.convert_tokens_to_ids(token)
    if text_encoder_special_tokens(tokenizer)[0][:1] == [i]:
        return True, (
            f"{token} (id {i}) is put before every text, as Hugging Face's tokenizer does; --bos no leaves it out"
        )
    not_added = (
        f"there is {token} (id {i}), but Hugging Face's tokenizer does not put it before a text, so that texts are "
        "measured without it; where the model was trained with it, choose --bos yes, the same for all models compared"
    )
    return True, not_added, True


def _tokenizer(checked: CheckedModel) -> Any:
    if checked.tokenizer is None:
        raise NotTried("the model has no tokenizer; text commands need a Hugging Face checkpoint with one")
    return checked.tokenizer


def _special(tokenizer: Any) -> str:
    """Say which tokens are added before and after a text, and which one a probe at the last token reads."""
    before, after = (tokenizer.convert_ids_to_tokens(ids) for ids in text_encoder_special_tokens(tokenizer))
    if not before and not after:
        return "no special tokens are added"
    added = [f"{' '.join(tokens)} {where}" for tokens, where in ((before, "before"), (after, "after")) if tokens]
    verb = "is" if len(before) + len(after) == 1 else "are"
    last = f", so last_token() reads {after[-1]}" if after else ""
    return f"{' and '.join(added)} {verb} added{last}"


def _pad(checked: CheckedModel) -> str:
    tokenizer = checked.tokenizer
    d_vocab = checked.model.cfg.d_vocab
    if tokenizer.pad_token is None:
        return f"there is no pad token: id {checked.pad_id} fills up batches, hidden by the mask"
    if tokenizer.pad_token_id >= d_vocab:
        return (
            f"the pad token {tokenizer.pad_token} (id {tokenizer.pad_token_id}) is beyond the embedding of {d_vocab} "
            f"tokens: id {checked.pad_id} fills up batches instead, hidden by the mask"
        )
    return f"padded with {tokenizer.pad_token} (id {checked.pad_id})"
