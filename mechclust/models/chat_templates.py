"""Texts as token ids, plain or as messages in a tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tasks import InputError
from tasks.errors import error_line
from tasks.text.bos_token import Bos, leading_bos
from tasks.text.prompts import Encode
from tasks.text.text_encoder import TextEncoder, text_encoder

OWN_TEMPLATE = "the chat template of this model's tokenizer"
_TEMPLATE_REMEDY = "fix it in the checkpoint's chat_template.jinja or tokenizer_config.json, or leave out --chat"


def templated_tokenizer(tokenizer: Any, chat: bool = False, template: Any = None, bos: Bos = "model") -> Encode:
    """Return a function from texts to the token ids of Hugging Face's tokenizer.

    Args:
        tokenizer: of the model.
        chat: give the text as a user's message in a chat template, up to the beginning of the answer.
        template: the tokenizer that has the chat template, by default ``tokenizer``.
        bos: whether a text begins with the beginning-of-sequence token: ``"model"`` leaves it to the tokenizer,
            ``"yes"`` adds one if there is none, ``"no"`` removes it.

    Raises:
        InputError: if there is no chat template, or no beginning-of-sequence token to add or remove.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2}, unk_token="<s>"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")
        >>> templated_tokenizer(tokenizer)(["a b", "a"]), templated_tokenizer(tokenizer, bos="yes")(["a b"])
        ([[1, 2], [1]], [[0, 1, 2]])
    """
    read = text_encoder(tokenizer, bos)
    if not chat:
        return read
    template = tokenizer if template is None else template
    if not getattr(template, "chat_template", None):
        raise InputError("this model's tokenizer has no chat template; leave out --chat")

    return partial(_encode_messages, template, read)


def _encode_messages(template: Any, read: TextEncoder, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of texts as a user's messages in a chat template."""
    messages = [render_chat_template(template, text) for text in texts]
    if len(set(messages)) == 1 < len(set(texts)):
        raise InputError(f"{OWN_TEMPLATE} renders every prompt alike; {_TEMPLATE_REMEDY}")
    return read(messages, add_special_tokens=False)


def n_special_tokens_at_start(tokenizer: Any, ids: Sequence[int], before: Sequence[int]) -> int:
    """Count the special tokens at the start of a text, which stay when its beginning is cut off.

    Args:
        tokenizer: of the model.
        ids: the text's tokens.
        before: what the tokenizer adds before a plain text. A chat template may begin with its own token instead.
    """
    if before and list(ids[: len(before)]) == list(before):
        return len(before)
    return int(leading_bos(tokenizer, ids) != "none")


def render_chat_template(template: Any, *turns: str, called: str = OWN_TEMPLATE, mend: str = _TEMPLATE_REMEDY) -> str:
    """Render alternating messages of a user and an assistant in a tokenizer's chat template, which is a program.

    After a user's message it ends at the beginning of the answer.

    Args:
        template: the tokenizer.
        turns: the messages. The first is the user's.
        called: the template's name in errors.
        mend: the way out, in errors.

    Raises:
        InputError: if the template fails or refuses them.
    """
    messages = [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(turns)]
    ask = len(turns) % 2 == 1
    try:
        return str(template.apply_chat_template(messages, add_generation_prompt=ask, tokenize=False))
    except Exception as error:
        line = getattr(error, "lineno", None)
        where = "" if line is None else f" in line {line}"
        raise InputError(f"{called} fails{where} ({error_line(error)}); {mend}") from None
