"""Keep transformers and the libraries that it uses quiet."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from logging import ERROR, Logger, getLogger


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence warnings, loading bars and advice inside the block. The caller shows progress instead."""
    from transformers.utils import logging

    loggers = [getLogger(name) for name in ("transformers", "accelerate", "bitsandbytes")]
    levels = [logger.level for logger in loggers]
    bars_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    for logger in loggers:
        _set_level(logger, ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            _set_level(logger, before)
        if bars_enabled:
            logging.enable_progress_bar()


def _set_level(logger: Logger, level: int) -> None:
    if logger.level != level:  # setting a level empties the caches of all loggers
        logger.setLevel(level)
