"""Topic models, fitted once or given, and the documents that the models read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mechclust.commands.topics.config import TopicsConfig
from mechclust.commands.topics.topic_file import (
    FittedTopics,
    check_fits,
    load_topics,
    models_of_seeds,
    save_topics,
    with_seed,
)
from mechclust.commands.topics.variants import check_pairs
from mechclust.jobs import progress_bar
from mechclust.report.folder import check_folder_subject
from mechclust.report.manifest import WAY_OUT
from probes.store.digest import digest_of
from probes.store.files import read_json, write_json
from tasks import CorpusStream, InputError
from tasks.text.stop_words import read_stop_words
from tasks.text.topic_model import check_enough_for_topics, fit_topics_to_counts
from tasks.text.vocabulary import Vocabulary
from tasks.text.word_counts import WordCountsOnDisk
from tasks.text.words import words_of

TOPICS = "topics.safetensors"  # in the folder of a run; --topic-model of another
_DOCUMENTS = "documents.json"
TOPIC_SEEDS = (0, 1, 2)
_IDENTIFYING_BYTES = 2**20  # of each file of a corpus


@dataclass(frozen=True)
class Documents:
    """The documents that every model reads.

    Attributes:
        stream: the corpus.
        corpus: digest of the corpus.
        texts: documents drawn from it.
        n_documents: number of documents in the corpus.
        notes: parts of the corpus that were left out.
        key: says of which corpus and how they were drawn.
    """

    stream: CorpusStream
    corpus: str
    texts: Sequence[str]
    n_documents: int
    notes: Sequence[str]
    key: str

    def save(self, path: Path) -> None:
        """Write them as JSON: drawing them again would read the whole corpus."""
        sample = {"key": self.key, "documents": self.texts, "n_documents": self.n_documents, "notes": self.notes}
        write_json(path, sample)


@dataclass(frozen=True)
class Texts:
    """Topics and documents that every model is measured with.

    Attributes:
        fitted: topic models that differ in their seed.
        corpus: digest of the corpus.
        documents: the documents that models read.
        n_documents: number of documents in the corpus.
        notes: parts of the corpus that were left out.
    """

    fitted: FittedTopics
    corpus: str
    documents: Sequence[str]
    n_documents: int
    notes: Sequence[str]


def given_topics(config: TopicsConfig) -> FittedTopics | None:
    """Return the topic models of the file that is given, or those of the given seeds. ``None`` without a file.

    Raises:
        InputError: for a file of other settings or another tokenizer, without a seed, or with too few words.
    """
    if config.topic_model is None:
        return None
    path = config.topic_model
    fitted = load_topics(path)
    settings = dict(config.given)
    if "stop_words" in settings:
        settings["stop_words"] = _stop_words_key(settings["stop_words"])
    check_fits(path, fitted, **settings)
    check_pairs(len(fitted.words), config.thresholds)
    if not config.topic_seeds:
        return fitted
    lacking = [seed for seed in config.topic_seeds if seed not in fitted.seeds]
    if lacking:
        seeds = ", ".join(map(str, fitted.seeds))
        raise InputError(
            f"{str(path)!r} has no topic model of seed {lacking[0]} (it has {seeds}); leave out --topic-seeds, or "
            "--topic-model"
        )
    return models_of_seeds(fitted, sorted(config.topic_seeds))


def read_documents(config: TopicsConfig, out: Path) -> Documents:
    """Return the documents to measure, read from ``out`` if it already holds them. Nothing is written.

    Raises:
        InputError: for a corpus that cannot be read, and an ``out`` with another corpus.
    """
    stream = CorpusStream(config.corpus, config.split, config.min_words, config.least_words, config.text_field)
    corpus = _digest(stream)
    check_folder_subject(out, {"corpus": corpus})
    key = digest_of([corpus, repr((config.max_documents, config.seed))])
    path = out / _DOCUMENTS
    if path.exists():
        with suppress(InputError, KeyError, TypeError):  # a damaged one is drawn again
            kept = read_json(path)
            if kept["key"] == key:
                return Documents(stream, corpus, kept["documents"], kept["n_documents"], kept["notes"], key)
    texts = list(stream.sample(config.max_documents, config.seed).documents)
    n_documents = sum(reading.documents for reading in stream.readings)
    notes = list(stream.notes)
    empty = [str(reading.path) for reading in stream.readings if not reading.documents + reading.short]
    if empty:
        files = "1 file holds no word and was" if len(empty) == 1 else f"{len(empty)} files hold no word and were"
        notes.append(f"{files} left out: {empty[0]!r}{' and others' if empty[1:] else ''}.")
    return Documents(stream, corpus, texts, n_documents, notes, key)


def read_texts(
    documents: Documents,
    given: FittedTopics | None,
    config: TopicsConfig,
    out: Path,
    check_words: Callable[[Sequence[str]], None],
    *,
    progress: bool = False,
) -> Texts:
    """Return the documents with topic models: the given ones, those that ``out`` holds, or new ones.

    New ones are fitted once for each seed, and saved one by one.

    Args:
        documents: the documents to measure.
        given: topic models of a file.
        config: the settings.
        out: folder of the run. Documents and new topic models are kept there.
        check_words: called with the vocabulary before topics are fitted and anything is written.
        progress: show progress bars.

    Raises:
        InputError: for too few words or documents, topics of another vocabulary than the documents', thresholds that
            leave each topic one word, and an ``out`` with topics of other settings.
    """
    fitted = _kept(out / TOPICS, documents.corpus, config) if given is None else given
    seeds = sorted(config.topic_seeds or TOPIC_SEEDS) if given is None else given.seeds
    lacking = [seed for seed in seeds if seed not in fitted.seeds]
    with tempfile.TemporaryDirectory() as folder:
        bags = _bags(documents.stream, config, folder, progress) if lacking else None
        words = fitted.words if bags is None else bags.vocabulary.words
        check_pairs(len(words), config.thresholds)
        if bags is not None:
            check_enough_for_topics(bags.shape[0], config.fitting["n_topics"])
            check_words(words)
        _check_known(words, documents.texts, config)
        documents.save(out / _DOCUMENTS)
        if bags is not None:
            fitted = _fit(bags, config, lacking, fitted, out / TOPICS, progress)
    notes = [*documents.notes]
    if given is not None and given.corpus != documents.corpus:
        notes.append(f"The topics of {str(config.topic_model)!r} were fitted on another corpus than this one.")
    return Texts(models_of_seeds(fitted, seeds), documents.corpus, documents.texts, documents.n_documents, notes)


# ---- topics ----


def _fit(
    bags: WordCountsOnDisk,
    config: TopicsConfig,
    seeds: Sequence[int],
    fitted: FittedTopics,
    path: Path,
    progress: bool,
) -> FittedTopics:
    """Fit a topic model for each seed, and save it next to those that were fitted before."""
    n_topics, passes = config.fitting["n_topics"], config.fitting["passes"]
    for seed in seeds:
        model = fit_topics_to_counts(bags.vocabulary.words, bags, n_topics, passes, seed, progress=progress)
        fitted = replace(with_seed(fitted, seed, model), undercount=bags.vocabulary.undercount)
        save_topics(path, fitted)
    return fitted


def _stop_words_key(stop_words: str) -> str:
    """Return a text that identifies a choice of stop words: for a file, by the words in it."""
    if not Path(stop_words).is_file():
        return stop_words
    return f"{Path(stop_words).name}, {digest_of(sorted(read_stop_words(stop_words)))[:16]}"


def _kept(path: Path, corpus: str, config: TopicsConfig) -> FittedTopics:
    """Return topic models that were fitted on this corpus with these settings, if there are any.

    Raises:
        InputError: for others, which would be lost.
    """
    settings = {**config.fitting, "stop_words": _stop_words_key(config.fitting["stop_words"])}
    fitted = FittedTopics([], [], settings, corpus)
    if path.exists():
        with suppress(InputError):  # a damaged one is fitted again
            fitted = load_topics(path)
    if fitted.corpus != corpus:
        raise InputError(f"{str(path.parent)!r} holds topics fitted on another corpus; {WAY_OUT}")
    for name, value in settings.items():
        if fitted.settings.get(name) != value:
            raise InputError(
                f"{str(path.parent)!r} holds topics fitted with {name} {fitted.settings.get(name)!r}, not {value!r}; "
                "give the same, or another folder with --out"
            )
    return fitted


def _bags(stream: CorpusStream, config: TopicsConfig, folder: str, progress: bool) -> WordCountsOnDisk:
    settings = config.fitting
    limits = (settings["vocabulary"], settings["no_below"], settings["no_above"], settings["stop_words"])
    try:
        words = Vocabulary.count(stream, *limits, progress=progress)
    except InputError as error:  # in the command's words
        message = str(error).replace("min_documents", "no_below").replace("max_share", "no_above")
        raise InputError(message) from None
    documents = progress_bar(stream, desc="weighing words", unit="document") if progress else stream
    return WordCountsOnDisk.gather(documents, words, folder, settings["weights"])


# ---- documents ----


def _check_known(topic_words: Sequence[str], documents: Sequence[str], config: TopicsConfig) -> None:
    """Refuse topics without any word in the documents."""
    known = set(topic_words)
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
    """Return a digest of how a corpus is read, and of its files' names, sizes and beginnings.

    A dump takes hours to read through.
    """
    parts: list[str | bytes] = [repr((stream.split, stream.min_words, stream.least_words, stream.text_field))]
    for path in stream.files:
        with open(path, "rb") as file:
            parts += [path.name, str(path.stat().st_size), file.read(_IDENTIFYING_BYTES)]
    return digest_of(parts)
