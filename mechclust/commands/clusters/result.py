"""What ``mechclust clusters`` found, as tables and in sentences."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from mechclust.commands.clusters.config import ClustersConfig
from mechclust.commands.clusters.features import LEAST
from mechclust.commands.clusters.follow import MOSTLY, PARTLY, TIE, Followed
from mechclust.commands.clusters.readings import Asked, LabelReadings, LabelVerdict, read_label
from mechclust.commands.clusters.sentences import agreements, conclusion, details
from mechclust.models.tokenizers import in_words
from mechclust.report.chance import CHANCE_LEVEL
from mechclust.report.html import table_html
from mechclust.report.text import join, ranges, short_name
from probes import ProbeResult
from tasks.text.visible import quoted

if TYPE_CHECKING:
    import pandas as pd

_RAW = {
    "ari": "ari",
    "null_low": "null_low",
    "null_high": "null_high",
    "p_value": "p_value",
    "ami": "ami",
    "silhouette": "silhouette",
    "label_silhouette": "label_silhouette",
}
_GIVEN = {"ari": "given_ari", "null_low": "given_null_low", "null_high": "given_null_high", "p_value": "given_p"}
_LINEAR = {
    "accuracy": "accuracy",
    "accuracy_low": "accuracy_low",
    "accuracy_high": "accuracy_high",
    "null_low": "linear_null_low",
    "null_high": "linear_null_high",
    "p_value": "linear_p",
}
_SHOWN = [
    "layer", "site", "label", "n_clusters", "ari", "null_low", "null_high", "p_value", "untrained",
    "given_ari", "given_p", "untrained_given", "accuracy", "linear_p", "untrained_accuracy",
]  # fmt: skip


@dataclass(frozen=True)
class ModelCurves:
    """Of one model.

    Attributes:
        raw: clusters of its states against each label.
        given: the same where the means of another label or feature were taken out.
        linear: how well a linear classifier reads each label.
    """

    raw: ProbeResult
    given: ProbeResult | None = None
    linear: ProbeResult | None = None

    @property
    def by_name(self) -> dict[str, ProbeResult]:
        """Those there are."""
        found = {"clusters": self.raw, "given": self.given, "linear": self.linear}
        return {name: result for name, result in found.items() if result is not None}


@dataclass(frozen=True)
class MapContents:
    """What the map of the prompts shows.

    Attributes:
        layers: number of each layer.
        places: of its prompts among those measured.
        texts: these prompts.
        planes: each layer's prompts in a plane.
        variance: share of the variance that each plane holds.
        clusters: cluster of each prompt.
    """

    layers: Sequence[int]
    places: Sequence[int]
    texts: Sequence[str]
    planes: Float[np.ndarray, "layers n 2"]
    variance: Float[np.ndarray, "layers"]
    clusters: Int[np.ndarray, "layers n"]


@dataclass(frozen=True, repr=False)
class ClustersResult:
    """What ``measure_clusters`` found.

    Attributes:
        model: the model's name.
        config: what was asked for.
        trained: measures by site and label.
        untrained: the same for each untrained model.
        followed: agreement of the clusters with every label and surface feature.
        given: label or feature whose means were taken out of the states; ``None`` for none.
        values: labels and surface features, a value per prompt.
        shown: what the map of the prompts shows.
        input_notes: what a reader must know of the prompts.

    Example:
        >>> result = measure_clusters("gpt2", ClustersConfig(Path("prompts.jsonl")))  # doctest: +SKIP
        >>> result.to_dataframe()  # doctest: +SKIP
    """

    model: str
    config: ClustersConfig
    trained: ModelCurves
    untrained: Sequence[ModelCurves]
    followed: Followed
    given: str | None = None
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    shown: MapContents | None = None
    input_notes: Sequence[str] = ()

    def __repr__(self) -> str:
        coords = self.trained.raw.coords
        size = f"{len(coords['site'])} layers, labels: {reprlib.repr(coords['label'])}"
        return f"ClustersResult({short_name(self.model)}, {size})"

    @cached_property
    def lead(self) -> list[str]:
        """The conclusion in two sentences: what the clusters follow, and whether the task is there beside it."""
        return conclusion(self.readings, self.followed, self.given, self._told)

    @cached_property
    def readings(self) -> dict[str, LabelReadings]:
        """By label, every measure read against chance and random weights."""
        return {label: read_label(self._of(label), self._asked) for label in self.trained.raw.coords["label"]}

    @property
    def verdicts(self) -> Mapping[str, Mapping[str, str]]:
        """By label and measure (``clusters``, ``given``, ``linear``), what value, chance and random weights say."""
        return {label: readings.verdicts for label, readings in self.readings.items()}

    @property
    def headline(self) -> str:
        """The verdict on the clusters of the task, in a few words."""
        return f"clusters by task: {self.verdicts['task']['clusters']}"

    @cached_property
    def sentences(self) -> list[str]:
        """The conclusion, then what each measure says of each label."""
        found = list(self.lead)
        given = None if self.given is None else self.followed.called(self.given)
        for label in self.trained.raw.coords["label"]:
            found += details(self._of(label), label, given, len(self.untrained), self._asked)
        return [*found, *([agreements(self.followed)] if self.followed.means else [])]

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the numbers."""
        found, after = self.trained.raw.metadata, ", after t-SNE" if self.config.tsne else ""
        clusters = ", ".join(f"{n} for {quoted(label)}" for label, n in found["n_clusters"].items())
        return [
            *self.input_notes,
            f"{found['n']} prompts, hidden state at {self.config.states}{after}; clusters: {clusters}.",
            *([in_words(found["tokenization"])] if "tokenization" in found else []),
            *self._of_given(),
            f"Chance: 95% of the indices when labels are permuted among the {self._exchanged}; p: the share of "
            f"{self.config.n_permutations} such permutations at least as high. Above chance: p of at most "
            f"{CHANCE_LEVEL:g}, corrected for the number of layers looked at (Benjamini-Hochberg: of the layers "
            "named, at most 5% are there by chance, on average).",
            *self._of_linear(),
            *self._of_random_weights(),
            f"Surface features are read from a prompt's text and tokens; values of fewer than {LEAST} prompts count as "
            f"one. Clusters follow what they agree with most: adjusted mutual information of at least {MOSTLY:g} on "
            f"average over layers, partly from {PARTLY:g}, above chance at some layer (corrected for all "
            "layers, labels and features).",
            *_summarised(self._of_probes(), self.trained.raw.layers),
        ]

    @property
    def _asked(self) -> Asked:
        return self.config.n_permutations, self.config.n_shuffles

    @property
    def _told(self) -> str | None:
        """What the clusters follow, where it tells the task, so that it could not be taken out."""
        best = self.followed.beside_the_task(self.trained.raw.coords["label"])
        return best if self.given is None and self.config.given == "auto" else None

    def _of_given(self) -> list[str]:
        if self.given is None:
            if self._told is not None:
                within = "" if self.config.within is None else f", within each {quoted(self.config.within)}"
                return [
                    f"Nothing is left of the task given {self.followed.called(self._told)}: in these prompts it "
                    f"determines the task{within}."
                ]
            return []
        n = len(set(self.values[self.given]))
        said = [
            f"Given {self.followed.called(self.given)}: the mean state of each of its {n} values is subtracted before "
            "clustering, and labels are permuted among prompts with the same value."
        ]
        for label in self.trained.raw.coords["label"]:
            if self.trained.given is None or label not in self.trained.given.coords["label"]:
                said.append(
                    f"Nothing is left of {quoted(label)} given {self.followed.called(self.given)}, which determines "
                    "it in these prompts."
                )
        return said

    def _of_probes(self) -> Iterator[tuple[str, str]]:
        """What the probes noted, each with whose note it is where it is not of the clusters."""
        whose = {"clusters": "", "given": "Given: ", "linear": "Linear: "}
        seen = set[str]()
        for name, result in self.trained.by_name.items():
            for note in result.notes:
                if note not in seen:
                    yield whose[name], note
                seen.add(note)

    @property
    def _exchanged(self) -> str:
        """What exchanges labels."""
        return "prompts" if self.config.unit_label is None else f"units ({quoted(self.config.unit_label)})"

    def _of_linear(self) -> list[str]:
        if self.trained.linear is None:
            return []
        shares = ", ".join(
            f"{float(self.trained.linear.sel('majority', label=label)):.2f} for {quoted(label)}"
            for label in self.trained.linear.coords["label"]
        )
        return [
            "Linear: held-out accuracy of a ridge classifier on the states, with nothing subtracted; "
            f"chance: the same with {self.config.n_shuffles} shuffles of the labels. Above "
            f"chance: at most {CHANCE_LEVEL:g} of the shuffles have a layer as high (Westfall & Young 1993). Always "
            f"predicting the commonest class gives {shares}. What a classifier reads may be the prompts' wording: "
            "compare with random weights."
        ]

    def _of_random_weights(self) -> list[str]:
        if not self.untrained:
            return ["Nothing was compared with random weights, because none were asked for (--untrained 0)."]
        return [
            f"{LabelVerdict.NO_MORE.capitalize()}: the highest value, less half the width of the chance range (of the "
            "accuracy: the lower end of its interval), is not above the highest value of any model with random weights "
            "at any layer. Of surface features, and of labels that are not given with --also: the mean agreement is "
            f"not above the highest of random weights by more than {TIE:g}.",
            *self._of_one_model(),
        ]

    def _of_one_model(self) -> list[str]:
        if len(self.untrained) > 1:
            return []
        return ["One model with random weights may be far from the next: give --untrained 3 or more."]

    def _of(self, label: str) -> pd.DataFrame:
        """The rows of one label, of its first number of clusters."""
        table = self.to_dataframe()
        table = table[table["label"] == label]
        return table[table["n_clusters"] == table["n_clusters"].iloc[0]]

    @property
    def shown_table(self) -> pd.DataFrame:
        """The columns to look at."""
        table = self.to_dataframe()
        names = [name for name in _SHOWN if name in table and not table[name].isna().all()]
        return table[names if table.groupby("label")["n_clusters"].nunique().max() > 1 else _without(names)]

    def to_dataframe(self) -> pd.DataFrame:
        """One row per layer and label (and number of clusters, where several were asked for).

        Columns: ``layer, site, label, ari, null_low, null_high, p_value, untrained, untrained_high, ami, silhouette,
        label_silhouette, n_clusters``; of the states without what is ``given``: ``given_ari, given_null_low,
        given_null_high, given_p, untrained_given, untrained_given_high, given``; of the classifier: ``accuracy,
        accuracy_low, accuracy_high, linear_null_low, linear_null_high, linear_p, linear_p_corrected,
        untrained_accuracy, untrained_accuracy_high``. With random weights, a column has the mean over the models, and
        the one ending in ``_high`` the highest model's. What was not measured is missing.
        """
        return self._table.copy()

    @cached_property
    def _table(self) -> pd.DataFrame:
        import pandas as pd

        raw = self.trained.raw
        several = raw.coords.get("n_clusters", [""])
        highest = {label: _p_of_highest(self.trained.linear, label) for label in raw.coords["label"]}
        rows: list[dict[str, Any]] = []
        for label in raw.coords["label"]:
            for k in several:
                for site in raw.coords["site"]:
                    row: dict[str, Any] = {"layer": raw.layers[site], "site": site, "label": label}
                    at = {"site": site, "label": label, "n_clusters": k}
                    row |= _values(raw, _RAW, at)
                    row["n_clusters"] = int(k or raw.metadata["n_clusters"][label])
                    row |= _over_models([curves.raw for curves in self.untrained], "ari", "untrained", at)
                    row |= _values(self.trained.given, _GIVEN, at)
                    row |= _over_models([curves.given for curves in self.untrained], "ari", "untrained_given", at)
                    if self.given is not None:
                        row["given"] = self.given
                    row |= _values(self.trained.linear, _LINEAR, at)
                    if row.get("accuracy") is not None:
                        row["linear_p_corrected"] = highest[label](row["accuracy"])
                    row |= _over_models(
                        [curves.linear for curves in self.untrained], "accuracy", "untrained_accuracy", at
                    )
                    rows.append(row)
        table = pd.DataFrame(rows)
        first = ["layer", "site", "label", "ari", "null_low", "null_high", "p_value", "untrained", "untrained_high"]
        first = [name for name in first if name in table]
        return table[[*first, *(name for name in table if name not in first)]]

    @property
    def features(self) -> pd.DataFrame:
        """Agreement of the clusters with labels and surface features, a row per layer and candidate.

        Its columns are ``layer, site, name, kind, n_values, ami, ari, untrained, untrained_high, p_value,
        p_corrected``; ``untrained`` is the mean ``ami`` of models with random weights, ``untrained_high`` the highest.
        """
        table, layers = self.followed.table.copy(), self.trained.raw.layers
        table.insert(1, "site", table["layer"].map({layers[site]: site for site in self.trained.raw.coords["site"]}))
        return table

    def _repr_html_(self) -> str:
        title = f"What the hidden states of {short_name(self.model)} cluster by"
        return table_html(self.shown_table, title, [*self.sentences, *self.notes])


