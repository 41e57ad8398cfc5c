"""Reading a Hugging Face checkpoint: from a directory or the hub, in silence, with one sentence for any failure."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path

from tasks import InputError

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
# What a directory must hold, one of each, and what is said where it does not.
_PARTS = {
    ("config.json",): "has no config.json; give a directory written by save_pretrained, with model and tokenizer",
    _WEIGHTS: ("has a config.json but no weights (model.safetensors); save the model there with save_pretrained"),
    ("tokenizer.json", "tokenizer_config.json", "vocab.json"): (
        "has no tokenizer (tokenizer.json); save it there with tokenizer.save_pretrained"
    ),
}


def is_local(name_or_path: str | Path, *, untrained: bool = False) -> bool:
    """Whether it is a directory, which then has everything that is needed, or else a hub name.

    Raises:
        InputError: for a directory that is not there, or lacks a part (weights, unless ``untrained``).
    """
    path = Path(name_or_path)
    if path.is_dir():
        for files, lacks in _PARTS.items():
            needed = files != _WEIGHTS or not untrained
            if needed and not any(any(path.glob(file)) for file in files):
                raise InputError(f"{str(path)!r} {lacks}")
        return True
    if path.is_absolute() or str(name_or_path).startswith(("./", "../")):
        raise InputError(f"no model directory {str(path)!r}; give a local directory or a hub name such as 'gpt2'")
    return False


@contextlib.contextmanager
def reading(name: str, local: bool) -> Iterator[None]:
    """Inside the block a checkpoint is read.

    Raises:
        InputError: for whatever a damaged or unknown checkpoint makes the libraries raise.
    """
    try:
        with quiet():
            yield
    except Exception as error:
        where = f"the directory {name!r}" if local else f"{name!r} from the Hugging Face hub"
        raise InputError(
            f"cannot load a model from {where}: {_first_sentence(error)}; "
            "give a checkpoint of ALBERT, BART, ELECTRA, RoBERTa or a model that TransformerLens supports, "
            "with its tokenizer"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings, no loading bars and no advice; the caller shows its own progress."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()).strip("'\"")
    return text.split(". ")[0][:200].rstrip(".") or type(error).__name__
