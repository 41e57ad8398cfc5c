"""Settings of ``mechclust history``."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mechclust.commands.settings import ModelSettings, PromptSettings, check_map_prompts, check_resamples
from probes import CKA, ClusteringHead, Probe, TaskClusterARI, head_output, list_probes, residual
from probes.engine.registry import find_probe
from probes.engine.sites import Sites
from tasks import InputError
from tasks.errors import did_you_mean
from tasks.settings import (
    MAX_DRAWS,
    AtLeast,
    AtMost,
    Count,
    CountOrZero,
    DrawsOrZero,
    Repeats,
    Several,
    ShareBelowOne,
    check_different_settings,
)

PROBES = ("clusters", "cka", "heads", "topics")
AGAINST = ("last", "first", "previous")  # the checkpoints with which each is compared
MIN_CHECKPOINTS = 2


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(ModelSettings, PromptSettings):
    """Settings of ``mechclust history``; ``mechclust history --help`` also shows those that commands share.

    Args:
        revisions: revisions of MODEL on the Hugging Face hub, such as step0 step1000.
        checkpoints: folders of checkpoints, such as run/checkpoint-*; ordered by the step in their names.
        probes: what to measure: clusters (of hidden states, against the task), cka (with the last, first and previous
            checkpoint), heads (how strongly each head's output clusters by task), topics (attention within topics;
            needs --corpus), or a probe by its name in mechclust list, such as AttentionEntropy, with its default
            settings. By default clusters and cka, and also topics if there is a corpus.
        corpus: for topics: text, JSON lines, parquet and MediaWiki dumps, or directories of them; .gz and .bz2 too.
        text_field: where an object of JSON lines or a row of parquet has its text.
        n_topics: number of topics, fitted to the corpus once for all checkpoints.
        threshold: each topic keeps the int(V * threshold) + 1 likeliest of V words.
        min_documents: words in fewer documents are left out of the topics.
        max_length: tokens per window of the corpus.
        n_init: k-means starts.
        n_permutations: random relabellings behind the chance levels of clusters, heads and topics.
        cka_permutations: random pairings behind the chance levels of CKA; 0 for none.
        n_resamples: random halves of the prompts, or of their units, behind the 95% intervals; 0 for none. For topics,
            halves of the documents.
        map_prompts: maximum number of prompts to show with the slider, chosen by their number in the file; 0 for none.
        map_layers: layers to show there; by default up to five, evenly spaced.
        attention_prompts: prompts whose attention is shown there, numbered from 0 as in the file.

    Example:
        >>> from pathlib import Path
        >>> HistoryConfig(Path("prompts.jsonl"), revisions=("step0", "step1000")).revisions
        ('step0', 'step1000')
    """

    revisions: tuple[str, ...] = ()
    checkpoints: tuple[Path, ...] = ()
    probes: tuple[str, ...] = ()
    corpus: tuple[Path, ...] = ()
    text_field: str = "text"
    n_topics: Several = 20
    threshold: ShareBelowOne = 0.005
    min_documents: Count = 5
    max_length: Several = 256
    n_init: Repeats = 5
    n_permutations: Annotated[int, AtLeast(19), AtMost(MAX_DRAWS)] = 999
    cka_permutations: DrawsOrZero = 39
    n_resamples: DrawsOrZero = 50
    map_prompts: CountOrZero = 500
    map_layers: tuple[int, ...] = ()
    attention_prompts: tuple[CountOrZero, ...] = (0,)

    def check(self) -> None:
        """Reject invalid settings before any work starts."""
        super().check()
        if bool(self.revisions) and bool(self.checkpoints):
            raise InputError("both --revisions and --checkpoints are given; give one of them")
        for name in self.probes:
            if name not in PROBES:
                self.registered(name)
        check_different_settings(probes=self.probes)
        if "topics" in self.probes and not self.corpus:
            raise InputError("--probes topics needs text; give --corpus, or leave topics out")
        check_resamples(self.n_resamples)
        if self.corpus and "topics" not in self.measured:
            raise InputError("--corpus is given and --probes leaves topics out; add topics, or leave out --corpus")
        if "heads" in self.probes and self.position == "mean":
            raise InputError("--probes heads reads one position per prompt, and --position is mean; give last or first")
        check_map_prompts(self.map_prompts)

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of the probes to run."""
        if self.probes:
            return self.probes
        return ("clusters", "cka", "topics") if self.corpus else ("clusters", "cka")

    @property
    def others(self) -> tuple[str, ...]:
        """The probes to run that have a registered name."""
        return tuple(name for name in self.measured if name not in PROBES)

    @property
    def needs_no_patterns(self) -> bool:
        """Whether probes measure hidden states of clusters and CKA, or attention, and nothing else."""
        kinds = [getattr(self.registered(name).at, "kind", "") for name in self.others]
        if "topics" in self.measured:
            kinds.append("attention")
        return set(kinds) <= {"attention"} and "heads" not in self.measured

    def registered(self, name: str) -> Probe:
        """Return a probe by its registered name, with its default settings and the run's readout.

        Raises:
            InputError: for an unknown name, and a probe that is broken or needs arguments.
        """
        known = [*PROBES, *(probe.name for probe in list_probes())]
        if name not in known:
            raise InputError(
                f"probes is {name!r}; expected {', '.join(PROBES)}, or a probe that mechclust list names"
                f"{did_you_mean(name, known)}"
            )
        registration = find_probe(name)
        probe = registration.new()
        if registration.make is not None and "readout" in inspect.signature(registration.make).parameters:
            probe = registration.make(readout=self.readout)
        return probe

    def clustering(self, at: Sites) -> TaskClusterARI:
        """Return the probe that clusters hidden states."""
        return TaskClusterARI(
            "task",
            at,
            self.readout,
            units=self.unit_label,
            n_init=self.n_init,
            n_permutations=self.n_permutations,
            n_resamples=self.n_resamples,
            keep_halves=True,
            seed=self.seed,
        )

    @property
    def cka(self) -> CKA:
        """The probe that compares the hidden states of two checkpoints."""
        return CKA(
            residual(),
            self.readout,
            n_resamples=self.n_resamples,
            n_permutations=self.cka_permutations,
            seed=self.seed,
            units=self.unit_label,
            keep_halves=True,
        )

    @property
    def heads(self) -> ClusteringHead:
        """The probe that reads the heads' outputs."""
        return ClusteringHead(
            "task", at=head_output(), query=self.readout, permutations=self.n_permutations, units=self.unit_label
        )
