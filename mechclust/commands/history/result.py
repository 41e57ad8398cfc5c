"""The results of ``mechclust history``, as tables and in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.curves import SINGLE, TESTED, TITLES, Curve, crossings, other_curves, read_curve
from mechclust.commands.history.inputs import Inputs
from mechclust.commands.history.integrity import Defect, Identity, check_series
from mechclust.commands.history.planes import FixedPlanes, fixed_planes
from mechclust.commands.history.series import Checkpoint
from mechclust.commands.history.start import Origin, RandomWeights, Start, start_of
from mechclust.report.chance import least_permutations
from mechclust.report.text import join, ranges, short_name
from probes import ProbeResult, RowStore
from tasks.text.visible import quoted

if TYPE_CHECKING:
    import pandas as pd


_FINDINGS = 8  # that stand in the conclusion


@dataclass(frozen=True, eq=False)
class HistoryResult:
    """Results for a whole series of checkpoints.

    Attributes:
        model: the model's name.
        config: the settings.
        series: the checkpoints, in training order.
        findings: what is wrong with some of them; these are left out of all conclusions.
        results: the probes' results, by ``"NAME/CHECKPOINT"``.
        curves: by name: ``clusters``, ``cka_last``, ``cka_first``, ``cka_previous``, ``heads``, ``topics``, and for
            other probes the name of the probe and its measure, such as ``LinearDecodability_accuracy``.
        planes: hidden states in fixed planes, for the page; ``None`` for none.
        attention: for each checkpoint, ``[layer head query key]`` patterns as bytes, by prompt number.
        words: tokens of these prompts, by prompt number.
        input_notes: anything a reader should know about the inputs.
        start: whether the first checkpoint without findings has random weights or was trained before.

    Example:
        >>> config = HistoryConfig(Path("prompts.jsonl"), revisions=("step0", "step1000"))  # doctest: +SKIP
        >>> result = measure_history("EleutherAI/pythia-70m", config)  # doctest: +SKIP
        >>> result.to_dataframe()  # doctest: +SKIP
    """

    model: str
    config: HistoryConfig
    series: Sequence[Checkpoint]
    findings: Sequence[Defect]
    results: Mapping[str, ProbeResult]
    curves: Mapping[str, Curve]
    planes: FixedPlanes | None
    attention: Sequence[Mapping[int, Tensor]]
    words: Mapping[int, Sequence[str]]
    input_notes: Sequence[str]
    start: Start

    @property
    def names(self) -> list[str]:
        """The names of the checkpoints."""
        return [each.name for each in self.series]

    @property
    def flagged(self) -> set[int]:
        """Positions of the checkpoints with findings."""
        return {i for finding in self.findings for i in finding.checkpoints}

    @property
    def right(self) -> list[int]:
        """Positions of the checkpoints without findings."""
        return [i for i in range(len(self.series)) if i not in self.flagged]

    @cached_property
    def crossings(self) -> pd.DataFrame:
        """When each layer crosses chance; see ``curves.crossings``."""
        import pandas as pd

        tables = [crossings(self.curves[name], self.names, self.right) for name in TESTED if name in self.curves]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def to_dataframe(self) -> pd.DataFrame:
        """One row per measure, checkpoint and layer: value, chance interval, p-value and number of examples."""
        import pandas as pd

        rows = []
        for curve in self.curves.values():
            for i, checkpoint in enumerate(self.series):
                for column, (layer, site) in enumerate(zip(curve.layers, curve.sites, strict=True)):
                    rows.append(
                        {
                            "measure": curve.name,
                            "checkpoint": checkpoint.name,
                            "step": checkpoint.step,
                            "flagged": i in self.flagged,
                            "layer": layer,
                            "site": site,
                            "value": curve.value[i, column],
                            "null_low": curve.low[i, column],
                            "null_high": curve.high[i, column],
                            "p_value": curve.p[i, column],
                            "n": curve.n[i],
                        }
                    )
        frame = pd.DataFrame(rows)
        frame["step"] = pd.to_numeric(frame["step"]).astype("Int64")
        return frame

    @property
    def shown_table(self) -> pd.DataFrame:
        """One row per checkpoint: each measure's mean over layers (the largest, if tested against chance), findings."""
        import pandas as pd

        rows = []
        first = {next((k for k in self.curves if k.startswith(f"{name}_")), "") for name in self.config.others}
        shown = {key: curve for key, curve in self.curves.items() if key in TITLES or key in first}
        for i, name in enumerate(self.names):
            kinds = ", ".join(dict.fromkeys(finding.kind for finding in self.findings if i in finding.checkpoints))
            row: dict[str, Any] = {"checkpoint": name, "findings": kinds or "none"}
            for key, curve in shown.items():
                over = np.nanmax if key in TESTED else np.nanmean
                row[key] = np.nan if np.isnan(curve.value[i]).all() else over(curve.value[i])
            rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def lead(self) -> list[str]:
        """The conclusion: integrity first, with up to eight findings."""
        found = [finding.text for finding in self.findings]
        return [self._integrity, *found[:_FINDINGS], *filter(None, map(self._when, self.curves.values()))]

    @property
    def sentences(self) -> list[str]:
        """The conclusion; ``notes`` has anything else a reader should know."""
        return self.lead

    @property
    def notes(self) -> list[str]:
        """Anything a reader should know."""
        notes = [*self.input_notes, *(finding.text for finding in self.findings[_FINDINGS:])]
        undefined = [name for name, curve in self.curves.items() if not curve.measured]
        for name in undefined:
            found = [result for place, result in self.results.items() if place.startswith(f"{name}/")]
            why = dict.fromkeys(note for result in found for note in result.notes)
            notes += [f"{_capital(TITLES[name])}: {note}." for note in why]
        if self.flagged:
            notes.append(
                "Checkpoints with findings are drawn hollow and left out of all conclusions, that is, of the "
                "crossings of chance and their correction for the number of tests; no CKA with one of them is given."
            )
        if any(each.step is None for each in self.series):
            notes.append("The name of at least one checkpoint has no number, so the series is in the order given.")
        if any(curve.name in TESTED for curve in self.curves.values()):
            notes.append(
                "A layer crosses chance at the first checkpoint at which it is above chance and stays so at the next; "
                "p-values are corrected for all layers and checkpoints (Benjamini & Hochberg)."
            )
            notes.append(self.start.text)
        for name in self.config.others:
            if not any(key.startswith(f"{name}_") for key in self.curves):
                notes.append(f"{name} has no measure with one number per layer or head; all it found is in results.")
        n, n_tests = self.config.n_permutations, max((self._tests(c) for c in self.curves.values()), default=0)
        if n < (least := least_permutations(n_tests)):
            notes.append(
                f"With {n} relabellings, no single one of the {n_tests} tests (layers times checkpoints) can be "
                f"significant unless others are too; --n-permutations {least} is enough."
            )
        return notes

    def _tests(self, curve: Curve) -> int:
        """How many p-values of a measure are read together."""
        return len(self.right) * len(curve.layers) if curve.name in TESTED else 0

    @property
    def _integrity(self) -> str:
        n = len(self.series)
        if not self.findings:
            order = "their weights do not contradict their order" if n > 2 else "too few to check their order"
            return f"Integrity: the {n} checkpoints have different weights and one configuration; {order}."
        wrong = [quoted(self.names[i]) for i in sorted(self.flagged)]
        some = join([*wrong[:5], f"{len(wrong) - 5} more"] if len(wrong) > 5 else wrong)
        what = "is not what its name says" if len(wrong) == 1 else "are not what their names say"
        return f"Integrity: {len(wrong)} of {n} checkpoints {what} ({some}); {self._left}."

    @property
    def _left(self) -> str:
        return f"what follows is of the other {len(self.right)}"

    def _when(self, curve: Curve) -> str:
        """A sentence about when layers cross chance."""
        if curve.name not in TESTED:
            return ""
        table = self.crossings[self.crossings["measure"] == curve.name]
        what, kind = curve.title, curve.place
        if not curve.measured:
            return f"{_capital(what)}: undefined at every checkpoint."
        crossed = table.dropna(subset="crosses_at")
        if crossed.empty:
            single = int((table["note"] == SINGLE).sum())
            if not single:
                return f"{_capital(what)}: above chance in none of {len(table)} {kind}s at any checkpoint."
            one = f"{single} {'is' if single == 1 else 'are'} above it at single checkpoints only"
            return f"{_capital(what)} crosses chance in none of {len(table)} {kind}s; {one}."
        place = {name: i for i, name in enumerate(self.names)}
        order = crossed.sort_values("crosses_at", key=lambda column: column.map(place))
        groups = [(name, own["layer"].tolist()) for name, own in order.groupby("crosses_at", sort=False)]
        told = [
            f"{kind}{'s' * (len(layers) > 1)} {ranges(sorted(layers))} {self._at(str(name))}"
            for name, layers in groups[:4]
        ]
        more = f"; {len(groups) - 4} later" if len(groups) > 4 else ""
        never = len(table) - len(crossed)
        left = f"; {never} of {len(table)} never" if never else ""
        return f"{_capital(what)} crosses chance: {'; '.join(told)}{more}{left}."

    def _at(self, name: str) -> str:
        """When: a layer above chance at the first checkpoint crossed it there or before."""
        if name != self.start.name:
            return f"at {quoted(name)}"
        if self.start.origin == Origin.RANDOM:
            return f"at {quoted(name)}, with random weights"
        trained = ", which was trained before" if self.start.origin == Origin.TRAINED else ""
        return f"by {quoted(name)}, the first checkpoint{trained}"

    def __repr__(self) -> str:
        return f"HistoryResult({short_name(self.model)}, {len(self.series)} checkpoints, {len(self.flagged)} flagged)"

    def __str__(self) -> str:
        table = self.shown_table.to_string(index=False, float_format="{:.3f}".format, na_rep="-")
        return "\n".join([table, "", *self.sentences])


