"""What ``measure_clusters`` is given: prompts as tokens, their labels and features, and what can be refused first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechclust.commands.clusters.config import ClustersConfig
from mechclust.commands.clusters.features import TOKENS, WORDS, determines, surface_features, word_features
from mechclust.commands.units import Units, units_of
from mechclust.models.adapter_bases import adapter_notes
from mechclust.models.resolved import ResolvedModel
from mechclust.models.sizes import Sizes
from mechclust.models.tokenizers import prompt_batches, tokenization_of, tokenizer_and_sizes, what_is_wrong
from mechclust.report.chance import CHANCE_LEVEL
from mechclust.report.text import join
from probes.engine.identity import token_digests
from probes.engine.state import hashed
from probes.functional.adjusted_rand import n_relabellings
from probes.rows.row_store import read_index, shards
from tasks import Batch, InputError, LabelledPrompts
from tasks.errors import did_you_mean, suggest
from tasks.text.visible import quoted


@dataclass(frozen=True)
class Inputs:
    """Prompts, as they are measured.

    Attributes:
        texts: the prompts.
        index: ``[n]`` the place of each in the file, from 0.
        labels: of the file, name to one value per prompt.
        features: surface features, name to one value per prompt.
        batches: the prompts as tokens.
        sizes: of the model.
        tokenization: how texts became tokens.
        units: which prompts belong together.
        notes: what a reader must know.
    """

    texts: Sequence[str]
    index: Tensor
    labels: Mapping[str, Sequence[str]]
    features: Mapping[str, Sequence[str]]
    batches: Sequence[Batch]
    sizes: Sizes
    tokenization: Mapping[str, Any]
    units: Units
    notes: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)

    def left(self, given: str, config: ClustersConfig) -> list[str]:
        """Labels that are not told by ``given``, with ``within`` where that is asked for."""
        strata = [self.values[name] for name in (given, config.within) if name is not None]
        return [name for name in config.labels if not determines(self.labels[name], *strata)]

    @cached_property
    def values(self) -> dict[str, Sequence[str]]:
        """Labels and features by name."""
        return {**self.labels, **self.features}

    @cached_property
    def codes(self) -> dict[str, Tensor]:
        """The same as ``[n]`` integers: the place among the sorted values."""
        return {
            name: torch.from_numpy(np.unique(np.asarray(values), return_inverse=True)[1].astype(np.int64))
            for name, values in self.values.items()
        }


def read_inputs(model: ResolvedModel, config: ClustersConfig, tokenizer: Any = None) -> Inputs:
    """Prompts and their tokens, without loading weights.

    Raises:
        InputError: for prompts or settings that nothing can be measured with.
    """
    prompts = config.read_prompts()
    config.check()
    _check_labels(prompts, config)
    some, index = _drawn(prompts, config)
    units = units_of(some, config.units, within=config.within)
    some = units.added_to(some)
    reader, sizes = _read(model, config, tokenizer)
    batches = [
        replace(batch, index=index[batch.index])
        for batch in prompt_batches(
            some,
            reader,
            sizes,
            tokens_per_batch=config.tokens_per_batch,
            chat=config.chat,
            bos=config.bos,
            too_long=config.too_long,
        )
    ]
    ids: dict[int, list[int]] = {}
    for batch in batches:
        for i, row, length in zip(batch.index.tolist(), batch.tokens, batch.lengths().tolist(), strict=True):
            ids[i] = row[:length].tolist()
    found = surface_features(
        some.prompts,
        [ids[i] for i in index.tolist()],
        lambda i: str(reader.decode([i])),
        set(getattr(reader, "all_special_ids", ())),
    )
    features = {name: values for name, values in found.items() if name not in some.labels}
    inputs = Inputs(
        texts=some.prompts,
        index=index,
        labels={name: list(values) for name, values in some.labels.items()},
        features=features,
        batches=batches,
        sizes=sizes,
        tokenization=tokenization_of(reader, chat=config.chat, bos=config.bos),
        units=units,
        notes=[
            *_few(some, config),
            *_lost(prompts, some),
            *what_is_wrong(reader, batches, some.repeated),
            *adapter_notes([model]),
            units.sentence,
        ],
    )
    _check_given(inputs, config)
    _check_held_apart(inputs, config)
    return inputs


def check_same_prompts(inputs: Inputs, out: Path, rows: Path) -> None:
    """Refuse a folder that holds hidden states of other prompts, before a model is loaded.

    Args:
        inputs: the prompts.
        out: the folder.
        rows: where in it hidden states are.

    Raises:
        InputError: saying so.
    """
    index = torch.cat([batch.index for batch in inputs.batches])
    tokens = dict(zip(index.tolist(), torch.cat(list(map(token_digests, inputs.batches))).tolist(), strict=True))
    for model in ("trained", *(path.name for path in rows.glob("untrained-seed*"))):
        for shard in shards(rows / model):
            held = read_index(shard)
            pairs = zip(held["index"].tolist(), held["tokens"].tolist(), strict=True)
            if any(tokens.get(i) != digest for i, digest in pairs):
                raise InputError(
                    f"{str(out)!r} holds hidden states of other prompts or tokens; give the same, or another folder "
                    "with --out"
                )


def _read(model: ResolvedModel, config: ClustersConfig, tokenizer: Any) -> tuple[Any, Sizes]:
    """The tokenizer, and how large the model is."""
    own_tokenizer, sizes = tokenizer_and_sizes(model, trust_remote_code=config.trust_remote_code)
    reader = own_tokenizer if tokenizer is None else tokenizer
    if reader is None:
        raise InputError(
            f"{model.name!r} has no tokenizer to read prompts; give a Hugging Face checkpoint, or tokenizer="
        )
    return reader, sizes


def _check_labels(prompts: LabelledPrompts, config: ClustersConfig) -> None:
    n = min(len(prompts), config.max_rows or len(prompts))
    for name in config.labels:
        if name not in prompts.labels:
            raise InputError(f"{config.prompts} has no label {name!r}{suggest(name, prompts.labels)}")
        k = len(prompts.classes[name])
        if k < 2:
            raise InputError(
                f"{config.prompts} has one {name} only ({prompts.classes[name][0]!r}); clustering needs at least 2"
            )
        if n < k:
            raise InputError(f"{config.prompts} has fewer prompts than classes of {name!r} ({k}); give several of each")
        if n == k:
            raise InputError(
                f"{config.prompts} has {n} prompts for {k} classes of {name!r}, so that each prompt would be "
                "its own cluster, in any model; give several of each"
            )
    for k in config.n_clusters:
        if k >= n:
            raise InputError(f"{n} prompts cannot be split into {k} clusters; give fewer with --n-clusters")
    if config.within is not None:
        if config.within not in prompts.labels:
            raise InputError(f"{config.prompts} has no label {config.within!r}{suggest(config.within, prompts.labels)}")
        for name in config.labels:
            if determines(prompts.labels[name], prompts.labels[config.within]):
                raise InputError(
                    f"within each {config.within!r}, the prompts of {config.prompts} have only one {name!r}, so labels "
                    "cannot be permuted; choose another label, or leave out --within"
                )
    _check_named(prompts, config)


def _check_named(prompts: LabelledPrompts, config: ClustersConfig) -> None:
    """What is to be taken out, as far as it can be told without a tokenizer."""
    if config.given in ("auto", "none") or (config.given in TOKENS and config.given not in prompts.labels):
        return
    known = word_features(prompts.prompts) | dict(prompts.labels)
    if config.given not in known:
        names = [*WORDS, *TOKENS]
        raise InputError(
            f"{config.prompts} has no label {config.given!r}, and surface features are {join(names)}"
            f"{did_you_mean(config.given, [*known, *names])}"
        )
    _check_leaves(config.given, known[config.given], prompts.labels, config)


def _check_given(inputs: Inputs, config: ClustersConfig) -> None:
    """The same with what the tokenizer gives, of the prompts that were drawn."""
    if config.given not in ("auto", "none"):
        values = inputs.values.get(config.given, [""])
        _check_leaves(config.given, values, inputs.labels, config)


def _check_held_apart(inputs: Inputs, config: ClustersConfig) -> None:
    """Refuse a ``within`` of which no value could be left out when the classifier is fitted."""
    if config.within is not None and len(set(inputs.labels[config.within])) < 2:
        drawn = "" if config.max_rows is None else ", or raise --max-rows"
        raise InputError(
            f"within is {config.within!r}, which has only one value in the {len(inputs)} prompts of {config.prompts}; "
            f"the linear classifier leaves values of it out and needs at least 2; choose another label{drawn}, or "
            "leave out --within"
        )


def _check_leaves(
    given: str, values: Sequence[str], labels: Mapping[str, Sequence[str]], config: ClustersConfig
) -> None:
    if len(set(values)) < 2:
        raise InputError(f"given is {given!r}, which is the same for every prompt of {config.prompts}; choose another")
    if determines(labels["task"], values):
        raise InputError(
            f"given is {given!r}, which determines the task in {config.prompts}: no value of it has two tasks, so "
            "nothing is left to compare; choose another, or --given none"
        )
    if config.within is not None and determines(labels["task"], values, labels[config.within]):
        raise InputError(
            f"given is {given!r} and within {config.within!r}, which together determine the task in {config.prompts}, "
            "so labels cannot be permuted; leave out one of them"
        )


def _drawn(prompts: LabelledPrompts, config: ClustersConfig) -> tuple[LabelledPrompts, Tensor]:
    """The prompts to measure and their places in the file; which are drawn depends on the place alone."""
    index = torch.arange(len(prompts))
    if config.max_rows is None or config.max_rows >= len(prompts):
        return prompts, index
    index = torch.sort(torch.sort(hashed(index), stable=True).indices[: config.max_rows]).values
    places = index.tolist()
    some = LabelledPrompts(
        [prompts.prompts[i] for i in places],
        {name: [values[i] for i in places] for name, values in prompts.labels.items()},
        f"{prompts.source}, {len(places)} prompts drawn",
    )
    for name in config.labels:
        if (k := len(some.classes[name])) in (1, len(some)):
            kinds = "one class" if k == 1 else "as many classes as prompts"
            raise InputError(
                f"the {len(some)} prompts drawn from {config.prompts} have {kinds} of {name!r}; raise --max-rows"
            )
    return some, index


def _few(prompts: LabelledPrompts, config: ClustersConfig) -> list[str]:
    """Labels of so few prompts that even perfect clusters could be chance, as notes."""
    notes = []
    for name in config.labels:
        sizes = Counter(prompts.labels[name])
        if alone := sum(size == 1 for size in sizes.values()):
            which = "1 class has" if alone == 1 else f"{alone} classes have"
            notes.append(
                f"Of {len(sizes)} classes of {quoted(name)}, {which} a single prompt, which cannot form a cluster."
            )
        if (least := 1 / n_relabellings(prompts.labels[name])) > CHANCE_LEVEL:
            notes.append(
                f"{len(prompts)} prompts are too few for {quoted(name)}: clusters that are exactly its classes "
                f"arise by chance with p = {least:.2g}; give more."
            )
    return notes


def _lost(prompts: LabelledPrompts, some: LabelledPrompts) -> list[str]:
    """Classes of which no prompt was drawn, as notes."""
    return [
        f"Of {len(classes)} classes of {quoted(label)}, the prompts that were drawn have {len(some.classes[label])}."
        for label, classes in prompts.classes.items()
        if len(some.classes[label]) < len(classes)
    ]
