"""What CKA remembers between batches: ``Moments``, beside ``Sum`` and ``Rows``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from probes.functional.cka import CrossMoments
from probes.state import Keyed, _Declared

_FIELDS = [field.name for field in fields(CrossMoments)]


class Moments(_Declared[Any]):
    """Declares ``CrossMoments`` by key: sums about points that a merge reconciles, which ``Sum`` cannot.

    Memory: ``dx dy + 3 (dx + dy)`` float64 numbers a key, independent of the number of examples.
    """

    def make(self, probe: Any) -> MomentsState:
        return MomentsState()


class MomentsState(Keyed[CrossMoments]):
    """Moments by key. See ``Moments``."""

    def add(self, key: str, x: Tensor, y: Tensor) -> None:
        """Add paired rows ``[n dx]`` and ``[n dy]``."""
        old = self._values.get(key)
        self._values[key] = CrossMoments.of(x, y) if old is None else old.update(x, y)

    def __getitem__(self, key: str) -> CrossMoments:
        return self._values[key]

    def merge(self, other: MomentsState) -> None:
        for key, value in other._values.items():
            self._values[key] = self._values[key].merge(value) if key in self._values else value

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{key}/{name}": torch.as_tensor(getattr(value, name)).cpu()
            for key, value in self._values.items()
            for name in _FIELDS
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        keys = dict.fromkeys(name.rsplit("/", 1)[0] for name in tensors)
        parts = {key: [tensors[f"{key}/{name}"] for name in _FIELDS] for key in keys}
        self._values = {key: CrossMoments(int(n), *sums) for key, (n, *sums) in parts.items()}
