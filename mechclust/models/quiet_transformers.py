"""Keep transformers and the libraries that it uses quiet."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from logging import ERROR, getLogger


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence warnings, loading bars and advice inside the block. The caller shows progress instead."""
    from transformers.utils import logging

    others = [getLogger(name) for name in ("accelerate", "bitsandbytes")]
    levels = [other.level for other in others]
    verbosity = logging.get_verbosity()
    bars_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    for other in others:
        other.setLevel(ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        for other, before in zip(others, levels, strict=True):
            other.setLevel(before)
        if bars_enabled:
            logging.enable_progress_bar()
