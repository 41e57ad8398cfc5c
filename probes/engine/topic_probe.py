"""What the two probes of topic structure share: which word stands where, its topics, and the null."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from probes.engine.hooks import Models
from probes.engine.probe import Probe
from probes.engine.readout import all_tokens
from probes.engine.sites import Site, Sites
from probes.functional.topic_attention import WordTopics
from tasks import Batch, InputError
from tasks.errors import check_at_least


class TopicProbe(Probe):
    """What the two probes share: which word stands where, and its topics."""

    readout = all_tokens()

    def __init__(self, topics: ArrayLike, at: Sites, words: str | None, n_permutations: int, seed: int) -> None:
        check_at_least(n_permutations=(n_permutations, 0), seed=(seed, 0))
        self.topics, self.at, self.words = topics, at, words
        self.n_permutations, self.seed = n_permutations, seed
        self._known = WordTopics.from_topics(topics)

    def bind(self, model: Models) -> list[Site]:
        """Also checks that the topics fit the model's vocabulary, where its token ids are the words."""
        d_vocab = getattr(getattr(model, "cfg", None), "d_vocab", None)
        if self.words is None and d_vocab is not None and d_vocab != len(self._known.row):
            raise InputError(
                f"topics are given for {len(self._known.row)} words, but the model's vocabulary has {d_vocab} tokens; "
                "give one row per token, or name a per-token label with words="
            )
        return super().bind(model)

    def _words(self, batch: Batch) -> Tensor:
        """``[batch pos]`` the word at each position, -1 at padding."""
        words = batch.tokens if self.words is None else batch.label(self.words, per="token")
        return words if batch.attention_mask is None else torch.where(batch.attention_mask, words, -1)

    def _with_null(self, name: str, observed: Tensor, null: Tensor, p_name: str = "p_value") -> dict[str, Tensor]:
        """The measure ``name``, central 95% of its ``null [... n_permutations]``, and the share at least as high.

        Relabellings for which it is undefined are left out.
        """
        low, high, p = (torch.full_like(observed, torch.nan) for _ in range(3))
        if self.n_permutations:
            low, high = torch.nanquantile(null, torch.tensor([0.025, 0.975], dtype=null.dtype), dim=-1)
            defined = (~null.isnan()).sum(dim=-1)
            p = (1.0 + (null >= observed[..., None]).sum(dim=-1).double()) / (1 + defined)
            p = torch.where(torch.isnan(observed) | (defined == 0), torch.nan, p)
        return {name: observed, f"{name}_null_low": low, f"{name}_null_high": high, p_name: p}

    def _null_notes(self, ratio: Tensor, null: Tensor, pairs: Tensor) -> list[str]:
        """Why a ratio, its interval or its p-value is NaN although there are pairs."""
        notes = []
        if bool(ratio.isnan().any()) and bool((pairs > 0).all()):
            notes.append("a ratio is NaN where both of its means are 0")
        if not self.n_permutations:
            notes.append("n_permutations is 0, so there is no interval and no p_value")
        elif undefined := int(null.isnan().flatten(0, -2).any(dim=0).sum()):
            notes.append(
                f"{undefined} of {self.n_permutations} relabellings have no ratio somewhere "
                "(no such pair met, or both means are 0), and are left out there"
            )
        return notes

    def _empty_notes(self, pairs: Tensor, buckets: Sequence[str]) -> list[str]:
        what = {
            "same_word": "no token has a topic",
            "same_topic": "no two different words of one topic met",
            "different_topic": "no two words of different topics met",
        }
        return [f"{b}: {what[b]}, so its mean is NaN" for b, n in zip(buckets, pairs.tolist(), strict=True) if not n]
