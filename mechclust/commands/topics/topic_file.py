"""Topic models fitted once, with several seeds, as one file that every model of a run is measured with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from probes.store.safetensors_files import read_safetensors, write_safetensors
from probes.store.versions import package_versions
from tasks import InputError, TopicModel
from tasks.text.words import words_of

TOPIC_FILE_FORMAT = "mechclust-topics-1"
TOKENIZER = "mechclust-words-2"  # definition of a word: tasks.text.words


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


def with_seed(fitted: FittedTopics, seed: int, model: TopicModel) -> FittedTopics:
    """Return topic models with one more."""
    models = {**dict(zip(fitted.seeds, fitted.models, strict=True)), seed: model}
    return replace(fitted, models=[models[each] for each in sorted(models)], seeds=sorted(models))


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
            rule than ours.
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
    models = [
        TopicModel(words, part, None if bool(share.isnan().any()) else share)
        for part, share in zip(tensors["weights"], tensors["shares"], strict=True)
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
                "asked for; give the file's own, or fit the topics anew (leave out --topic-model), or give a file made "
                "from this corpus with the same settings"
            )


def models_of_seeds(fitted: FittedTopics, seeds: Sequence[int]) -> FittedTopics:
    """Return the topic models of some of the seeds, in their order."""
    known = dict(zip(fitted.seeds, fitted.models, strict=True))
    return replace(fitted, models=[known[seed] for seed in seeds], seeds=list(seeds))
