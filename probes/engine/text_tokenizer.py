"""Turn texts into tokens, by the tokenizer of the models that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.engine.hooked_model import HookedModel
from tasks import InputError
from tasks.errors import error_line
from tasks.text.bos_token import Bos
from tasks.text.text_encoder import TextEncoder, text_encoder, tokenization

KEPT_TOKENIZER = "mechclust_tokenizer"
"""Attribute of a TransformerLens model whose tokenizer is the checkpoint's: ``load_pretrained`` sets it."""


class TextTokenizer:
    """Function from texts to token ids, which all models share.

    Args:
        models: models that will read them, by name.
        tokenizer: a Hugging Face tokenizer, in place of the models'.
        bos: whether each text begins with the beginning-of-sequence token, see ``tasks.text.bos_token``.
        lacking: words of the error for a missing tokenizer, such as ``"the model has none"``.

    Attributes:
        tokenizer: as given.
        bos: as given.
        tokenization: how texts became tokens. ``None`` before the first text, and if the tokenizer is only a function.
    """

    def __init__(
        self,
        models: Mapping[str, HookedModel],
        tokenizer: Any = None,
        bos: Bos = "model",
        *,
        lacking: str = "the model has none",
    ) -> None:
        self.tokenization: dict[str, Any] | None = None
        self._models = models
        self.tokenizer = tokenizer
        self.bos: Bos = bos
        self._lacking = lacking
        self._encoders: dict[str, TextEncoder] = {}

    def __call__(self, texts: list[str]) -> list[list[int]]:
        """Return each text's token ids.

        Raises:
            InputError: for no tokenizer, tokenizers that differ, and no beginning-of-sequence token to add or remove.
        """
        if not self._encoders:
            self._find_encoders()
        (first, encode), *others = self._encoders.items()
        ids = encode(texts)
        for other, encode_other in others:
            for text, text_ids, other_ids in zip(texts, ids, encode_other(texts), strict=True):
                if text_ids != other_ids:
                    raise InputError(
                        f"models {first!r} and {other!r} read {text[:40]!r} as different tokens; give the tokenizer "
                        "that both should use, tokenizer="
                    )
        return ids

    @property
    def metadata(self) -> dict[str, Any]:
        """Entry on how texts became tokens, for a result's metadata. Empty if there were no texts."""
        return {} if self.tokenization is None else {"tokenization": dict(self.tokenization)}

    def _find_encoders(self) -> None:
        tokenizers = text_tokenizers_of(self._models) if self.tokenizer is None else {"": self.tokenizer}
        if not tokenizers:
            raise InputError(f"texts need a tokenizer, and {self._lacking}; give tokenizer=")
        distinct = {id(tokenizer): name for name, tokenizer in reversed(tokenizers.items())}
        for name in reversed(distinct.values()):
            self._encoders[name] = text_encoder(tokenizers[name], self.bos)
        first = next(iter(tokenizers.values()))
        if hasattr(first, "convert_ids_to_tokens"):
            self.tokenization = tokenization(first, self.bos)


def text_tokenizers_of(models: Mapping[str, HookedModel]) -> dict[str, Any]:
    """Return the tokenizers of the models that have one, by name."""
    tokenizers = {name: tokenizer_of(model) for name, model in models.items()}
    return {name: tokenizer for name, tokenizer in tokenizers.items() if tokenizer is not None}


def tokenizer_of(model: Any) -> Any:
    """Return a model's tokenizer as its checkpoint has it, or ``None`` if the model has none.

    TransformerLens loads tokenizers so that they add a beginning-of-sequence token, whatever the model was trained
    with, and not BERT's ``[CLS]``. If TransformerLens loaded the model, its tokenizer is therefore read again from the
    checkpoint's files, without any network access. ``load_pretrained`` keeps Hugging Face's.

    Raises:
        InputError: if these files are not on this machine.
    """
    tokenizer = getattr(model, "tokenizer", None)
    changes = hasattr(getattr(model, "cfg", None), "default_prepend_bos")
    name = getattr(tokenizer, "name_or_path", "")
    if not name or not changes or getattr(model, KEPT_TOKENIZER, None) is tokenizer:
        return tokenizer
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers may raise any error
        raise InputError(
            f"TransformerLens changed this model's tokenizer, and that of {name!r} cannot be read "
            f"({error_line(error)}); give tokenizer=, or load the model with load_pretrained"
        ) from None
