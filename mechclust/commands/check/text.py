"""Does the tokenizer belong to the model, and where is a prompt's last token?"""

from __future__ import annotations

from itertools import islice
from typing import Any

from mechclust.commands.check.inputs import CheckedModel, first_trouble
from mechclust.commands.check.result import NotTried
from mechclust.models.chat_templates import templated_tokenizer
from mechclust.report.text import counted
from tasks import LabelledPrompts
from tasks.text.text_encoder import text_encoder_special_tokens

_MAX_IDS = 4000  # among which plain words are looked for
_TEXT_LENGTHS = (2, 3, 5)  # words per text


def text(checked: CheckedModel) -> tuple[bool, str] | tuple[bool, str, bool]:
    """Check that ids fit the model, texts survive a round trip, and the last token of padded prompts is found."""
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
    words = _words(checked)
    if len(words) < max(_TEXT_LENGTHS):
        raise NotTried(
            f"{counted(len(words), 'plain word')} among {min(_MAX_IDS, len(checked.ids))} ordinary tokens of the "
            "vocabulary: too few to write a text with"
        )
    texts = [" ".join(words[i : i + n]) for i, n in enumerate(_TEXT_LENGTHS)]
    encoded = templated_tokenizer(tokenizer)(texts)
    losses = {text: _lost(tokenizer, text, ids) for text, ids in zip(texts, encoded, strict=True)}
    lost = {text: loss for text, loss in losses.items() if loss}
    if lost:
        return False, first_trouble(lost)
    misplaced = _misplaced(checked, texts, encoded)
    if misplaced:
        return False, misplaced
    detail = f"{len(texts)} texts come back as they were; {_special(tokenizer, texts[-1])}; {_pad(checked)}"
    return True, detail, only_pad


def check_beginning_token(checked: CheckedModel) -> tuple[bool, str] | tuple[bool, str, bool]:
    """Say which token begins a text, if any: states depend on it, and tokenizers differ in whether they add it."""
    tokenizer = _tokenizer(checked)
    token = getattr(tokenizer, "bos_token", None) or getattr(tokenizer, "cls_token", None)
    if token is None:
        return True, "the tokenizer has no token for it; texts begin with their first word"
    i = tokenizer.convert_tokens_to_ids(token)
    if templated_tokenizer(tokenizer)(["a"])[0][:1] == [i]:
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


def _words(checked: CheckedModel) -> list[str]:
    """Return a few words that the tokenizer knows."""
    order = checked.random("words").permutation(checked.ids)[:_MAX_IDS]
    decoded = (checked.tokenizer.decode([int(i)]).strip() for i in order)
    words = (word for word in decoded if _is_plain(word) and _is_known(checked.tokenizer, word))
    return list(islice(words, max(_TEXT_LENGTHS) + len(_TEXT_LENGTHS)))


def _is_plain(word: str) -> bool:
    return len(word) > 1 and word.isalnum() and word[0].isalpha()


def _is_known(tokenizer: Any, word: str) -> bool:
    """Return whether a word alone has an encoding that is not just the unknown token."""
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    return bool(ids) and tokenizer.unk_token_id not in ids


def _lost(tokenizer: Any, text: str, ids: list[int]) -> str:
    """Return the fault of a text that does not come back, or ``""``."""
    back = tokenizer.decode(ids, skip_special_tokens=True)
    if _letters(back) == _letters(text):
        return ""
    return (
        f"{text!r} comes back from {len(ids)} ids as {back!r}: the model would read another text than you wrote; "
        "save the tokenizer again with the model, tokenizer.save_pretrained"
    )


def _letters(text: str) -> str:
    return "".join(text.split()).lower()


def _misplaced(checked: CheckedModel, texts: list[str], ids: list[list[int]]) -> str:
    """Return the fault in the last token's place in padded batches, or ``""``."""
    prompts = LabelledPrompts(texts, {"task": texts}, source="check")
    n_tokens = len(texts) * max(map(len, ids))
    (batch,) = prompts.batches(templated_tokenizer(checked.tokenizer), max(n_tokens, 4096), pad_id=checked.pad_id)
    places = zip(batch.tokens, batch.index.tolist(), batch.last_positions().tolist(), batch.lengths(), strict=True)
    for tokens, row, place, length in places:
        if length != len(ids[row]) or int(tokens[place]) != ids[row][-1]:
            return (
                f"{texts[row]!r} has {counted(len(ids[row]), 'id')}, the last {ids[row][-1]}, but in a padded batch "
                f"{int(length)}, the last {int(tokens[place])}: the tokenizer gives different ids each time; use "
                "another one"
            )
    return ""


def _special(tokenizer: Any, text: str) -> str:
    """Say which tokens are added before and after a text, and which one a probe at the last token reads."""
    before, after = (tokenizer.convert_ids_to_tokens(ids) for ids in text_encoder_special_tokens(tokenizer, text))
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
    return f"padded with {tokenizer.pad_token} (id {checked.pad_id}); the last real token is found"
