"""The interface of rows that can be measured without their model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from jaxtyping import Int64, Integer, Shaped
from torch import Tensor

from probes.engine.hooked_model import HookPoints


class RowSource(HookPoints, Protocol):
    """Rows that ``run_stores`` can measure: a ``RowStore``, or the result of ``rows_from``.

    Example:
        >>> import torch
        >>> from probes import rows_from
        >>> rows_from({"blocks.0.hook_resid_post": torch.zeros(3, 8)}).index.tolist()
        [0, 1, 2]
    """

    @property
    def index(self) -> Integer[Tensor, "example"]:
        """The examples, ascending."""

    @property
    def tokens(self) -> Int64[Tensor, "example"] | None:
        """A digest of each example's tokens, if they are known."""

    @property
    def sites(self) -> Sequence[str]:
        """Hook names."""

    @property
    def readout(self) -> str:
        """The readout's ``repr``."""

    @property
    def labels(self) -> Sequence[str]:
        """Names of the labels."""

    @property
    def model(self) -> str:
        """A text that identifies the model."""

    @property
    def source(self) -> str:
        """The name of these rows in error messages."""

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[Integer[Tensor, "block"]]:
        """Yield the examples that are best read together, block by block."""

    def take(self, index: Integer[Tensor, "some"], names: Sequence[str]) -> dict[str, Shaped[Tensor, "some ..."]]:
        """Return ``"rows/<site>"`` and ``"labels/<name>"`` of these examples, in their order."""
