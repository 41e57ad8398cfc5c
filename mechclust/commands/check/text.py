"""Does the tokenizer belong to the model, and where is a prompt's last token?"""

from __future__ import annotations

from itertools import islice
from typing import Any

from mechclust.commands.check.inputs import CheckedModel, counted, wrong
from mechclust.commands.check.result import NotTried
from mechclust.models.tokenizers import encoder
from tasks import LabelledPrompts
from tasks.text.beginning import special_around

_LOOK_AT = 4000  # ids when looking for plain words
_LENGTHS = (2, 3, 5)  # words per text


def text(checked: CheckedModel) -> tuple[bool, str] | tuple[bool, str, bool]:
    """Ids fit the model, texts survive a round trip, and the last token of padded prompts is found."""
    tokenizer = _tokenizer(checked)
    d_vocab = checked.model.cfg.d_vocab
    beyond = {token: i for token, i in tokenizer.get_vocab().items() if i >= d_vocab}
    if beyond and set(beyond) != {tokenizer.pad_token}:
        token, i = min(beyond.items(), key=lambda item: item[1])
        return False, (
            f"{counted(len(beyond), 'token')} without an embedding, the first {token!r}, id {i} of {d_vocab}: the "
            "tokenizer is another model's, or tokens were added to it; use the model's own, or "
            "model.resize_token_embeddings"
        )
    words = _words(checked)
    if len(words) < max(_LENGTHS):
        raise NotTried(
            f"{counted(len(words), 'plain word')} among {min(_LOOK_AT, len(checked.ids))} ordinary tokens of the "
            "vocabulary: too few to write a text with"
        )
    texts = [" ".join(words[i : i + n]) for i, n in enumerate(_LENGTHS)]
    ids = encoder(tokenizer)(texts)
    trouble = {t: lost for t, i in zip(texts, ids, strict=True) if (lost := _lost(tokenizer, t, i))}
    if trouble:
        return False, wrong(trouble)
    if misplaced := _misplaced(checked, texts, ids):
        return False, misplaced
    found = f"{len(texts)} texts come back as they were; {_special(tokenizer, texts[-1])}; {_pad(checked)}"
    return True, found, bool(beyond)


def beginning(checked: CheckedModel) -> tuple[bool, str] | tuple[bool, str, bool]:
    """Which token begins a text, if any: measured states depend on it, and tokenizers differ in whether they add it."""
    tokenizer = _tokenizer(checked)
    token = getattr(tokenizer, "bos_token", None) or getattr(tokenizer, "cls_token", None)
    if token is None:
        return True, "the tokenizer has no token for it; texts begin with their first word"
    i = tokenizer.convert_tokens_to_ids(token)
    if encoder(tokenizer)(["a"])[0][:1] == [i]:
        return (
            True,
            f"{token} (id {i}) is put before every text, as Hugging Face's tokenizer does; --bos no leaves it out",
        )
    said = (
        f"there is {token} (id {i}), but Hugging Face's tokenizer does not put it before a text, so that texts are "
        "measured without it; where the model was trained with it, choose --bos yes, the same for all models compared"
    )
    return True, said, True


def _tokenizer(checked: CheckedModel) -> Any:
    if checked.tokenizer is None:
        raise NotTried("the model has no tokenizer; text commands need a Hugging Face checkpoint with one")
    return checked.tokenizer


def _words(checked: CheckedModel) -> list[str]:
    """A few words that the tokenizer knows."""
    order = checked.random("words").permutation(checked.ids)[:_LOOK_AT]
    plain = (checked.tokenizer.decode([int(i)]).strip() for i in order)
    known = (w for w in plain if len(w) > 1 and w.isalnum() and w[0].isalpha() and _same(checked.tokenizer, w))
    return list(islice(known, max(_LENGTHS) + len(_LENGTHS)))


def _same(tokenizer: Any, word: str) -> bool:
    """Whether a word alone has an encoding that is not just the unknown token."""
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    return bool(ids) and tokenizer.unk_token_id not in ids


def _lost(tokenizer: Any, written: str, ids: list[int]) -> str:
    """What is wrong with a text that does not come back, or nothing."""

    def plain(text: str) -> str:
        return "".join(text.split()).lower()

    back = tokenizer.decode(ids, skip_special_tokens=True)
    if plain(back) == plain(written):
        return ""
    return (
        f"{written!r} comes back from {len(ids)} ids as {back!r}: the model would read another text than you wrote; "
        "save the tokenizer again with the model, tokenizer.save_pretrained"
    )


def _misplaced(checked: CheckedModel, texts: list[str], ids: list[list[int]]) -> str:
    """What is wrong with the last token's place in padded batches, or nothing."""
    prompts = LabelledPrompts(texts, {"task": texts}, source="check")
    room = len(texts) * max(map(len, ids))
    (batch,) = prompts.batches(encoder(checked.tokenizer), max(room, 4096), pad_id=checked.pad_id)
    places = zip(batch.tokens, batch.index.tolist(), batch.last_positions().tolist(), batch.lengths(), strict=True)
    for tokens, row, place, length in places:
        if length != len(ids[row]) or int(tokens[place]) != ids[row][-1]:
            return (
                f"{texts[row]!r} has {counted(len(ids[row]), 'id')}, the last {ids[row][-1]}, but in a padded batch "
                f"{int(length)}, the last {int(tokens[place])}: the tokenizer gives different ids each time; use "
                "another one"
            )
    return ""


def _special(tokenizer: Any, written: str) -> str:
    """Which tokens stand round a text, and which one a probe at the last token reads."""
    before, after = (tokenizer.convert_ids_to_tokens(part) for part in special_around(tokenizer, written))
    if not before and not after:
        return "no special tokens are added"
    added = " and ".join(f"{' '.join(part)} {where}" for part, where in ((before, "before"), (after, "after")) if part)
    return f"{added} {'is' if len(before) + len(after) == 1 else 'are'} added" + (
        f", so last_token() reads {after[-1]}" if after else ""
    )


def _pad(checked: CheckedModel) -> str:
    tokenizer, d_vocab = checked.tokenizer, checked.model.cfg.d_vocab
    if tokenizer.pad_token is not None and tokenizer.pad_token_id >= d_vocab:
        return (
            f"the pad token {tokenizer.pad_token} (id {tokenizer.pad_token_id}) is beyond the embedding of {d_vocab} "
            f"tokens: id {checked.pad_id} fills up batches instead, hidden by the mask"
        )
    if tokenizer.pad_token is None:
        return f"there is no pad token: id {checked.pad_id} fills up batches, hidden by the mask"
    return f"padded with {tokenizer.pad_token} (id {checked.pad_id}); the last real token is found"
