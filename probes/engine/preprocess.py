"""Preprocess hidden states before they are clustered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.preprocess import outlier_dimensions, standardised, unit_length, without_class_means
from probes.functional.top_components import principal_coordinates
from tasks.settings import Above, Count, check_settings


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of a site's states before clustering, none by default.

    The order is fixed: remove the class means of ``given``, leave out outlier dimensions, standardise dimensions, PCA,
    scale rows to unit length.

    Attributes:
        drop_outliers: leave out dimensions whose standard deviation is more than this many times the median one. A few
            dimensions with huge values, common in language models, otherwise dominate the Euclidean distance.
        standardise: scale every dimension to standard deviation 1.
        pca: keep this many principal components, at most ``n - 1`` and ``d``.
        cosine: centre, then scale every row to length 1, so that only angles count.

    Raises:
        InputError: for ``drop_outliers`` of 1 or less, or ``pca`` below 1.

    Example:
        >>> import torch
        >>> rows, dropped, notes = Preprocess(drop_outliers=10).apply(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 90.0]]))
        >>> rows.shape, dropped, notes
        (torch.Size([2, 2]), 1, [])
    """

    drop_outliers: Annotated[float, Above(1)] | None = None
    standardise: bool = False
    pca: Count | None = None
    cosine: bool = False

    def __post_init__(self) -> None:
        check_settings(self)

    def apply(
        self, rows: Float[Tensor, "n d"], given: Int[Tensor, "n"] | None = None
    ) -> tuple[Float[Tensor, "n k"], int, list[str]]:
        """Return the preprocessed rows in float32, the number of outlier dimensions left out, and notes for a reader.

        Args:
            rows: states of one site.
            given: class of each row, whose means are removed first.
        """
        notes = []
        dropped = 0
        if given is not None:
            rows = without_class_means(rows, given)
        if self.drop_outliers is not None:
            outliers = outlier_dimensions(rows, self.drop_outliers).tolist()
            rows = rows[:, [i for i in range(rows.shape[1]) if i not in outliers]]
            dropped = len(outliers)
        if self.standardise:
            rows = standardised(rows)
        if self.pca is not None:
            k = min(self.pca, len(rows) - 1, rows.shape[1])
            if k < self.pca:
                notes.append(
                    f"{len(rows)} rows of {rows.shape[1]} dimensions have {k} principal components, not {self.pca}"
                )
            rows = principal_coordinates(rows, k)
        if self.cosine:
            rows = unit_length(rows)
            zero = int((rows == 0).all(1).sum())
            if zero:
                notes.append(f"{zero} of {len(rows)} rows are the mean of all, and have no direction; they stay 0")
        return rows.float(), dropped, notes