def measured_history(
    *,
    model: str,
    config: HistoryConfig,
    series: Sequence[Checkpoint],
    inputs: Inputs,
    identities: Sequence[Identity],
    stores: Sequence[RowStore],
    results: Mapping[str, Mapping[int, ProbeResult]],
    attention: Sequence[Mapping[int, Tensor]],
    random: RandomWeights | str,
) -> HistoryResult:
    """The result: integrity first, then the curves."""
    curves = {name: read_curve(name, results[name], len(series)) for name in TITLES if results.get(name)}
    others = [curve for name in config.others for curve in other_curves(name, results[name], len(series))]
    curves |= {curve.name: curve for curve in others}
    findings = check_series(identities, _biased_cka(results.get("cka_last"), len(series)))
    wrong = {i for finding in findings for i in finding.checkpoints}
    if "cka_previous" in curves:  # with what a checkpoint is said not to be, it is not compared
        curves["cka_previous"] = curves["cka_previous"].without(sorted({i + 1 for i in wrong} - {len(series)}))
    for against, reference in (("first", 0), ("last", len(series) - 1)):
        if reference in wrong and f"cka_{against}" in curves:
            curves[f"cka_{against}"] = curves[f"cka_{against}"].without(range(len(series)))
    first = min(set(range(len(series))) - wrong, default=0)
    return HistoryResult(
        model=model,
        config=config,
        series=series,
        findings=findings,
        results={f"{name}/{series[i].name}": own[i] for name, own in results.items() for i in own},
        curves=curves,
        planes=fixed_planes(stores, inputs.prompts, config) if config.map_prompts else None,
        attention=attention,
        words=inputs.words,
        input_notes=inputs.notes,
        start=start_of(series[first].name, series[first].step, identities[first].weights, random),
    )


def _biased_cka(results: Mapping[int, ProbeResult] | None, n: int) -> np.ndarray | None:
    """``[checkpoint layer]`` CKA with the last, whose 1 is reached only by the same states."""
    if not results:
        return None
    layers = len(results[max(results)].coords["site"])
    found = np.full((n, layers), np.nan)
    for i, result in results.items():
        found[i] = result.sel("cka", label="all").numpy()
    return found


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
