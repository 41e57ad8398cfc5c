"""Similarity of the vectors of words of one topic (Li, Li & Risteski, arXiv 2303.04245)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Bool, Float, Shaped
from numpy.typing import ArrayLike
from torch import Tensor

from probes.engine.result import ProbeResult
from probes.engine.sites import Sites, embedding
from probes.engine.state import Sum
from probes.engine.topic_probe import TopicProbe
from probes.functional.permutation_test import ROUNDING_TIE
from probes.functional.topic_embedding import SIMILARITIES, TopicSimilarityGroups
from probes.functional.topic_pairs import BUCKETS
from tasks import Batch, InputError


class TopicEmbedding(TopicProbe):
    """Similarity of word vectors within a topic and between topics, per site.

    A word's vector is its mean activation at the site: at ``hook_embed`` of a model without positions there, its row of
    the embedding matrix. For the matrix itself use ``compare_vectors``. Every pair of different words that were seen
    counts once each way.

    Measures:
        ``sum``, ``mean`` (site, similarity, bucket): cosine and dot product summed over ``same_topic`` and
            ``different_topic`` pairs, and this sum divided by their number.
        ``pairs`` (bucket): number of ordered pairs.
        ``ratio``, ``difference`` (site, similarity): same topic over, and minus, different topic. Ratios explode if the
            denominator nears 0.
        ``ratio_null_low``, ``ratio_null_high``, ``p_value`` (site, similarity): central 95% of the
            ratio when the topics are permuted among the words, and the share at least as high.
        ``difference_null_low``, ``difference_null_high``, ``difference_p_value`` (site, similarity): likewise for the
            difference. Read these if the mean between topics is near 0 or below.

    Memory: ``sites x words with a topic x d_model`` float64 numbers. A batch adds to them in place, at a cost that
    depends on its tokens, not on the number of words.

    Source: Li, Li & Risteski (ICML 2023), section on embeddings. The interval is ours.

    Args:
        topics: as in ``TopicAttention``.
        at: where to measure.
        words: as in ``TopicAttention``.
        self_pairs: also count a word with itself as ``same_topic``.
        n_permutations: number of relabellings for the interval (0: none).
        seed: for the relabellings.

    Example:
        >>> TopicEmbedding(torch.tensor([0, 0, 1, 1])).at
        embedding()
    """

    vectors = Sum()
    seen = Sum(torch.int64)

    def __init__(
        self,
        topics: ArrayLike,
        at: Sites = embedding(),
        words: str | None = None,
        self_pairs: bool = False,
        n_permutations: int = 99,
        seed: int = 0,
    ) -> None:
        super().__init__(topics, at, words, n_permutations, seed)
        self.self_pairs = self_pairs

    def update(self, activations: Mapping[str, Float[Tensor, "batch ..."]], batch: Batch) -> None:
        """Add each word's vectors at every site."""
        row = self._known.rows_of(batch.words(self.words))
        example, place = (row >= 0).nonzero(as_tuple=True)
        word = row[example, place]
        n_rows = len(self._known.group)
        self.seen.add("words", torch.bincount(word, minlength=n_rows))
        for site, x in activations.items():
            if x.ndim < 3 or x.shape[:2] != batch.tokens.shape:
                raise InputError(f"{site!r} has shape {tuple(x.shape)}; expected a vector per token [batch pos ...]")
            self.vectors.add_rows(site, word, x[example, place].flatten(1), n_rows)

    def compute(self) -> ProbeResult:
        """Return the similarities of the mean vectors of all words seen so far, with their chance."""
        seen = self.seen["words"].cpu() > 0
        means = ((site, self._means(site)) for site in self.site_names)
        return self._compared(means, seen, {site.name: site.layer for site in self.sites})

    def _means(self, site: str) -> Float[Tensor, "topical d"]:
        """Return the mean vector of each word with a topic, or NaN for words not seen."""
        return self.vectors[site].cpu() / self.seen["words"].cpu()[:, None]

    def word_vectors(self) -> tuple[dict[str, Float[Tensor, "n_words d"]], Bool[Tensor, "n_words"]]:
        """Return the mean vector of each word so far by site, in float64, and which words were seen.

        The vectors of words without a topic, which are skipped, and of words not seen are NaN.
        """
        topical = self._known.row >= 0
        seen = torch.zeros_like(topical)
        seen[topical] = self.seen["words"].cpu() > 0
        vectors = {}
        for site in self.site_names:
            means = self._means(site)
            vectors[site] = means.new_full((len(topical), means.shape[1]), torch.nan)
            vectors[site][topical] = means
        return vectors, seen

    def compare_vectors(
        self,
        vectors: Mapping[str, Float[Tensor, "n_words _"]],
        seen: Bool[Tensor, "n_words"] | None = None,
        layers: Mapping[str, int] | None = None,
    ) -> ProbeResult:
        """Return the probe's measures for given vectors, such as an embedding matrix.

        Batches measured so far are ignored.

        Args:
            vectors: by name, a vector for each word of ``topics``.
            seen: the words to compare. ``None``: all that have a topic.
            layers: by name, for the result's table. 0, the embedding, if not given.

        Raises:
            InputError: for another number of vectors than words, or NaN or infinity in one that is compared.

        Example:
            >>> probe = TopicEmbedding(torch.tensor([0, 0, 1, 1]), n_permutations=0)
            >>> matrix = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
            >>> probe.compare_vectors({"matrix": matrix}).sel("mean", similarity="dot").tolist()
            [[2.5, 0.0]]
        """
        topical = self._known.row >= 0
        compared = torch.ones_like(topical) if seen is None else seen.cpu()
        for name, rows in {**vectors, "seen": compared}.items():
            if len(rows) != len(topical):
                raise InputError(
                    f"{name!r} has {len(rows)} rows, but topics has {len(topical)} words; give one row per word"
                )
        for name, rows in vectors.items():
            if not bool(rows[(topical & compared).to(rows.device)].isfinite().all()):
                raise InputError(f"{name!r} has NaN or infinity in the vector of a word; leave that word out with seen")
        rows_by_name = ((name, rows.detach().cpu()[topical]) for name, rows in vectors.items())
        return self._compared(rows_by_name, compared[topical], {name: (layers or {}).get(name, 0) for name in vectors})

    def _compared(
        self,
        vectors: Iterable[tuple[str, Float[Tensor, "topical _"]]],
        seen: Bool[Tensor, "topical"],
        layers: Mapping[str, int],
    ) -> ProbeResult:
        """Return the result of the vectors of all words with a topic at each site.

        Args:
            vectors: by site, one site after another.
            seen: which of the words to compare.
            layers: by site.
        """
        notes = [] if bool(seen.all()) else [f"{int((~seen).sum())} of {len(seen)} words with a topic were not seen"]
        sums = TopicSimilarityGroups(self._known.group[seen], self._known, self.self_pairs)
        observed = []
        nulls = []
        for site, rows in vectors:
            observed.append(sums.similarity(rows[seen]))
            nulls.append(sums.null(rows[seen], self.n_permutations, self.seed))
            if bool((rows[seen] == 0).all(dim=1).any()):
                notes.append(f"{site}: a word's vector is zero, so the mean cosine is NaN")
        mean = torch.stack([similarity.mean for similarity in observed])
        values: dict[str, Shaped[Tensor, "..."]] = {
            "sum": torch.stack([similarity.sum for similarity in observed]),
            "mean": mean,
            "pairs": sums.pairs,
        }
        axes: dict[str, tuple[str, ...]] = dict.fromkeys(("sum", "mean"), ("site", "similarity", "bucket"))
        axes["pairs"] = ("bucket",)
        ratio = torch.stack([similarity.ratio for similarity in observed])
        ratio_null = torch.stack([null.ratio for null in nulls])
        difference = torch.stack([similarity.difference for similarity in observed])
        difference_null = torch.stack([null.difference for null in nulls])
        tests = self._with_null("ratio", ratio, ratio_null)
        tie = ROUNDING_TIE * mean.abs().amax(dim=-1)  # dot products have a unit
        tests |= self._with_null("difference", difference, difference_null, "difference_p_value", tie)
        axes |= dict.fromkeys(tests, ("site", "similarity"))
        notes += self._empty_notes(sums.pairs, BUCKETS[1:]) + self._null_notes(ratio, ratio_null, sums.pairs)
        return self.result(
            values | tests,
            axes,
            {"site": list(layers), "similarity": list(SIMILARITIES), "bucket": list(BUCKETS[1:])},
            layers=layers,
            metadata={"n_words": int(seen.sum())},
            notes=notes,
        )
