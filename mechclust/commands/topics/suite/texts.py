"""What a suite takes from its corpus: topic models, fitted once or given, and the documents that encoders read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mechclust.commands.topics.suite.config import SuiteConfig
from mechclust.commands.topics.topic_file import (
    FittedTopics,
    check_fits,
    fit_seeds,
    load_topics,
    merge_topics,
    save_topics,
    subset,
)
from mechclust.jobs import progress_bar
from probes.store.digest import digest_of
from probes.store.files import read_json, write_json
from tasks import CorpusStream, InputError
from tasks.text.bags import Bags
from tasks.text.topic_model import check_corpus_size, least_threshold, read_stop_words
from tasks.text.vocabulary import Vocabulary
from tasks.text.words import words_of

TOPICS = "topics.safetensors"  # in the folder of a suite; --topic-model of another
_DOCUMENTS = "documents.json"
_SEEDS = (0, 1, 2)
_HEAD = 2**20  # bytes of each file that identify a corpus


@dataclass(frozen=True)
class Texts:
    """What every encoder of a suite is measured with.

    Attributes:
        fitted: topic models that differ in their seed.
        documents: the documents that encoders read.
        n_documents: number of documents in the corpus.
        notes: what was left out of the corpus.
    """

    fitted: FittedTopics
    documents: Sequence[str]
    n_documents: int
    notes: Sequence[str]


def read_texts(config: SuiteConfig, out: Path, *, progress: bool = False) -> Texts:
    """Topic models and documents; those that ``out`` already holds are read from there.

    Raises:
        InputError: for a corpus that cannot be read, a topic model of other settings, another tokenizer or another
            vocabulary than the documents', and thresholds that leave each topic one word.
    """
    given = None if config.topic_model is None else _given(config.topic_model, config)
    stream = CorpusStream(config.corpus, config.split, config.min_words, config.least_words, config.text_field)
    corpus = _digest(stream)
    if given is not None:
        check_pairs(len(given.words), config.thresholds)
    fitted = _fitted(stream, corpus, config, out, progress) if given is None else given
    check_pairs(len(fitted.words), config.thresholds)
    documents, n, notes = _sample(stream, corpus, config, out, progress)
    _check_known(fitted, documents, config)
    if given is not None and given.corpus != corpus:
        notes = [*notes, f"The topics of {str(config.topic_model)!r} were fitted on another corpus than this one."]
    return Texts(fitted, documents, n, notes)


def check_pairs(n_words: int, thresholds: Sequence[float]) -> None:
    """Refuse thresholds none of which lets two words share a topic."""
    if int(n_words * max(thresholds)) > 0:
        return
    least = least_threshold(n_words)
    more = f"a threshold of at least {least:g}, or more text" if least < 1 else "more text"
    raise InputError(
        f"the topics have {n_words} different word{'s' * (n_words != 1)}, of which the largest threshold, "
        f"{max(thresholds):g}, keeps one per topic, and comparing words of a topic takes two; give {more}"
    )


# ---- topics ----


def _given(path: Path, config: SuiteConfig) -> FittedTopics:
    """The topic models of a file, those of the seeds that are asked for."""
    fitted = load_topics(path)
    asked = dict(config.asked)
    if "stop_words" in asked:
        asked["stop_words"] = _named(asked["stop_words"])
    check_fits(path, fitted, **asked)
    if not config.topic_seeds:
        return fitted
    known = set(fitted.seeds)
    if lacking := [seed for seed in config.topic_seeds if seed not in known]:
        held = ", ".join(map(str, fitted.seeds))
        raise InputError(
            f"{str(path)!r} has no topic model of seed {lacking[0]} (it has {held}); leave out --topic-seeds, or "
            "--topic-model"
        )
    return subset(fitted, sorted(config.topic_seeds))


def _fitted(stream: CorpusStream, corpus: str, config: SuiteConfig, out: Path, progress: bool) -> FittedTopics:
    """One topic model per seed, each saved as soon as it is fitted; those that an earlier run fitted are not again."""
    wanted, whole = sorted(config.topic_seeds or _SEEDS), out / TOPICS
    settings = {**config.fitting, "stop_words": _named(config.fitting["stop_words"])}
    kept = _kept(whole, corpus, settings)
    if kept is not None and set(wanted) <= set(kept.seeds):
        return subset(kept, wanted)
    paths = {seed: out / "topics" / f"seed{seed}.safetensors" for seed in wanted}
    parts = {
        seed: subset(kept, [seed]) if kept is not None and seed in kept.seeds else _kept(path, corpus, settings)
        for seed, path in paths.items()
    }
    lacking = [seed for seed, part in parts.items() if part is None]
    if lacking:
        with tempfile.TemporaryDirectory() as folder:
            bags = _bags(stream, config, folder, progress)
            counts = bags.word_counts
            check_pairs(len(counts.words), config.thresholds)
            check_corpus_size(counts.counts.shape[0], config.fitting["n_topics"])
            for seed in lacking:
                fitted = fit_seeds(
                    counts, [seed], settings["n_topics"], settings["passes"], settings=settings,
                    corpus=corpus, progress=progress,
                )  # fmt: skip
                parts[seed] = fitted = replace(fitted, undercount=bags.vocabulary.undercount)
                save_topics(paths[seed], fitted)
    fitted = merge_topics([part for part in parts.values() if part is not None])
    save_topics(whole, fitted)
    shutil.rmtree(out / "topics", ignore_errors=True)
    return fitted


def _named(stop_words: str) -> str:
    """What stands for a choice of stop words: of a file, what is in it."""
    if not Path(stop_words).is_file():
        return stop_words
    return f"{Path(stop_words).name}, {digest_of(sorted(read_stop_words(stop_words)))[:16]}"


def _kept(path: Path, corpus: str, settings: dict[str, Any]) -> FittedTopics | None:
    """Topic models that were fitted on the same corpus with the same settings."""
    if path.exists():
        with suppress(InputError):  # a damaged one is fitted again
            found = load_topics(path)
            if found.corpus == corpus and dict(found.settings) == settings:
                return found
    return None


def _bags(stream: CorpusStream, config: SuiteConfig, folder: str, progress: bool) -> Bags:
    asked = config.fitting
    try:
        words = Vocabulary.count(
            stream, asked["vocabulary"], asked["no_below"], asked["no_above"], asked["stop_words"], progress=progress
        )
    except InputError as error:  # in the command's words
        said = str(error).replace("min_documents", "no_below").replace("max_share", "no_above")
        raise InputError(said) from None
    return Bags.gather(_shown(stream, "weighing words", progress), words, folder, asked["weights"])


# ---- documents ----


def _sample(
    stream: CorpusStream, corpus: str, config: SuiteConfig, out: Path, progress: bool
) -> tuple[list[str], int, list[str]]:
    """Documents to measure on, how many there are in all, and what was left out of the corpus."""
    key = digest_of([corpus, repr((config.max_documents, config.seed))])
    path = out / _DOCUMENTS
    if path.exists():
        with suppress(InputError, KeyError, TypeError):  # a damaged one is drawn again
            kept = read_json(path)
            if kept["key"] == key:
                return kept["documents"], kept["n_documents"], kept["notes"]
    drawn = list(stream.sample(config.max_documents, config.seed).documents)
    n = sum(reading.documents for reading in stream.readings)
    found = {"key": key, "documents": drawn, "n_documents": n, "notes": stream.notes}
    write_json(path, found)
    return drawn, n, stream.notes


def _check_known(fitted: FittedTopics, documents: Sequence[str], config: SuiteConfig) -> None:
    """Refuse topics none of whose words is in the documents."""
    known = set(fitted.words)
    if any(not known.isdisjoint(words_of(text)) for text in documents):
        return
    if config.topic_model is None:
        raise InputError(
            f"none of the {len(known)} topic words is in the {len(documents)} documents measured; give a larger "
            "max_documents"
        )
    raise InputError(
        f"the topics of {str(config.topic_model)!r} are over another vocabulary than the corpus: none of their "
        f"{len(known)} words is in the {len(documents)} documents measured; give topics of such texts, or leave out "
        "--topic-model"
    )


def _digest(stream: CorpusStream) -> str:
    """What tells a corpus from others: how it is read, and its files' names, sizes and beginnings. A dump takes hours
    to read through."""
    parts: list[str | bytes] = [repr((stream.split, stream.min_words, stream.least_words, stream.text_field))]
    for path in stream.files:
        with open(path, "rb") as file:
            parts += [path.name, str(path.stat().st_size), file.read(_HEAD)]
    return digest_of(parts)


def _shown(stream: CorpusStream, what: str, progress: bool) -> Iterator[str]:
    yield from (progress_bar(stream, desc=what, unit="document") if progress else stream)
