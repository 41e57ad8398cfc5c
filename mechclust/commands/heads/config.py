"""Settings of ``mechclust heads``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mechclust.commands.settings import CorpusSettings, UntrainedSettings, check_window
from mechclust.models.repeated_tokens import PERIODS, SEQUENCE_LENGTH
from probes import HeadRoles
from tasks import InputError, RepeatedTokens
from tasks.settings import MAX_SIZE, AtLeast, AtMost, Count, DrawsOrZero, Several, Size

MAX_SEQUENCES = 10**6


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(UntrainedSettings, CorpusSettings):
    """Settings of ``mechclust heads``; ``mechclust heads --help`` also shows those that commands share.

    Args:
        corpus: natural text to measure too: text, JSON lines, parquet and MediaWiki dumps, or directories of them; .gz
            and .bz2 too. By default only repeated random tokens are measured.
        n_sequences: number of sequences of repeated random tokens.
        length: tokens of such a sequence, at most the model's context.
        periods: fewest and most tokens before they repeat.
        max_documents: measure at most this many documents of the corpus, drawn at random.
        max_length: tokens of a document that are read, at most the model's context.
        max_offset: the largest fixed offset, in tokens before the query, that is looked for.
        n_permutations: random permutations of the token ids behind the p-values; by default as many as Holm's
            correction over all heads needs, 0 for none.
        tokens_per_batch: most tokens per forward pass, padding included; documents of like length go together.
        seed: of the random tokens, the documents drawn and the permutations.

    Example:
        >>> HeadsConfig(n_sequences=64).periods
        (20, 40)
    """

    corpus: tuple[Path, ...] = ()
    n_sequences: Annotated[int, AtLeast(2), AtMost(MAX_SEQUENCES)] = 32
    length: Annotated[int, AtLeast(2), AtMost(MAX_SIZE)] = SEQUENCE_LENGTH
    periods: tuple[Size, Size] = PERIODS
    max_documents: Several = 32
    max_length: Several = 96
    max_offset: Several = 8
    n_permutations: DrawsOrZero | None = None
    tokens_per_batch: Count = 2048  # the scores of each example with permuted token ids are kept

    def check(self) -> None:
        """Refuse settings that cannot be measured with, before any work."""
        super().check()
        RepeatedTokens(self.length, self.length, self.periods, n_test=self.n_sequences, seed=self.seed)  # checks them
        least = self.max_offset + 2
        if self.periods[0] < least:
            raise InputError(
                f"periods begins at {self.periods[0]}, and max_offset is {self.max_offset}; give periods of at least "
                f"{least}, so that no fixed offset leads to an earlier occurrence"
            )
        if self.length > self.tokens_per_batch:
            raise InputError(
                f"tokens_per_batch is {self.tokens_per_batch}, fewer than the {self.length} tokens of a sequence; give "
                f"at least {self.length}, or shorter sequences (--length)"
            )
        if self.corpus:
            check_window(self.max_length, self.tokens_per_batch)

    def probe(self, n_permutations: int | None) -> HeadRoles:
        """Return the probe that measures the roles."""
        return HeadRoles(max_offset=self.max_offset, n_permutations=n_permutations, seed=self.seed)
