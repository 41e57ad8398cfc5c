"""Topic models fitted once, with several seeds, as one file that every model of a suite is measured with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from probes.store.digest import digest_of
from probes.store.safetensors_files import read_safetensors, write_safetensors
from probes.store.versions import package_versions
from tasks import InputError, TopicModel
from tasks.text.topic_model import fit_topics_to_counts
from tasks.text.word_counts import WordCounts
from tasks.text.words import words_of

TOPIC_FILE_FORMAT = "mechclust-topics-1"
TOKENIZER = "mechclust-words-1"  # definition of a word: tasks.text.words
_WAY = "fit the topics anew (leave out --topic-model), or give a file made from this corpus with the same settings"


@dataclass(frozen=True, eq=False)
class FittedTopics:
    """Topic models of one vocabulary that differ in their seed.

    Attributes:
        models: one per seed, over the same words.
        seeds: of the models, in rising order.
        settings: settings of the fit, such as topics, passes and weights, as JSON.
        corpus: digest of the texts of the fit.
        tokenizer: the rule that defines words.
        undercount: see ``Vocabulary``.
    """

    models: Sequence[TopicModel]
    seeds: Sequence[int]
    settings: Mapping[str, Any] = field(default_factory=dict)
    corpus: str = ""
    tokenizer: str = TOKENIZER
    undercount: int = 0

    @property
    def words(self) -> list[str]:
        """The vocabulary."""
        return self.models[0].words

    @property
    def vocabulary(self) -> str:
        """The digest of the words."""
        return digest_of(self.words)


def fit_seeds(
    counts: WordCounts,
    seeds: Iterable[int],
    n_topics: int = 100,
    passes: int = 6,
    *,
    settings: Mapping[str, Any] | None = None,
    corpus: str = "",
    progress: bool = False,
) -> FittedTopics:
    """Return a topic model for each seed, see ``tasks.text.topic_model.fit_topics_to_counts``.

    Args:
        counts: of the corpus.
        seeds: one model each.
        n_topics: number of topics.
        passes: times through the corpus.
        settings: further settings of the counts, kept in the file.
        corpus: digest of the texts, kept in the file.
        progress: show progress bars.

    Raises:
        InputError: for no seeds, or one given twice, and as ``fit_topics_to_counts``.
    """
    seeds = list(seeds)
    _check_seeds(seeds)
    models = [fit_topics_to_counts(counts, n_topics, passes, seed, progress=progress) for seed in sorted(seeds)]
    used = {"n_topics": n_topics, "passes": passes, **(settings or {})}
    return FittedTopics(models, sorted(seeds), used, corpus)


def save_topics(path: str | Path, fitted: FittedTopics) -> None:
    """Write topic models as one safetensors file, whole or not at all.

    Tensors: ``weights`` ``[seeds n_topics n_words]`` float64, ``shares`` ``[seeds n_topics]`` float64, ``seeds``, and
    ``words``, which are UTF-8 with a line end after each.

    Raises:
        InputError: if it cannot be written.
    """
    models = fitted.models
    shares = [
        torch.full((m.n_topics,), torch.nan, dtype=torch.float64) if m.shares is None else m.shares for m in models
    ]
    tensors = {
        "weights": torch.stack([model.weights.double() for model in models]),
        "shares": torch.stack(shares),
        "seeds": torch.tensor(list(fitted.seeds), dtype=torch.int64),
        "words": torch.frombuffer(bytearray("".join(f"{word}\n" for word in fitted.words).encode()), dtype=torch.uint8),
    }
    header = {
        "format": TOPIC_FILE_FORMAT,
        "tokenizer": fitted.tokenizer,
        "vocabulary": fitted.vocabulary,
        "corpus": fitted.corpus,
        "undercount": str(fitted.undercount),
        "settings": json.dumps(dict(fitted.settings), sort_keys=True),
        "versions": json.dumps(package_versions()),
    }
    write_safetensors(path, tensors, header)


def load_topics(path: str | Path) -> FittedTopics:
    """Read the topic models that ``save_topics`` wrote.

    Raises:
        InputError: for a file that is missing, damaged or another. Also for one whose words were separated by another
            rule than ours, or whose vocabulary differs from the declared one.
    """
    tensors, header = read_safetensors(path)
    if header.get("format") != TOPIC_FILE_FORMAT:
        raise InputError(
            f"{str(path)!r} is not a file of topics (its format is {header.get('format', 'not said')}); expected "
            f"{TOPIC_FILE_FORMAT}, as mechclust topics writes it"
        )
    tokenizer = header.get("tokenizer", "not said")
    if tokenizer != TOKENIZER:
        raise InputError(
            f"the words of {str(path)!r} were told apart by another tokenizer ({tokenizer}; ours is {TOKENIZER}); fit "
            "the topics anew (leave out --topic-model)"
        )
    words = bytes(tensors["words"].numpy()).decode().split("\n")[:-1]
    other_words = [word for word in words if words_of(word) != [word]]
    if other_words:
        raise InputError(
            f"the words of {str(path)!r} were told apart by another tokenizer ({other_words[0]!r} is not one word in "
            "lower case); fit the topics anew (leave out --topic-model)"
        )
    weights = tensors["weights"]
    if digest_of(words) != header.get("vocabulary") or weights.shape[2] != len(words):
        raise InputError(
            f"{str(path)!r} says that its vocabulary is {header.get('vocabulary')}, and its {len(words)} words are "
            f"others; {_WAY}"
        )
    models = [
        TopicModel(words, part, None if bool(share.isnan().any()) else share)
        for part, share in zip(weights, tensors["shares"], strict=True)
    ]
    return FittedTopics(
        models,
        tensors["seeds"].tolist(),
        settings=json.loads(header["settings"]),
        corpus=header.get("corpus", ""),
        tokenizer=tokenizer,
        undercount=int(header.get("undercount", 0)),
    )


def check_fits(path: str | Path, fitted: FittedTopics, **settings: Any) -> None:
    """Refuse topics that were fitted with other settings.

    Args:
        path: of the file, for the message.
        fitted: the contents of the file.
        **settings: settings that must equal the file's, such as ``n_topics``.

    Raises:
        InputError: naming the first difference.
    """
    for name, value in settings.items():
        if name in fitted.settings and fitted.settings[name] != value:
            raise InputError(
                f"the topics of {str(path)!r} were fitted with {name} {fitted.settings[name]!r}, and {value!r} is "
                f"asked for; give the file's own, or {_WAY}"
            )


def models_of_seeds(fitted: FittedTopics, seeds: Sequence[int]) -> FittedTopics:
    """Return the topic models of some of the seeds, in their order."""
    known = dict(zip(fitted.seeds, fitted.models, strict=True))
    return replace(fitted, models=[known[seed] for seed in seeds], seeds=list(seeds))


def merge_topics(parts: Sequence[FittedTopics]) -> FittedTopics:
    """Merge topic models of several files, such as of seeds that were fitted by several jobs.

    Raises:
        InputError: for none, for files of other words, settings or texts, and for a seed that is in two of them.
    """
    if not parts:
        raise InputError("no topic models to merge; give at least one")
    first = parts[0]
    for part in parts[1:]:
        for what in ("tokenizer", "vocabulary", "settings", "corpus"):
            expected = getattr(first, what)
            value = getattr(part, what)
            if value != expected:
                raise InputError(
                    f"topic models with other {what} cannot be merged ({expected} and {value}); fit all with the same "
                    "settings on the same corpus"
                )
    models: dict[int, TopicModel] = {}
    seeds: list[int] = []
    for part in parts:
        models |= zip(part.seeds, part.models, strict=True)
        seeds += part.seeds
    _check_seeds(seeds)
    return replace(first, models=[models[seed] for seed in sorted(seeds)], seeds=sorted(seeds))


def _check_seeds(seeds: Sequence[int]) -> None:
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds of the topic models: {list(seeds)}; expected one or several different integers")
