"""Checkpoints' own tokenizers: loaded, asked for token ids, and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mechclust.models.adapters import tokenizer_source
from mechclust.models.huggingface import find, read_config, read_tokenizer, reading
from mechclust.models.resolved import ResolvedModel, resolve_model
from mechclust.models.sizes import Sizes
from probes.engine.texts import tokenizer_of
from tasks import Batch, InputError, LabelledPrompts
from tasks.errors import first_line
from tasks.text.beginning import Bos, leading_bos, special_around, text_encoder
from tasks.text.beginning import tokenization as plain_tokenization
from tasks.text.prompts import Encode

OWN_TEMPLATE = "the chat template of this model's tokenizer"
_MEND = "fix it in the checkpoint's chat_template.jinja or tokenizer_config.json, or leave out --chat"
_UNKNOWN = 0.1  # share of tokens from which it is told


def load_tokenizer(name_or_path: str | Path | ResolvedModel, *, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """The tokenizer and the Hugging Face configuration of a checkpoint, without its weights.

    Args:
        name_or_path: a hub name, a local directory, which must hold a model too, a GGUF file, or an adapter: then those
            of its base, or a tokenizer that was saved with the adapter.
        trust_remote_code: run code that the checkpoint brings.

    Raises:
        InputError: as ``load_pretrained``, and for a file of ``save_model``, which has no tokenizer.
    """
    model = resolve_model(name_or_path)
    if model.is_own_file:
        raise InputError(f"{model.source!r} has no tokenizer to read prompts; give a Hugging Face checkpoint")
    source = find(model.base, trust_remote_code=trust_remote_code)
    with reading(source):
        return read_tokenizer(tokenizer_source(model.source if model.is_adapter else None, source)), read_config(source)


def tokenizer_and_sizes(model: ResolvedModel, *, trust_remote_code: bool = False) -> tuple[Any, Sizes]:
    """Return a model's own tokenizer and its sizes, without loading weights.

    Args:
        model: by name or in memory. One in memory without a tokenizer gives ``None``.
        trust_remote_code: run code that the checkpoint brings.

    Raises:
        InputError: as ``load_tokenizer``, and for something that is not a model.
    """
    if model.in_memory:
        return tokenizer_of(model.source), Sizes.from_model(model.source)
    tokenizer, config = load_tokenizer(model, trust_remote_code=trust_remote_code)
    return tokenizer, Sizes.from_config(config)


def encoder(tokenizer: Any, chat: bool = False, template: Any = None, bos: Bos = "model") -> Encode:
    """A function from texts to the token ids that Hugging Face's own tokenizer gives.

    Args:
        tokenizer: of the model.
        chat: give the text as a user's message in a chat template, up to where the answer begins.
        template: the tokenizer whose chat template that is; by default its own.
        bos: whether a text begins with the beginning-of-sequence token: ``"model"`` leaves it to the tokenizer,
            ``"yes"`` adds one if there is none, ``"no"`` removes it.

    Raises:
        InputError: where there is no chat template, or no beginning-of-sequence token to add or remove.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2}, unk_token="<s>"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")
        >>> encoder(tokenizer)(["a b", "a"]), encoder(tokenizer, bos="yes")(["a b"])
        ([[1, 2], [1]], [[0, 1, 2]])
    """
    read = text_encoder(tokenizer, bos)
    if not chat:
        return read
    template = tokenizer if template is None else template
    if not getattr(template, "chat_template", None):
        raise InputError("this model's tokenizer has no chat template; leave out --chat")

    def encode(texts: Sequence[str]) -> list[list[int]]:
        messages = [rendered(template, text) for text in texts]
        if len(set(messages)) == 1 < len(set(texts)):
            raise InputError(f"{OWN_TEMPLATE} renders every prompt alike; {_MEND}")
        return read(messages, add_special_tokens=False)

    return encode


def rendered(template: Any, *turns: str, called: str = OWN_TEMPLATE, mend: str = _MEND) -> str:
    """Alternating messages of a user and an assistant in a tokenizer's chat template, which is somebody's program.

    After a user's message it goes up to where the answer begins.

    Args:
        template: the tokenizer.
        turns: the messages; the first is the user's.
        called: what the template is called in errors.
        mend: the way out, in errors.

    Raises:
        InputError: where the template fails or refuses them.
    """
    messages = [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(turns)]
    ask = len(turns) % 2 == 1
    try:
        return str(template.apply_chat_template(messages, add_generation_prompt=ask, tokenize=False))
    except Exception as error:
        line = getattr(error, "lineno", None)
        where = "" if line is None else f" in line {line}"
        raise InputError(f"{called} fails{where} ({first_line(error)}); {mend}") from None


def tokenization_of(tokenizer: Any, *, chat: bool = False, template: Any = None, bos: Bos = "model") -> dict[str, Any]:
    """Return how texts become tokens, to be kept with a result.

    Args:
        tokenizer, chat, template, bos: as for ``encoder``.

    Returns:
        Of plain texts as ``tasks.text.beginning.tokenization``. What a chat template adds differs from text to text,
        so that ``adds`` is left out for one, and ``begins`` is the beginning-of-sequence token, or ``"none"``.
    """
    plain = plain_tokenization(tokenizer, bos)
    if not chat:
        return plain
    (ids,) = encoder(tokenizer, chat, template, bos)(["a"])
    return {"tokenizer": plain["tokenizer"], "bos": bos, "chat": True, "begins": leading_bos(tokenizer, ids)}


def what_is_wrong(tokenizer: Any, batches: Sequence[Batch], repeated: int) -> list[str]:
    """Notes on prompts that carry less than they seem to: unknown words, and texts that occur twice.

    Args:
        tokenizer: that read them.
        batches: the prompts as tokens.
        repeated: how many prompts repeat an earlier one.
    """
    notes, unknown = [], tokenizer.unk_token_id
    read = sum(int(batch.lengths().sum()) for batch in batches)
    if unknown is not None and tokenizer.unk_token not in (tokenizer.bos_token, tokenizer.eos_token):
        lost = sum(int((batch.tokens[_real(batch)] == unknown).sum()) for batch in batches)
        if lost > _UNKNOWN * read:
            notes.append(
                f"{lost / read:.0%} of the tokens are {tokenizer.unk_token}: the tokenizer does not know these texts, "
                "so the numbers say little about what is in them."
            )
    if repeated:
        notes.append(
            f"{repeated} prompt{'s repeat' if repeated > 1 else ' repeats'} an earlier one word for word, and "
            "intervals and chance take prompts to be independent: give each once."
        )
    return notes


def _real(batch: Batch) -> Any:
    return slice(None) if batch.attention_mask is None else batch.attention_mask


def n_leading(tokenizer: Any, bos: Bos = "model") -> int:
    """How many special tokens stand before a text: what must stay where its beginning is cut off."""
    return len(special_around(tokenizer, bos=bos)[0])


def prompt_batches(
    prompts: LabelledPrompts,
    tokenizer: Any,
    sizes: Sizes,
    *,
    tokens_per_batch: int,
    chat: bool = False,
    bos: Bos = "model",
    too_long: Literal["refuse", "truncate"] = "refuse",
) -> Iterator[Batch]:
    """Prompts as a model of these sizes reads them; the arguments are those of ``LabelledPrompts.batches``.

    Raises:
        InputError: for a prompt longer than the model's context that is not to be truncated, or a token id that the
            model does not have.
    """
    return prompts.batches(
        encoder(tokenizer, chat, bos=bos),
        tokens_per_batch,
        pad_id=tokenizer.pad_token_id or 0,
        max_length=sizes.n_ctx,
        too_long=too_long,
        keep=n_leading(tokenizer, bos),
        d_vocab=sizes.d_vocab,
    )


def in_words(found: Mapping[str, Any]) -> str:
    """``tokenization_of`` as a sentence.

    Example:
        >>> in_words({"tokenizer": "BertTokenizer", "bos": "model", "chat": False, "adds": "[CLS] before, [SEP] after"})
        "Texts are read with Hugging Face's BertTokenizer; special tokens: [CLS] before, [SEP] after (the last token)."
    """
    if found["chat"]:
        begins = found.get("begins", "none")
        how = "as a user's message in the chat template, "
        how += "without a beginning-of-sequence token" if begins == "none" else f"which begins with {begins}"
    else:
        how = "no special tokens are added" if found["adds"] == "none" else f"special tokens: {found['adds']}"
        how += " (the last token)" if how.endswith(" after") else ""
    asked = "" if found["bos"] == "model" else f" (--bos {found['bos']})"
    return f"Texts are read with Hugging Face's {found['tokenizer']}; {how}{asked}."


def check_read_alike(texts: Mapping[str, str], readers: Mapping[str, tuple[Any, Encode]]) -> list[str]:
    """Refuse models that do not read texts as the same tokens.

    Args:
        texts: by what to call them, such as ``"prompt 3 of file.jsonl"``.
        readers: tokenizer and encoder of each model, by what to call it. The first is compared with each other.

    Returns:
        Notes: of vocabularies that differ where no text reaches.

    Raises:
        InputError: naming the first text with different ids, or with ids of different tokens.
    """
    (first, (tokenizer, encode)), *others = readers.items()
    encoded = dict(zip(texts, encode([*texts.values()]), strict=True))
    names = {i: tokenizer.convert_ids_to_tokens(i) for ids in encoded.values() for i in ids}
    notes = []
    for other, (theirs, encode_theirs) in others:
        their_names = {i: theirs.convert_ids_to_tokens(i) for i in names if i < len(theirs)}
        for (name, ids), their_ids in zip(encoded.items(), encode_theirs([*texts.values()]), strict=True):
            if ids == their_ids and all(names[i] == their_names.get(i) for i in ids):
                continue
            raise InputError(
                f"{name} is read as different tokens by {first} and {other} "
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
