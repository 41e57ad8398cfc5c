"""Labels that a linear classifier can read from a model's hidden states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.engine.devices import check_float64_device
from probes.engine.labelled_rows import LabelledRows, check_further_labels, check_max_labelled_rows
from probes.engine.readout import Readout, check_row_readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, residual
from probes.functional.accuracy_interval import accuracy_effective_size, accuracy_interval
from probes.functional.linear_decodability import ridge_predictions, stratified_folds
from probes.functional.permutation_test import permutation_p_value
from probes.functional.relabelling import Relabelling
from probes.functional.strata import check_strata_labels, nothing_left_in_strata, single_class_strata, strata_of
from tasks import InputError
from tasks.settings import check_count

_FEW_PER_CLASS = 10  # examples, below which a note says so
_MEASURES = ("accuracy", "accuracy_low", "accuracy_high", "null_low", "null_high", "p_value")


class LinearDecodability(LabelledRows):
    """Cross-validated accuracy of a linear classifier that reads labels from hidden states, per site.

    A ridge classifier predicts each example from the other folds: least squares on one-hot classes, with features
    scaled and strength chosen on the training folds only. A label that it reads is linearly decodable, whether or not
    the states cluster by it. It cannot read every decodable label. If the means of three or more classes lie along a
    line, least squares on one-hot classes masks the middle ones (Hastie, Tibshirani & Friedman, The Elements of
    Statistical Learning, section 4.2). Clusters may show those.

    Measures (axes site, label):
        ``accuracy``: share of examples whose class is predicted.
        ``accuracy_low``, ``accuracy_high``: its 95% interval over examples, see ``functional.accuracy_interval``.
        ``null_low``, ``null_high``: the central 95% of the accuracy when the label is shuffled and everything is
            repeated, including the choice of strength.
        ``null`` (also shuffle): the accuracy of each shuffle. NaN if no shuffle changes the label. All sites share the
            shuffles, which depend only on the seed, the folds and the labels. So the highest of several layers can be
            compared with the highest of each shuffle.
        ``p_value``: share of shuffles at least as accurate, counting the observed labels.
        ``majority`` (label): share of the commonest class, the accuracy of a constant answer.
        ``n`` (label): examples.

    Labels are shuffled within folds, so that these stay balanced. With ``given``, they are shuffled within its classes
    too. Of ``units``, those of one class exchange labels as a whole. In the others, examples exchange them within the
    unit. With fewer than 20 different shuffles, ``p_value`` is NaN.

    Memory: every example's kept row at every site, ``examples x sites x d_model`` numbers, or ``max_rows`` examples. In
    addition, one site in float64 six times, ``16 n n_shuffles`` bytes and 64 MiB. Cost: per site, label and fold a
    decomposition, ``min(n, d)`` cubed, and ``8 n min(n, d) classes n_shuffles`` multiplications.

    Args:
        label: the label to read, one value per example. Folds are stratified by it.
        at: where to measure.
        readout: which position.
        also: further labels, each with separate folds.
        given: a label whose class means (in the training folds) are subtracted from the states first. The label is then
            read independently of it.
        units: a label that says which examples belong together, such as the template or the input that several prompts
            share. A unit stays in one fold, and the interval takes units, not examples, as independent.
        folds: parts of the examples, each predicted from the others.
        n_shuffles: number of shuffles for the null interval, or 0 for none.
        max_rows: keep at most this many examples, chosen by their index.
        device: device for the linear algebra (float64): ``"cpu"`` or ``"cuda"``. ``None`` is the CPU.
        seed: for the folds and the shuffles.

    Raises:
        InputError: for a label with one class only or given per token, fewer examples (or units) than folds, classes
            that all have fewer examples than folds, or ``label`` determined by ``given`` (a further label is NaN then,
            with a note).

    Source: ridge classification and its leave-one-out errors as in scikit-learn's ``RidgeClassifierCV``. Linear probes:
    Alain & Bengio, arXiv 1610.01644.

    Example:
        >>> from probes import LinearDecodability
        >>> LinearDecodability(given="ending", units="input").folds
        5
    """

    def __init__(
        self,
        label: str = "task",
        at: Sites = residual(),
        readout: Readout = last_token(),
        also: Sequence[str] = (),
        given: str | None = None,
        units: str | None = None,
        folds: int = 5,
        n_shuffles: int = 100,
        max_rows: int | None = None,
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        check_count(folds=(folds, 2), n_shuffles=(n_shuffles, 0), seed=(seed, 0))
        check_max_labelled_rows(max_rows, folds, ", as many as folds")
        check_further_labels(also)
        check_strata_labels(label, given=given, units=units)
        if device is not None:
            check_float64_device(device)
        super().__init__(at, check_row_readout(readout))
        self.label = label
        self.also = also
        self.given = given
        self.units = units
        self.folds = folds
        self.n_shuffles = n_shuffles
        self.max_rows = max_rows
        self.device = device
        self.seed = seed

    def _labels_to_keep(self) -> list[str | None]:
        return [self.label, *self.also, self.given, self.units]

    def compute(self) -> ProbeResult:
        """Return the accuracies and their chance, over all examples kept."""
        labels = [_Labelings(self, name) for name in (self.label, *self.also)]
        n = labels[0].classes.shape[1]
        values = {m: torch.full((len(self.sites), len(labels)), torch.nan, dtype=torch.float64) for m in _MEASURES}
        null = torch.full((len(self.sites), len(labels), self.n_shuffles), torch.nan, dtype=torch.float64)
        for i, site in enumerate(self.site_names):
            rows = self.hidden.get(site)[1]
            for j, label in enumerate(labels):
                if label.nan:
                    continue
                is_right = self._predicted(rows, label) == label.classes
                for measure, value in self._measured(label, is_right).items():
                    values[measure][i, j] = value
                if not label.fixed:
                    null[i, j] = torch.from_numpy(is_right[1:].mean(1))
        majority = [np.bincount(label.classes[0]).max() / n for label in labels]
        notes = [] if self.n_shuffles else ["n_shuffles is 0, so chance and p_value are NaN"]
        for label in labels:
            notes += label.notes
        return self.result(
            {
                **values,
                "null": null,
                "majority": torch.tensor(majority, dtype=torch.float64),
                "n": torch.full((len(labels),), n, dtype=torch.int64),
            },
            {
                **dict.fromkeys(_MEASURES, ("site", "label")),
                "null": ("site", "label", "shuffle"),
                "majority": ("label",),
                "n": ("label",),
            },
            {"label": [label.name for label in labels], "shuffle": [str(i) for i in range(self.n_shuffles)]},
            metadata={"n": n, "n_classes": {label.name: label.n_classes for label in labels}},
            notes=[*notes, *self._repeats()],
        )

    def _predicted(self, rows: Float[Tensor, "row dim"], label: _Labelings) -> Int[np.ndarray, "labeling row"]:
        """Return the class of each example that the other folds predict, of the observed and the shuffled labels."""
        given = self.classes.get(self.given)[1] if self.given else None
        classes = torch.from_numpy(label.classes)
        folds = torch.from_numpy(label.folds)
        return ridge_predictions(rows, classes, folds, given, device=self.device or "cpu").numpy()

    def _measured(self, label: _Labelings, is_right: Bool[np.ndarray, "labeling row"]) -> dict[str, float]:
        """Return every measure of a label."""
        accuracies = is_right.mean(1)
        hits_by_fold = np.bincount(label.folds[is_right[0]], minlength=self.folds).tolist()
        sizes = np.bincount(label.folds, minlength=self.folds).tolist()
        n_independent = accuracy_effective_size(is_right[0], self._codes(self.units)) if self.units else None
        low, high = accuracy_interval(hits_by_fold, sizes, n_independent)
        measured = {"accuracy": accuracies[0], "accuracy_low": low, "accuracy_high": high}
        if label.fixed or self.n_shuffles == 0:
            return measured
        null_low, null_high = np.quantile(accuracies[1:], [0.025, 0.975])
        p = math.nan if label.few else float(permutation_p_value(accuracies[0], accuracies[1:]))
        return {**measured, "null_low": null_low, "null_high": null_high, "p_value": p}


class _Labelings:
    """One label of the examples, and its shuffles.

    Attributes:
        name: name of the label.
        n_classes: number of its classes.
        classes: class of each example, 0, 1, ..., first as observed, then for each shuffle.
        folds: fold of each example. Every label has its own, since the least frequent class of unequal training
            folds is the most frequent one of the test fold.
        nan: the label cannot be measured.
        fixed: no shuffle changes it.
        few: there are too few different shuffles for a p-value.
        notes: caveats for the reader.
    """

    classes: Int[np.ndarray, "labeling row"]
    folds: Int[np.ndarray, "row"]

    def __init__(self, probe: LinearDecodability, name: str) -> None:
        self.name = name
        self.notes: list[str] = []
        observed = probe._codes(name)
        counts = np.bincount(observed)
        self.n_classes = len(counts)
        if self.n_classes < 2:
            raise InputError(f"label {name!r} has one class only; a classifier needs examples of at least 2 classes")
        given = probe._codes(probe.given) if probe.given else None
        units = probe._codes(probe.units) if probe.units else None
        self.classes = observed[None]
        self.fixed = False
        self.few = False
        why_nan = self._fold(probe, observed, given, units)
        self.nan = bool(why_nan)
        if why_nan:
            self.notes.append(f"{why_nan}; its accuracy is NaN")
            return
        n_small = int((counts < probe.folds).sum())
        if n_small:
            self.notes.append(
                f"{n_small} classes of {name!r} have fewer examples than there are folds ({probe.folds}); "
                "some folds lack them"
            )
        per_class = len(observed) / self.n_classes
        if per_class < _FEW_PER_CLASS:
            self.notes.append(
                f"label {name!r} has {per_class:.1f} examples per class; with fewer than {_FEW_PER_CLASS}, a "
                "classifier reads less than is there"
            )
        self._shuffle(probe, observed, given, units)

    def _fold(
        self,
        probe: LinearDecodability,
        observed: Int[np.ndarray, "row"],
        given: Int[np.ndarray, "row"] | None,
        units: Int[np.ndarray, "row"] | None,
    ) -> str:
        """Set the fold of each example, or return why the label cannot be measured.

        Raises:
            InputError: if this is the main label.
        """
        is_main = self.name == probe.label
        if given is not None and probe.given and single_class_strata(given, observed) == 1:
            why = nothing_left_in_strata(self.name, probe.given)
            if is_main:
                raise InputError(f"{why}; choose one whose classes have examples of several classes of {self.name!r}")
            return why
        if self.n_classes == len(observed):
            return f"label {self.name!r} has one example per class ({self.n_classes} in all), which nothing can predict"
        try:
            self.folds = stratified_folds(observed, probe.folds, units, probe.seed)
        except InputError as error:
            label = f"label {self.name!r} ({probe.units!r})" if probe.units else f"label {self.name!r}"
            if is_main:
                raise InputError(f"{label}: {error}") from None
            return f"{label}: {error}"
        return ""

    def _shuffle(
        self,
        probe: LinearDecodability,
        observed: Int[np.ndarray, "row"],
        given: Int[np.ndarray, "row"] | None,
        units: Int[np.ndarray, "row"] | None,
    ) -> None:
        """Draw the shuffles, and note the classes that they cannot change."""
        strata = strata_of({"folds": self.folds} | ({} if given is None else {"given": given}))
        relabelling = Relabelling.from_classes(observed, units, strata)
        names = " and ".join(repr(name) for name in (probe.given, probe.units) if name)
        held = f"folds and classes of {names}" if names else "folds"
        share = relabelling.fixed_share
        if share == 1:
            self.fixed = True
            self.notes.append(
                f"label {self.name!r} has one class within each of the {held}, so no shuffle changes it; its chance "
                "and p_value are NaN"
            )
            return
        if share > 0.05:
            self.notes.append(
                f"{share:.0%} of what is shuffled of {self.name!r} is in {held} with one class only, and stays as it is"
            )
        too_few = relabelling.too_few(self.name, named=True, units=probe.units)
        if too_few:
            self.few = True
            self.notes.append(too_few)
        elif probe.units and probe.n_shuffles:
            self.notes += filter(None, [relabelling.unequal_units(self.name, probe.units)])
        rng = np.random.default_rng(probe.seed)
        self.classes = np.stack([observed, *(relabelling.draw(rng) for _ in range(probe.n_shuffles))])
