"""What ``mechclust compare`` found: the measurements, their tables, and what they say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mechclust.commands.compare.sentences import sentences
from mechclust.commands.compare.tables import CompareTables
from mechclust.report.html import table_html
from mechclust.report.text import short_name

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class CompareResult(CompareTables):
    """What ``compare_models`` found.

    Attributes:
        base, tuned: the models' names.
        config: what was asked for.
        tasks: names.
        cka: of ``CKA`` between tuned and base, with axes (site, label), the labels being ``"(all)"`` and the tasks;
            (site, other_site, label), every layer with every other, where the models' layers are not the same.
        controls: by task, ``CKA`` of its control with the ``tuned`` and with the ``base`` model on its prompts.
        rbf: ``debiased_rbf_cka`` (site, label) of the tasks, or ``None``.
        without_top_pc: the same of ``CKA`` without the largest principal component of each side.
        svcca: the same of ``SVCCA``.
        n_dims: of ``NDims``, sites being named ``tuned/hook_embed`` and so on, or ``None``.
        purity: the same of ``NeighbourPurity``, or ``None``.
        best_pair: where the models' layers are not the same, see ``measure_best_pairs``, or ``None``.
        clusters: of the tasks.
        families: of the base and of the tuned model, where neither was tuned from the other as these differ.
        notes: what a reader must know of the input.
        distinct: by site and label without a CKA or an interval, how many different hidden states the prompts have, in
            the model that has fewer.
        tokenization: how the prompts were read, as ``mechclust.models.tokenizers.tokenization_of`` says it.
        planes: where prompts lie in each layer's plane, or ``None``; ``planes.html()`` is the report's map.
    """

    def __repr__(self) -> str:
        models = f"{short_name(self.tuned)} against {short_name(self.base)}"
        return f"CompareResult({models}, {len(self.cka.coords['site'])} layers, {len(self.tasks)} tasks)"

    @cached_property
    def sentences(self) -> list[str]:
        """Where change begins, which layers changed, for which tasks, and what cannot be told; a few sentences, the
        most important first."""
        return sentences(self)

    @property
    def title(self) -> str:
        """What heads the report."""
        names = [short_name(model) for model in (self.tuned, self.base)]
        tuned, base = names if names[0] != names[1] else (self.tuned, self.base)
        return f"How {tuned} differs from {base}" if self.families else f"What tuning changed: {tuned} against {base}"

    @property
    def shown_table(self) -> pd.DataFrame:
        """The table for a terminal: tasks, or layers and tasks where the models' layers are not the same."""
        table = self.tables["tasks" if self.diagonal else "compare"]
        hidden = ("largest_", "d_", "p_value", "elsewhere")  # the sentences say what the latter two show
        return table[[name for name in table if not name.startswith(hidden)]]

    def _repr_html_(self) -> str:
        table = self.tables["tasks" if self.diagonal else "compare"]
        return table_html(table, self.title, self.sentences, number=".3f", missing="–")
