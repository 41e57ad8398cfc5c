"""Check whether adapters fit the base that they are put on, by its recorded name and by peft."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from mechclust.models.adapters import attach_adapter, named_base_of_adapter, quoted_names
from mechclust.models.hugging_face_checkpoint import find_checkpoint, hugging_face_auto_class, read_checkpoint_config
from mechclust.models.quiet_transformers import quiet_transformers
from mechclust.models.resolved import ResolvedModel
from mechclust.models.weights import copy_with_shared_weights, gradient_flags_restored


def adapter_fit_notes(models: Iterable[ResolvedModel]) -> list[str]:
    """Note adapters that name another base than the one they are put on.

    Whether their weights fit is checked elsewhere. Models move and are renamed, so a name alone is not refused.

    Args:
        models: those without an adapter next to them are left out.
    """
    adapters_by_bases: dict[tuple[str, str], list[str]] = {}
    for model in models:
        trained = None if model.adapter is None else named_base_of_adapter(model.adapter)
        if trained is not None and Path(trained).name != Path(model.name).name:
            adapters_by_bases.setdefault((trained, model.name), []).append(str(model.adapter))
    return [_note(adapters, trained, base) for (trained, base), adapters in adapters_by_bases.items()]


def _note(adapters: Sequence[str], trained: str, base: str) -> str:
    names = quoted_names(adapters)
    if len(adapters) == 1:
        note = f"The adapter {names} says that it was trained for {trained!r}, and is measured on"
    else:
        note = f"The adapters {names} say that they were trained for {trained!r}, and are measured on"
    return f"{note} {base!r}: the weights fit, but only you can know whether the base is the same."


def check_adapter_fits(adapter: str, unloaded: Any) -> None:
    """Refuse an adapter that peft cannot put on a base, before that is loaded.

    Args:
        adapter: its folder, which ``check_adapter`` has accepted.
        unloaded: the base, from ``model_without_weights``. It stays as it is.

    Raises:
        InputError: for an adapter of another base (naming a weight and both shapes), and a damaged one.
    """
    with gradient_flags_restored(unloaded):
        # So that peft makes the adapter on the meta device too, and puts the weights that it reads in its place.
        attach_adapter(copy_with_shared_weights(unloaded), adapter, low_cpu_mem_usage=True)


def model_without_weights(base: ResolvedModel, *, trust_remote_code: bool = False) -> Any | None:
    """Return Hugging Face's model of a checkpoint on the meta device, to check settings and adapters on.

    ``None`` if its code cannot make it there, for whatever reason. What would be checked is then found in loading.
    """
    config = read_checkpoint_config(find_checkpoint(base.base, trust_remote_code=trust_remote_code))
    with suppress(Exception), quiet_transformers(), torch.device("meta"):
        return hugging_face_auto_class(config).from_config(config, trust_remote_code=trust_remote_code)
    return None