def _values(result: ProbeResult | None, names: Mapping[str, str], at: Mapping[str, str]) -> dict[str, float]:
    """Measures at a site and label, by the names of their columns."""
    if result is None or at["label"] not in result.coords["label"]:
        return {}
    return {
        column: float(result.sel(measure, **{axis: name for axis, name in at.items() if axis in result.axes[measure]}))
        for measure, column in names.items()
        if measure in result.values
    }


def _p_of_highest(linear: ProbeResult | None, label: str) -> Callable[[float], float]:
    """How often the highest accuracy of all layers is as high with shuffled labels, which are the same for all layers:
    a p-value corrected for their number (Westfall & Young 1993)."""
    if linear is None or label not in linear.coords["label"]:
        return lambda accuracy: np.nan
    highest = linear.sel("null", label=label).numpy().max(axis=0)
    if np.isnan(highest).any():
        return lambda accuracy: np.nan
    return lambda accuracy: float((1 + (highest >= accuracy - 1e-12).sum()) / (1 + len(highest)))


def _over_models(
    results: Iterable[ProbeResult | None], measure: str, column: str, at: Mapping[str, str]
) -> dict[str, float]:
    """Return the mean and the highest value of several models; nothing where none has one."""
    found = [value for result in results for value in _values(result, {measure: column}, at).values()]
    return {column: float(np.mean(found)), f"{column}_high": float(np.max(found))} if found else {}


