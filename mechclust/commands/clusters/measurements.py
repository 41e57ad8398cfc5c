"""Hold the measurements of a model and of copies with random weights, as tables and with verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from mechclust.commands.clusters.config import ClustersConfig
from mechclust.commands.clusters.follow import Followed
from mechclust.commands.clusters.verdicts import CURVES, JudgedLabel, judge_label
from probes import ProbeResult
from probes.functional.permutation_test import permutation_p_value

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ModelCurves:
    """Measures of one model, by layer and label.

    Attributes:
        raw: agreement of clusters of its hidden states with each label.
        given: this agreement after the class means of another label or feature were subtracted.
        linear: accuracy with which a linear classifier reads each label.
        nearest: share of prompts whose nearest neighbour is of their task.
        held_out: this share among prompts of other templates.
    """

    raw: ProbeResult
    given: ProbeResult | None = None
    linear: ProbeResult | None = None
    nearest: ProbeResult | None = None
    held_out: ProbeResult | None = None

    @property
    def by_name(self) -> dict[str, ProbeResult]:
        """The measures that were taken, by the name of their file."""
        measures = {
            "clusters": self.raw,
            "given": self.given,
            "linear": self.linear,
            "nearest": self.nearest,
            "held_out": self.held_out,
        }
        return {name: result for name, result in measures.items() if result is not None}


@dataclass(frozen=True)
class MapContents:
    """Contents of the map of prompts.

    Attributes:
        layers: number of each layer.
        places: places of its prompts among the measured ones.
        texts: these prompts.
        planes: coordinates of each prompt in each layer's plane.
        variance: share of the variance that each plane holds.
        clusters: cluster of each prompt.
    """

    layers: Sequence[int]
    places: Sequence[int]
    texts: Sequence[str]
    planes: Float[np.ndarray, "layer prompt 2"]
    variance: Float[np.ndarray, "layer"]
    clusters: Int[np.ndarray, "layer prompt"]


@dataclass(frozen=True, repr=False)
class Measurements:
    """Measurements of a model and of copies with random weights, with the attributes of ``ClustersResult``."""

    model: str
    config: ClustersConfig
    trained: ModelCurves
    untrained: Sequence[ModelCurves]
    followed: Followed
    given: str | None = None
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    shown: MapContents | None = None
    input_notes: Sequence[str] = ()
    one_template: Sequence[str] = ()

    @property
    def labels(self) -> list[str]:
        """Labels that clusters and classifier were compared with: the task, then the further ones."""
        return list(self.trained.raw.coords["label"])

    @cached_property
    def judged(self) -> dict[str, JudgedLabel]:
        """The measures of each label, judged against chance and random weights."""
        counts = (self.config.n_permutations, self.config.n_shuffles)
        return {label: judge_label(self.of_label(label), counts) for label in self.labels}

    @property
    def verdicts(self) -> Mapping[str, Mapping[str, str]]:
        """The verdicts by label and measure: ``clusters``, ``given``, ``linear`` and the task's ``held_out``."""
        return {label: judged.verdicts for label, judged in self.judged.items()}

    @property
    def inseparable(self) -> str | None:
        """Label or feature that the clusters follow, if it determines the task and so cannot be subtracted."""
        if self.given is not None or self.config.given != "auto":
            return None
        return self.followed.besides_task(self.labels)

    @property
    def given_is_untested(self) -> bool:
        """Whether ``given`` was measured without units, as too few of them could exchange tasks within its values."""
        if self.trained.given is None or self.config.unit_label is None:
            return False
        return self.trained.given.metadata["parameters"]["units"] is None

    @property
    def results(self) -> dict[str, ProbeResult]:
        """The measurements, by the name of their file."""
        models = {"trained": self.trained}
        models |= {f"untrained-seed{seed}": curves for seed, curves in enumerate(self.untrained)}
        results: dict[str, ProbeResult] = {}
        for model, curves in models.items():
            results |= {f"{model}/{name}": result for name, result in curves.by_name.items()}
        return results

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per layer and label.

        Columns of the clusters: ``layer, site, label, n_clusters, ari, ari_low, ari_high, null_low, null_high, p_value,
        untrained, untrained_high, ami, silhouette, label_silhouette``. After subtracting the means of ``given``:
        ``given_ari, given_ari_low, given_ari_high, given_null_low, given_null_high, given_p, untrained_given,
        untrained_given_high, given``. Of the classifier: ``accuracy, accuracy_low, accuracy_high, linear_null_low,
        linear_null_high, linear_p, linear_p_corrected, untrained_accuracy, untrained_accuracy_high``. Of nearest
        neighbours, for the task: ``nearest, untrained_nearest, untrained_nearest_high, held_out, held_out_low,
        held_out_high, held_out_null_low, held_out_null_high, held_out_p, untrained_held_out, untrained_held_out_high``.
        ``ari_low`` and so on are 95% intervals over prompts, or over their units. After subtracting, there is none, and
        no test, if too few whole units could exchange tasks within the values of ``given``. With random weights, a
        column has the mean over the models, and the one ending in ``_high`` the highest model's. Unmeasured values are
        missing.
        """
        return self._table.copy()

    @cached_property
    def _table(self) -> pd.DataFrame:
        import pandas as pd

        places = product(self.labels, self.trained.raw.coords["site"])
        return pd.DataFrame([self._row(label, site) for label, site in places])

    def _row(self, label: str, site: str) -> dict[str, Any]:
        """Return the columns of a label and site."""
        raw = self.trained.raw
        place = {"site": site, "label": label}
        n_clusters = int(raw.metadata["n_clusters"][label])
        row: dict[str, Any] = {"layer": raw.layers[site], "site": site, "label": label, "n_clusters": n_clusters}
        for name, curve in CURVES.items():
            values = _values(getattr(self.trained, name), curve.of_measures, place)
            if name == "given" and self.given_is_untested:  # intervals and p-values would be of prompts, not units
                values |= dict.fromkeys(values.keys() - {curve.value}, np.nan)
            row |= values
            at_random = [getattr(curves, name) for curves in self.untrained]
            row |= _over_models(at_random, curve.measure, curve.untrained, place)
        if self.given is not None:
            row["given"] = self.given
        if self.trained.linear is not None:
            row["linear_p_corrected"] = np.nan
            if not np.isnan(row["linear_p"]):  # enough relabellings
                row["linear_p_corrected"] = _p_of_highest(self.trained.linear, label, row["accuracy"])
        return row

    def of_label(self, label: str) -> pd.DataFrame:
        """Return the rows of a label."""
        return self._table[self._table["label"] == label]

    @property
    def features(self) -> pd.DataFrame:
        """Agreement of the clusters with labels and surface features, a row per layer and candidate.

        Its columns are ``layer, site, name, kind, n_values, ami, ari, untrained, untrained_high, p_value,
        p_corrected``. ``untrained`` is the mean ``ami`` of models with random weights, ``untrained_high`` the highest.
        """
        table = self.followed.table.copy()
        raw = self.trained.raw
        site_of_layer = {raw.layers[site]: site for site in raw.coords["site"]}
        table.insert(1, "site", table["layer"].map(site_of_layer))
        return table


def _values(result: ProbeResult | None, columns: Mapping[str, str], place: Mapping[str, str]) -> dict[str, float]:
    """Return measures at a place, by the names of their columns. It is empty if they were not taken of its label.

    A result without labels is of the task.
    """
    if result is None or place["label"] not in result.coords.get("label", ["task"]):
        return {}
    values = {}
    for measure, column in columns.items():
        if measure in result.values:
            at = {axis: name for axis, name in place.items() if axis in result.axes[measure]}
            values[column] = float(result.sel(measure, **at))
    return values


def _over_models(
    results: Iterable[ProbeResult | None], measure: str, column: str, place: Mapping[str, str]
) -> dict[str, float]:
    """Return the mean and the highest value of several models. It is empty if none has one."""
    values: list[float] = []
    for result in results:
        values += _values(result, {measure: column}, place).values()
    return {column: float(np.mean(values)), f"{column}_high": float(np.max(values))} if values else {}


def _p_of_highest(linear: ProbeResult, label: str, accuracy: float) -> float:
    """Return how often the highest accuracy of any layer is as high with shuffled labels (Westfall & Young 1993).

    All layers share their shuffles, so this p-value is corrected for the number of layers.
    """
    highest = linear.sel("null", label=label).numpy().max(axis=0)
    if np.isnan(highest).any():
        return np.nan
    return float(permutation_p_value(accuracy, highest))
