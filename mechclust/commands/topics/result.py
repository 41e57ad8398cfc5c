"""The result of ``mechclust topics``: its headline, readings, tables, figures and report."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.commands.result import MeasuredResult, ReportRecord
from mechclust.commands.topics import caveats, readings, tables
from mechclust.commands.topics.measurements import Measurements
from mechclust.commands.topics.sources import SHARDS
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading
from mechclust.report.text import model_name_text
from probes import ProbeResult

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class TopicsResult(Measurements, MeasuredResult):
    """Result of ``measure_topics``.

    Attributes:
        model: the model's name.
        config: the settings.
        topics: the topic model.
        n_documents: documents it was fitted on.
        n_files: files they came from.
        encoded: the documents measured, as tokens, and the words that the tokenizer lost.
        variants: thresholds with and without overlap, in the order of the measurements.
        trained: measures of the model.
        untrained: measures of each untrained model.
        empty_files: files that held no word.
        corpus_notes: parts of the corpus that were left out or cut, in sentences.

    Example:
        >>> result = measure_topics("bert-base-uncased", TopicsConfig((Path("corpus.txt"),)))  # doctest: +SKIP
        >>> result.headline  # doctest: +SKIP
    """

    def __repr__(self) -> str:
        size = f"{self.topics.n_topics} topics of {self.n_documents} documents, {len(self.variants)} variants"
        return f"TopicsResult({model_name_text(self.model)}, {size})"

    @property
    def title(self) -> str:
        """Heading of the report."""
        return f"Topic structure in {model_name_text(self.model)}"

    @property
    def headline(self) -> str:
        """The conclusion."""
        return readings.headline(self._measures, self.tables["attention"], self.config.n_permutations)

    @cached_property
    def readings(self) -> list[Reading]:
        """Readings of attention, heads and embeddings against chance and random weights."""
        heads = self.tables["attention"]
        return readings.readings(self._measures, heads, self.config.n_permutations, self.highest_ends)

    @property
    def caveats(self) -> list[str]:
        """Notes that a reader needs to understand the numbers."""
        return caveats.caveats(self)

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per variant, layer (0: ``blocks.0``) and head, with its name (such as ``L0H3``).

        The columns are mean attention and pairs by bucket, and the ratio of same to different topic. The ratio has a
        95% interval over documents (``ratio_low``, ``ratio_high``), a null interval, and its value in untrained models.
        Its means are within documents, whereas pairs of one word are averaged all together. NaN if a variant leaves no
        pairs.
        """
        return tables.head_table(self)

    def by_layer(self) -> pd.DataFrame:
        """Return one row per variant and layer: similarity of the words' mean hidden states (0: the embedding)."""
        return tables.layer_table(self)

    def summary(self) -> pd.DataFrame:
        """Return one row per variant, with differences, chance intervals, and the values of untrained models.

        The ratio of same-topic to different-topic cosine and dot product in the token embedding matrix, and of
        attention within documents over all layers and heads.
        """
        return tables.variant_table(self)

    def by_measure(self) -> pd.DataFrame:
        """Return one row per measure and variant.

        The columns are ``measure, threshold, overlap, topics, words, value, value_low, value_high, null_low, null_high,
        p_value, untrained``. ``value_low`` and ``value_high`` are of attention, over documents. Attention over all
        layers and heads is the ratio of same-topic to different-topic pairs. Cosine and dot product in the token
        embedding matrix are the difference of these, since a mean between topics may be near 0.
        """
        return tables.measure_table(self, self.tables["summary"])

    def by_topic(self) -> pd.DataFrame:
        """Return one row per topic, the largest first: its share of the corpus and its likeliest words."""
        return tables.topic_table(self.topics)

    @cached_property
    def _measures(self) -> pd.DataFrame:
        return self.by_measure()

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by the name of its file, computed once."""
        return {
            "summary": self.summary(),
            "attention": self.to_dataframe(),
            "layers": self.by_layer(),
            "topics": self.by_topic(),
        }

    @property
    def shown_table(self) -> pd.DataFrame:
        """The table for a terminal: ``by_measure`` with each value's chance interval and p."""
        return tables.shown_measures(self._measures)

    def panels(self) -> list[Panel]:
        """Draw the figures, in the report's order."""
        from mechclust.commands.topics import figures

        return figures.topics_panels(self.tables, self._measures)

    @property
    def results(self) -> dict[str, ProbeResult]:
        """The measurements, by the name of their file."""
        models = {"trained": self.trained}
        models |= {f"untrained-seed{seed}": measures for seed, measures in enumerate(self.untrained)}
        results = {}
        for name, measures in models.items():
            for kind, of_variants in vars(measures).items():
                for variant, result in zip(self.variants, of_variants, strict=True):
                    if result is not None:
                        results[f"{name}/{kind}-{variant.name}"] = result
        return results

    def write(self, out: str | Path, *, print_figures: bool = False) -> Path:
        """Write the report as every command does, and delete the tokenized documents."""
        page = super().write(out, print_figures=print_figures)
        shutil.rmtree(Path(out) / SHARDS, ignore_errors=True)
        return page

    def _record(self) -> ReportRecord:
        return ReportRecord(
            "topics",
            source=f"Model: {self.model}. Corpus: {', '.join(map(str, self.config.corpus))}",
            config={"model": self.model, **vars(self.config)},
            results=self.results,
            tables=self.tables,
        )

    def _analysis(self) -> Analysis:
        first = tables.first_measured(self.tables["attention"])
        where = f"threshold {first['threshold'].iloc[0]:g}" if len(first) else "none"
        folded = {
            "Same topic against different topic": table_html(
                tables.shown_measures(self._measures, with_intervals=True), number=".3g", missing="–"
            ),
            f"The ten heads with the highest ratio ({where})": table_html(
                tables.best_heads(first), number=".4f", missing="–"
            ),
            "Topics": table_html(self.tables["topics"], number=".3f", missing="–"),
        }
        return Analysis(
            panels=self.panels(),
            headline=self.headline,
            readings=self.readings,
            folded=folded,
            notes=self.caveats,
        )

    def _repr_html_(self) -> str:
        return table_html(self._measures, self.title, self.sentences, missing="–")
