"""Find the models to compare: by name or in memory, with an adapter or without."""

from __future__ import annotations

from typing import Any

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.saved_rows import Checkpoint
from mechclust.models.resolved import resolve_model
from tasks import InputError


def find_checkpoints(
    base: Any, tuned: Any, config: CompareConfig, tokenizer: Any = None
) -> tuple[Checkpoint, Checkpoint]:
    """Return base and tuned model.

    An adapter folder in the place of ``tuned`` is an adapter on ``base``. If ``base`` is one too, each is a separate
    model, with the base that it names.

    Args:
        base: see ``compare_models``.
        tuned: see ``compare_models``.
        config: gives the adapter on ``tuned``, devices and dtypes.
        tokenizer: of models in memory without one.

    Raises:
        InputError: for two adapters on one model.
    """
    base = resolve_model(base)
    tuned = resolve_model(tuned)
    if config.adapter is not None and tuned.is_adapter:
        raise InputError(
            f"the tuned model {tuned.source!r} is an adapter, and --adapter gives {str(config.adapter)!r} too; give "
            "one of them"
        )
    device = config.tuned_device or config.device
    dtype = config.tuned_dtype or config.dtype
    if tuned.is_adapter and not base.is_adapter:
        tuned = resolve_model(base, tuned.source)
    tuned = config.resolve(tuned)
    return (
        Checkpoint("base", base, config.device, config.dtype, tokenizer=tokenizer),
        Checkpoint("tuned", tuned, device, dtype, tokenizer=tokenizer),
    )
