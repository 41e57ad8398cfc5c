"""Base class of the probes of topic structure: the word at each position, its topics, and the null distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from probes.engine.hooked_model import Models
from probes.engine.probe import Probe
from probes.engine.readout import all_tokens
from probes.engine.sites import Site, Sites
from probes.functional.permutation_test import ROUNDING_TIE, permutation_p_value
from probes.functional.word_topics import WordTopics
from tasks import Batch, InputError
from tasks.settings import check_count


class TopicProbe(Probe):
    """Base class of probes that measure words of known topics."""

    readout = all_tokens()
    units: str | None = None

    def __init__(self, topics: ArrayLike, at: Sites, words: str | None, n_permutations: int, seed: int) -> None:
        check_count(n_permutations=(n_permutations, 0), seed=(seed, 0))
        self.topics = topics
        self.at = at
        self.words = words
        self.n_permutations = n_permutations
        self.seed = seed
        self._known = WordTopics.from_topics(topics)

    def bind(self, model: Models) -> list[Site]:
        """Resolve the sites, and refuse topics that do not fit the model's vocabulary if its tokens are the words."""
        d_vocab = getattr(getattr(model, "cfg", None), "d_vocab", None)
        if self.words is None and d_vocab is not None and d_vocab != len(self._known.row):
            raise InputError(
                f"topics are given for {len(self._known.row)} words, but the model's vocabulary has {d_vocab} tokens; "
                "give one row per token, or name a per-token label with words="
            )
        return super().bind(model)

    def _units_of(self, batch: Batch) -> Int[Tensor, "batch"]:
        """Return the unit of each example, by default the example itself."""
        return batch.index if self.units is None else batch.label(self.units, per="example")

    def _generators(self, units: Int[Tensor, "batch"]) -> list[np.random.Generator]:
        """Return a generator for each unit, which depends on the seed and the unit alone. Refuse negative units."""
        numbers = units.long().tolist()
        check_count(**{self.units or "index": (min(numbers, default=0), 0)})
        return [np.random.default_rng([self.seed, unit]) for unit in numbers]

    def _with_null(
        self,
        name: str,
        observed: Float[Tensor, "*place"],
        null: Float[Tensor, "*place permutation"],
        p_name: str = "p_value",
        tie: Float[Tensor, "*place"] | float = ROUNDING_TIE,
    ) -> dict[str, Float[Tensor, "*place"]]:
        """Return a measure, the central 95% of its null distribution, and the share of it that is at least as high.

        Relabellings for which the measure is undefined are left out, and lower by ``tie`` counts as equal.
        """
        low = torch.full_like(observed, torch.nan)
        high = torch.full_like(observed, torch.nan)
        p = torch.full_like(observed, torch.nan)
        if self.n_permutations:
            low, high = torch.nanquantile(null, torch.tensor([0.025, 0.975], dtype=null.dtype), dim=-1)
            p = permutation_p_value(observed, null.movedim(-1, 0), tie)
        return {name: observed, f"{name}_null_low": low, f"{name}_null_high": high, p_name: p}

    def _null_notes(
        self, ratio: Float[Tensor, "*place"], null: Float[Tensor, "*place permutation"], pairs: Int[Tensor, "..."]
    ) -> list[str]:
        """Return notes on why a ratio, its interval or its p-value is NaN although there are pairs."""
        notes = []
        if bool(ratio.isnan().any()) and bool((pairs > 0).all()):
            notes.append("a ratio is NaN where both of its means are 0")
        if not self.n_permutations:
            return [*notes, "n_permutations is 0, so there is no interval and no p_value"]
        undefined = int(null.isnan().flatten(0, -2).any(dim=0).sum())
        if undefined:
            notes.append(
                f"{undefined} of {self.n_permutations} relabellings have no ratio somewhere "
                "(no such pair met, or both means are 0), and are left out there"
            )
        return notes

    def _empty_notes(self, pairs: Int[Tensor, "bucket"], buckets: Sequence[str]) -> list[str]:
        """Return a note on each bucket without pairs."""
        reasons = {
            "same_word": "no token has a topic",
            "same_topic": "no two different words of one topic met",
            "different_topic": "no two words of different topics met",
        }
        n_pairs = dict(zip(buckets, pairs.tolist(), strict=True))
        return [f"{bucket}: {reasons[bucket]}, so its mean is NaN" for bucket, n in n_pairs.items() if not n]
