"""The result of ``mechclust topics``: its headline, readings, findings, tables, figures and report."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mechclust.commands.result import MeasuredResult, ReportRecord
from mechclust.commands.topics import caveats, readings, tables
from mechclust.commands.topics.measurements import Measurements
from mechclust.report.analysis import Analysis
from mechclust.report.html import table_html
from mechclust.report.panel import Panel
from mechclust.report.reading import Reading
from mechclust.report.text import model_name_text
from probes import ProbeResult
from probes.functional.topic_embedding import SIMILARITIES
from probes.store.file_names import file_name

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class TopicsResult(Measurements, MeasuredResult):
    """Result of ``measure_topics``.

    Attributes:
        config: the settings.
        models: in the order given.
        texts: topic models and documents.
        trained: by name, measurements of models that could be measured.
        twins: by name, measurements of each copy with random weights.
        failed: by name, or name and copy, why one could not be measured.

    Example:
        >>> result = measure_topics("bert-base-uncased", TopicsConfig((Path("corpus.txt"),)))  # doctest: +SKIP
        >>> result.headline  # doctest: +SKIP
    """

    def __repr__(self) -> str:
        return f"TopicsResult({self._models}, {len(self.thresholds)} thresholds)"

    @property
    def _models(self) -> str:
        first, *others = self.trained
        return f"{len(self.trained)} models" if others else model_name_text(first)

    @property
    def title(self) -> str:
        """Heading of the report."""
        return f"Topic structure in {self._models}"

    @property
    def headline(self) -> str:
        """The conclusion."""
        return readings.headline(self, self.tables["ratios"])

    @cached_property
    def readings(self) -> list[Reading]:
        """Readings of each model's attention, the verdicts, and which vectors fit the published columns."""
        return readings.readings(self, self.tables["ratios"])

    @property
    def caveats(self) -> list[str]:
        """Notes that a reader needs to understand the numbers."""
        return caveats.caveats(self)

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per model, measure, threshold and overlap.

        The columns are ``value, low, high, published``, and the values of random weights. Measures: attention,
        attention at equal distance, and cosine and dot product of each of ``VECTORS``.
        """
        return tables.ratio_table(self)

    def heads(self) -> pd.DataFrame:
        """Return one row per model, threshold, overlap, layer (0: ``blocks.0``) with its hook, and head with its name.

        ``ratio``, ``matched`` and the ratio of random weights, each a mean over topic models.
        """
        return tables.head_table(self)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by the name of its file, computed once."""
        return {"ratios": self.to_dataframe(), "heads": self.heads(), "topics": tables.seed_table(self)}

    def shown(self, overlap: bool) -> pd.DataFrame:
        """Return attention by model and threshold, next to the published table if any model is compared with it.

        A model that could not be measured has one row that says why.
        """
        return tables.attention_table(self, self.tables["ratios"], overlap)

    def shown_embeddings(self, overlap: bool, similarity: str) -> pd.DataFrame:
        """Return each way to take a word's vector, next to the published column if any model is compared with it."""
        return tables.vector_table(self, self.tables["ratios"], overlap, similarity)

    @property
    def shown_table(self) -> pd.DataFrame:
        """The table for a terminal: attention with words of one topic, and with words of several."""
        import pandas as pd

        both = {title: self.shown(overlap) for overlap, title in tables.KINDS_OF_TOPICS.items()}
        return pd.concat([table.assign(topics=title) for title, table in both.items()], ignore_index=True)

    def panels(self) -> list[Panel]:
        """Draw the figures, in the report's order."""
        from mechclust.commands.topics import figures

        return figures.topics_panels(self, self.tables)

    @property
    def results(self) -> dict[str, ProbeResult]:
        """The measurements, by the name of their file."""
        results = {}
        for name, trained in self.trained.items():
            roles = {"trained": trained}
            roles |= {f"random-seed{twin.attention.metadata['twin']}": twin for twin in self.twins[name]}
            for role, measured in roles.items():
                results[f"{file_name(name)}/{role}/attention"] = measured.attention
                results[f"{file_name(name)}/{role}/embedding"] = measured.embedding
        return results

    def _record(self) -> ReportRecord:
        models = "Model" if len(self.trained) == 1 else "Models"
        return ReportRecord(
            "topics",
            source=f"{models}: {', '.join(self.trained)}. Corpus: {', '.join(map(str, self.config.corpus))}",
            config={"models": [vars(model) for model in self.models], **vars(self.config)},
            results=self.results,
            tables=self.tables,
        )

    def _analysis(self) -> Analysis:
        judged = {finding.id for finding in self.findings}  # in a separate table
        folded = {}
        published = ", next to the published table" if self.has_published else ""
        for overlap, title in tables.KINDS_OF_TOPICS.items():
            folded[f"Attention, {title}{published}"] = table_html(self.shown(overlap), missing="–")
        for similarity in SIMILARITIES:
            for overlap, title in tables.KINDS_OF_TOPICS.items():
                table = self.shown_embeddings(overlap, similarity)
                folded[f"Word vectors, {similarity}, {title}"] = table_html(table, missing="–")
        threshold = tables.first_threshold(self.tables["ratios"])
        best = tables.best_heads(self.tables["heads"], threshold)
        best["model"] = best["model"].map(self.labels)
        folded[f"The eight heads with the highest ratio, threshold {threshold:g}"] = table_html(
            best, number=".3f", missing="–"
        )
        seed = self.texts.fitted.seeds[0]
        topics = self.tables["topics"].query("seed == @seed").drop(columns="seed")
        folded[f"Topics of seed {seed}"] = table_html(topics, number=".3f", missing="–")
        return Analysis(
            findings=self.findings,
            panels=self.panels(),
            headline=self.headline,
            readings=[reading for reading in self.readings if reading.what not in judged],
            folded=folded,
            notes=self.caveats,
        )

    def _repr_html_(self) -> str:
        return table_html(self.shown(overlap=False), f"{self.title}: words of one topic", self.sentences)