def _without(names: Sequence[str]) -> list[str]:
    return [name for name in names if name != "n_clusters"]


_DISTINCT = re.compile(r"^has (\d+) distinct states for (\d+) clusters of '(.*)': each state is")


def _summarised(notes: Iterable[tuple[str, str]], layers: Mapping[str, int]) -> list[str]:
    """Notes that are the same for several layers or labels as one; each comes with whose it is."""
    distinct: dict[tuple[int, int, int], set[str]] = {}  # by layer, distinct states and clusters, the labels
    others: dict[tuple[str, str], set[int]] = {}
    for whose, note in notes:
        site, _, rest = note.partition(" ")
        layer = layers.get(site.rstrip(":"))
        if layer is not None and (found := _DISTINCT.match(rest)):
            n, k, label = found.groups()
            distinct.setdefault((layer, int(n), int(k)), set()).add(label)
        elif layer is not None:
            others.setdefault((whose, rest), set()).add(layer)
        else:
            others.setdefault((whose, note), set())
    alike: dict[tuple[int, tuple[str, ...]], dict[int, int]] = {}
    for (layer, n_states, n_clusters), labels in distinct.items():
        alike.setdefault((n_clusters, tuple(sorted(labels))), {})[layer] = n_states
    told = [
        f"{_layers(at)} ha{'ve' if len(at) > 1 else 's'} {_from_to(at.values())} for {k} clusters of "
        f"{join(map(repr, names))}: each state is a cluster of its own."
        for (k, names), at in alike.items()
    ]
    said = [f"{whose}{f'{_layers(at)}: {rest}' if at else rest}" for (whose, rest), at in others.items()]
    return told + [f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" for text in said]


def _layers(layers: Iterable[int]) -> str:
    found = sorted(layers)
    return f"Layer{'s' * (len(found) > 1)} {ranges(found)}"


def _from_to(numbers: Collection[int]) -> str:
    least, most = min(numbers), max(numbers)
    count = str(least) if least == most else f"{least} to {most}"
    return f"{count} distinct state{'s' * (most != 1)}"
