"""A model as a caller gave it. Determine once whether it is a name, a folder, an adapter or a model in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mechclust.models.adapters import adapter_of, base_of_adapter, is_adapter, named_base_of_adapter
from mechclust.models.plain_model import plain_model
from tasks import InputError


@dataclass(frozen=True)
class ResolvedModel:
    """A model as a caller gave it, and its kind.

    Attributes:
        source: a hub name, a folder or a file, as text, or a model in memory.
        adapter: folder of an adapter that was given with the model, to be merged into its weights.
        is_adapter: whether ``source`` is itself the folder of an adapter, whose base has the other weights.
        found_base: the absolute path of that base, of a ``portable`` model.
    """

    source: Any
    adapter: str | None = None
    is_adapter: bool = False
    found_base: str | None = None

    @property
    def in_memory(self) -> bool:
        """Return whether the model was given, and not its name."""
        return not isinstance(self.source, str)

    @property
    def is_own_file(self) -> bool:
        """Return whether the model is a file that ``save_model`` wrote."""
        return not self.in_memory and Path(self.source).is_file() and Path(self.source).suffix != ".gguf"

    @cached_property
    def base(self) -> Any:
        """Return the hub name, folder, file or model in memory whose weights are loaded before an adapter is merged.

        Raises:
            InputError: for an adapter whose base is missing, or is an adapter too.
        """
        if not self.is_adapter:
            return self.source
        base = self.found_base or base_of_adapter(self.source)
        if is_adapter(base):
            raise InputError(
                f"the base of the adapter {self.source!r} is an adapter too, {base!r}; merge that one first"
            )
        return base

    @property
    def merged_adapter(self) -> str | None:
        """Return the folder of the adapter that is merged when the model is loaded."""
        return self.source if self.is_adapter else self.adapter

    @property
    def without_adapter(self) -> ResolvedModel:
        """Return the model without the adapter that was given with it."""
        return replace(self, adapter=None)

    @property
    def folders(self) -> Sequence[str]:
        """Return the hub names or folders of everything that is loaded for a model that was given by name."""
        base = [self.base] if self.is_adapter else []
        return [self.source, *base, *([] if self.adapter is None else [self.adapter])]

    @property
    def portable(self) -> ResolvedModel:
        """Return the model with absolute paths, for processes in other folders."""
        found_base = self.found_base
        if self.is_adapter and found_base is None:
            base = named_base_of_adapter(self.source)
            found_base = os.path.abspath(base) if base is not None and Path(base).exists() else None
        return replace(
            self,
            source=resolved_model_path(self.source),
            adapter=resolved_model_path(self.adapter),
            found_base=found_base,
        )

    @property
    def name(self) -> str:
        """Return the model's name or path, or for a model in memory the name in its configuration or its class."""
        if not self.in_memory:
            return str(self.source)
        plain = plain_model(self.source) if hasattr(self.source, "hook_dict") else self.source
        return str(getattr(getattr(plain, "config", None), "name_or_path", "") or type(plain or self.source).__name__)

    def __str__(self) -> str:
        """Return the model's name in reports, with the adapter that was given with it."""
        return self.name if self.adapter is None else f"{self.name} with {self.adapter}"

    @property
    def title(self) -> str:
        """Return the model in words, including an adapter that is in the weights of a model in memory already."""
        return str(replace(self, adapter=self.adapter or adapter_of(self.source)))


def resolve_model(model: Any, adapter: str | Path | None = None) -> ResolvedModel:
    """Find out whether a model is a name, a folder, an adapter or a model in memory.

    Args:
        model: a hub name, a folder, a file or a model in memory. A resolved model is returned unchanged.
        adapter: folder of an adapter to merge into its weights.

    Raises:
        InputError: for an adapter given with a model that is itself an adapter.

    Example:
        >>> print(resolve_model("gpt2", "runs/tuned"))
        gpt2 with runs/tuned
    """
    if isinstance(model, (str, Path)):
        model = ResolvedModel(str(model), is_adapter=is_adapter(model))
    elif not isinstance(model, ResolvedModel):
        model = ResolvedModel(model)
    if adapter is None:
        return model
    if model.is_adapter:
        raise InputError(
            f"{model.source!r} is an adapter itself, but {str(adapter)!r} was given as adapter too; give the base and "
            "one adapter"
        )
    return replace(model, adapter=str(adapter))


def resolved_model_path(path: Any) -> Any:
    """Return a path that is valid in every folder. A hub name or a model in memory is returned unchanged."""
    return type(path)(os.path.abspath(path)) if isinstance(path, (str, Path)) and Path(path).exists() else path
