"""Keep the rows and labels of examples, for probes that compare hidden states with labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from probes.engine.probe import Probe
from probes.engine.repeats import notes_on_repeats
from probes.engine.state import Rows
from tasks import Batch, InputError


class LabelledRows(Probe):
    """Base class that keeps rows at every site and labels, of at most ``max_rows`` examples.

    A probe sets ``max_rows``, and may set ``units``, the label that says which examples belong together.
    """

    hidden = Rows(cap="max_rows")
    classes = Rows(cap="max_rows")
    max_rows: int | None
    units: str | None = None

    def _labels_to_keep(self) -> Sequence[str | None]:
        """Return the names of labels with one value per example, and ``None`` for a label that was not given."""
        raise NotImplementedError

    def update(self, activations: Mapping[str, Float[Tensor, "batch ..."]], batch: Batch) -> None:
        """Keep each example's labels, and its row at every site."""
        for name in dict.fromkeys(self._labels_to_keep()):
            if name is not None:
                self.classes.add(name, batch.index, batch.label(name, per="example"))
        for site, rows in activations.items():
            self.hidden.add(site, batch.index, rows.flatten(1))

    def _codes(self, name: str) -> Int[np.ndarray, "row"]:
        """Return the classes of a label as 0, 1, ..."""
        return np.unique(self.classes.get(name)[1].numpy(), return_inverse=True)[1]

    def _repeats(self) -> list[str]:
        """Return a note on repeated states, if they are not said to belong together."""
        if self.units is not None:
            return []
        return notes_on_repeats({site: self.hidden.get(site)[1] for site in self.site_names}, dict(self.sites))


def check_max_labelled_rows(max_rows: int | None, fewest: int = 2, reason: str = "") -> None:
    """Refuse a limit of fewer examples than a probe needs.

    Args:
        max_rows: the limit.
        fewest: examples that the probe needs.
        reason: setting that needs so many, such as ``", as many as folds"``.
    """
    if max_rows is not None and max_rows < fewest:
        raise InputError(f"max_rows is {max_rows}; expected at least {fewest}{reason}, or None for no limit")


def check_further_labels(also: Sequence[str]) -> None:
    """Refuse a string in place of a sequence of labels."""
    if isinstance(also, str):
        raise InputError(f"also is the string {also!r}; expected a sequence of label names such as ({also!r},)")
