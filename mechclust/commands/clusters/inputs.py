"""Read the prompts with their labels and features, and refuse invalid input before any weights are loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mechclust.commands.clusters.config import ClustersConfig
from mechclust.commands.clusters.features import TOKENS, WORDS, labels_determine, surface_features, word_features
from mechclust.commands.sampling import draw_prompts, prompts_at
from mechclust.commands.units import Units, label_codes, repeated_prompt_notes, units_of
from mechclust.evidence.p_values import CHANCE_LEVEL
from mechclust.models.adapter_fit import adapter_fit_notes
from mechclust.models.resolved import ResolvedModel
from mechclust.models.sizes import Sizes
from mechclust.models.tokenized_prompts import tokenize_prompts
from mechclust.models.tokenizers import (
    check_has_tokenizer,
    tokenization_of,
    tokenizer_and_sizes,
    tokenizer_unknown_token_notes,
)
from mechclust.report.text import list_text
from probes import Readout
from probes.engine.examples_digest import token_digests
from probes.functional.adjusted_rand import smallest_adjusted_rand_p_value
from probes.functional.relabelling import Relabelling
from probes.rows.row_store import read_store_header
from probes.rows.shards import store_shards
from tasks import Batch, InputError, LabelledPrompts
from tasks.errors import did_you_mean, error_suggestion
from tasks.text.visible import quoted


@dataclass(frozen=True)
class Inputs:
    """Prompts to measure.

    Attributes:
        texts: the prompts.
        index: place of each prompt in the file, from 0, ascending.
        labels: labels of the file: by name, the value of each prompt.
        features: surface features: by name, the value of each prompt.
        batches: the prompts as tokens.
        sizes: sizes of the model.
        tokenization: how texts became tokens.
        units: which prompts belong together.
        notes: notes on the prompts for readers.
    """

    texts: Sequence[str]
    index: Int[Tensor, "prompt"]
    labels: Mapping[str, Sequence[str]]
    features: Mapping[str, Sequence[str]]
    batches: Sequence[Batch]
    sizes: Sizes
    tokenization: Mapping[str, Any]
    units: Units
    notes: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)

    def undetermined(self, given: str, config: ClustersConfig) -> list[str]:
        """Return the compared labels that are not determined by ``given``, together with ``within`` if there is one."""
        strata = self._strata(given, config)
        return [name for name in config.labels if not labels_determine(self.labels[name], *strata)]

    def testable(self, given: str, config: ClustersConfig) -> bool:
        """Return whether whole units can exchange tasks often enough within ``given`` and ``within``."""
        strata = map(str, zip(*self._strata(given, config), strict=True))
        return self.units.testable(self.labels["task"], list(strata))

    def _strata(self, given: str, config: ClustersConfig) -> list[Sequence[str]]:
        return [self.values[name] for name in (given, config.within) if name is not None]

    @property
    def held_out(self) -> str | None:
        """The label whose classes can be held out, because each task has several, or ``None`` if there is none."""
        if self.units.held_out is None or self.units.with_one(self.labels["task"]):
            return None
        return self.units.name

    @cached_property
    def values(self) -> dict[str, Sequence[str]]:
        """Labels and features by name."""
        return {**self.labels, **self.features}

    @cached_property
    def codes(self) -> dict[str, Int[Tensor, "prompt"]]:
        """Labels, features and held-out classes by name, each value as its place among the sorted values."""
        values = self.values
        if self.units.held_out is not None:
            values = {**values, self.units.name: self.units.held_out}
        return {name: torch.from_numpy(label_codes(values[name])) for name in sorted(values)}


def read_inputs(model: ResolvedModel, config: ClustersConfig, tokenizer: Any = None) -> Inputs:
    """Read prompts, labels and tokens, without loading weights.

    Raises:
        InputError: for prompts or settings that do not allow any measurement.
    """
    all_prompts = config.read_prompts()
    config.check()
    _check_labels(all_prompts, config)
    prompts, index = _sample(all_prompts, config)
    units = units_of(prompts, config.units, within=config.within)
    prompts = units.added_to(prompts)
    _check_also_differs(prompts, units, config)
    reader, sizes = _tokenizer_and_sizes(model, config, tokenizer)
    batches = _tokenize(prompts, index, reader, sizes, config)
    features = surface_features(
        prompts.prompts,
        _token_ids(batches, index),
        lambda token: str(reader.decode([token])),
        set(getattr(reader, "all_special_ids", ())),
    )
    notes = [
        *_notes_on_classes(prompts, config),
        *_notes_on_lost_classes(all_prompts, prompts),
        *tokenizer_unknown_token_notes(reader, batches),
        *repeated_prompt_notes(prompts, units),
        *adapter_fit_notes([model]),
        units.sentence,
    ]
    inputs = Inputs(
        texts=prompts.prompts,
        index=index,
        labels=prompts.labels,
        features={name: values for name, values in features.items() if name not in prompts.labels},
        batches=batches,
        sizes=sizes,
        tokenization=tokenization_of(reader, chat=config.chat, bos=config.bos),
        units=units,
        notes=notes,
    )
    if config.given not in ("auto", "none"):
        _check_given(config.given, inputs.values.get(config.given, [""]), inputs.labels, config)
    _check_held_apart(inputs, config)
    _check_exchanged(inputs, config)
    return inputs


def check_same_rows(inputs: Inputs, readout: Readout, out: Path, rows: Path) -> None:
    """Refuse a folder that holds hidden states of other prompts or positions, before a model is loaded.

    Args:
        inputs: the prompts.
        readout: which hidden state of a prompt is measured.
        out: the folder.
        rows: folder in it with the hidden states.

    Raises:
        InputError: if there are any.
    """
    index = torch.cat([batch.index for batch in inputs.batches])
    digests = torch.cat([token_digests(batch) for batch in inputs.batches])
    digest_of_prompt = dict(zip(index.tolist(), digests.tolist(), strict=True))
    for model in ("trained", *(path.name for path in rows.glob("untrained-seed*"))):
        shards = store_shards(rows / model)
        header = read_store_header(rows / model)
        if shards and header is not None and header["readout"] != repr(readout):
            raise InputError(
                f"{str(out)!r} holds hidden states at another --position; give the same, or another folder with --out"
            )
        for shard in shards:
            saved = shard.columns()
            for i, digest in zip(saved["index"].tolist(), saved["tokens"].tolist(), strict=True):
                if digest_of_prompt.get(i) != digest:
                    raise InputError(
                        f"{str(out)!r} holds hidden states of other prompts or tokens; give the same, or another "
                        "folder with --out"
                    )


def _tokenizer_and_sizes(model: ResolvedModel, config: ClustersConfig, tokenizer: Any) -> tuple[Any, Sizes]:
    """Return the tokenizer, the given one or the model's, and the model's sizes."""
    model_tokenizer, sizes = tokenizer_and_sizes(model, trust_remote_code=config.trust_remote_code)
    reader = model_tokenizer if tokenizer is None else tokenizer
    check_has_tokenizer(repr(model.name), reader, "prompts")
    return reader, sizes


def _tokenize(
    prompts: LabelledPrompts, index: Int[Tensor, "prompt"], tokenizer: Any, sizes: Sizes, config: ClustersConfig
) -> list[Batch]:
    """Return the prompts as tokens, with their places in the file as index."""
    batches = tokenize_prompts(
        prompts,
        tokenizer,
        sizes,
        tokens_per_batch=config.tokens_per_batch,
        chat=config.chat,
        bos=config.bos,
        too_long=config.too_long,
    )
    return [replace(batch, index=index[batch.index]) for batch in batches]


def _token_ids(batches: Sequence[Batch], index: Int[Tensor, "prompt"]) -> list[list[int]]:
    """Return the token ids of each prompt, without padding, in the order of the index."""
    ids: dict[int, list[int]] = {}
    for batch in batches:
        for i, row, length in zip(batch.index.tolist(), batch.tokens, batch.lengths().tolist(), strict=True):
            ids[i] = row[:length].tolist()
    return [ids[i] for i in index.tolist()]


def _check_labels(prompts: LabelledPrompts, config: ClustersConfig) -> None:
    """Refuse labels and settings that the file's prompts cannot be measured with."""
    n = min(len(prompts), config.max_rows or len(prompts))
    for name in config.labels:
        _check_label(name, n, prompts, config.prompts)
    if config.n_clusters is not None and config.n_clusters >= n:
        raise InputError(f"{n} prompts cannot be split into {config.n_clusters} clusters; give fewer with --n-clusters")
    if config.within is not None:
        _check_within(config.within, prompts, config)
    _check_given_in_file(prompts, config)


def _check_label(name: str, n: int, prompts: LabelledPrompts, source: Path) -> None:
    """Refuse a label with one class, and one with as many classes as prompts are measured."""
    _check_has_label(name, prompts, source)
    classes = prompts.classes[name]
    k = len(classes)
    if k < 2:
        raise InputError(f"{source} has one {name} only ({classes[0]!r}); clustering needs at least 2")
    if n < k:
        more = "" if n == len(prompts) else f", or raise --max-rows (now {n})"
        raise InputError(f"{source} has fewer prompts than classes of {name!r} ({k}); give several of each{more}")
    if n == k:
        raise InputError(
            f"{source} has {n} prompts for {k} classes of {name!r}, so that each prompt would be its own cluster, in "
            "any model; give several of each"
        )


def _check_has_label(name: str, prompts: LabelledPrompts, source: Path) -> None:
    if name not in prompts.labels:
        raise InputError(f"{source} has no label {name!r}{error_suggestion(name, prompts.labels)}")


def _check_within(within: str, prompts: LabelledPrompts, config: ClustersConfig) -> None:
    """Refuse a label within whose classes a compared label never varies."""
    _check_has_label(within, prompts, config.prompts)
    for name in config.labels:
        if labels_determine(prompts.labels[name], prompts.labels[within]):
            raise InputError(
                f"within each {within!r}, the prompts of {config.prompts} have only one {name!r}, so labels "
                "cannot be permuted; choose another label, or leave out --within"
            )


def _check_also_differs(prompts: LabelledPrompts, units: Units, config: ClustersConfig) -> None:
    """Refuse further labels whose classes are the units, which therefore no units can exchange."""
    if units.values is None:
        return
    for name in config.also:
        values = prompts.labels[name]
        if labels_determine(values, units.values) and labels_determine(units.values, values):
            raise InputError(
                f"also has {name!r}, which is the units themselves; the clusters are compared with it anyway: leave it "
                "out of --also, or give --units none"
            )


def _check_given_in_file(prompts: LabelledPrompts, config: ClustersConfig) -> None:
    """Refuse a ``given`` label or feature, as far as it can be known without a tokenizer."""
    if config.given in ("auto", "none") or (config.given in TOKENS and config.given not in prompts.labels):
        return
    known = word_features(prompts.prompts) | dict(prompts.labels)
    if config.given not in known:
        names = [*WORDS, *TOKENS]
        raise InputError(
            f"{config.prompts} has no label {config.given!r}, and surface features are {list_text(names)}"
            f"{did_you_mean(config.given, [*known, *names])}"
        )
    _check_given(config.given, known[config.given], prompts.labels, config)


def _check_held_apart(inputs: Inputs, config: ClustersConfig) -> None:
    """Refuse a ``within`` label with one value, which cannot be left out when the classifier is fitted."""
    if config.within is not None and len(set(inputs.labels[config.within])) < 2:
        drawn = "" if config.max_rows is None else ", or raise --max-rows"
        raise InputError(
            f"within is {config.within!r}, which has only one value in the {len(inputs)} prompts of {config.prompts}; "
            f"the linear classifier leaves values of it out and needs at least 2; choose another label{drawn}, or "
            "leave out --within"
        )


def _check_exchanged(inputs: Inputs, config: ClustersConfig) -> None:
    """Refuse a ``within`` label within which no measured prompts, or whole units, can exchange their tasks."""
    if config.within is None:
        return
    tasks = label_codes(inputs.labels["task"])
    relabelling = Relabelling.from_classes(tasks, inputs.units.codes, label_codes(inputs.labels[config.within]))
    if relabelling.fixed_share < 1:
        return
    what = "two" if inputs.units.label is None else f"two units ({inputs.units.label!r})"
    way_out = "choose another label" if inputs.units.label is None else "give other --units"
    drawn = "" if config.max_rows is None else ", raise --max-rows"
    raise InputError(
        f"within each {config.within!r}, no {what} of the {len(inputs)} prompts of {config.prompts} can exchange their "
        f"tasks; {way_out}{drawn}, or leave out --within"
    )


def _check_given(
    given: str, values: Sequence[str], labels: Mapping[str, Sequence[str]], config: ClustersConfig
) -> None:
    """Refuse a ``given`` label or feature whose removal would remove the task entirely."""
    if len(set(values)) < 2:
        raise InputError(f"given is {given!r}, which is the same for every prompt of {config.prompts}; choose another")
    if labels_determine(labels["task"], values):
        raise InputError(
            f"given is {given!r}, which determines the task in {config.prompts}: no value of it has two tasks, so "
            "nothing is left to compare; choose another, or --given none"
        )
    if config.within is not None and labels_determine(labels["task"], values, labels[config.within]):
        raise InputError(
            f"given is {given!r} and within {config.within!r}, which together determine the task in {config.prompts}, "
            "so labels cannot be permuted; leave out one of them"
        )


def _sample(prompts: LabelledPrompts, config: ClustersConfig) -> tuple[LabelledPrompts, Int[Tensor, "prompt"]]:
    """Return the prompts to measure, and their places in the file."""
    index = torch.arange(len(prompts))
    if config.max_rows is None or config.max_rows >= len(prompts):
        return prompts, index
    index = draw_prompts(index, config.max_rows)
    sample = prompts_at(prompts, index.tolist())
    for name in config.labels:
        k = len(sample.classes[name])
        if k in (1, len(sample)):
            kinds = "one class" if k == 1 else "as many classes as prompts"
            raise InputError(
                f"the {len(sample)} prompts drawn from {config.prompts} have {kinds} of {name!r}; raise --max-rows"
            )
    return sample, index


def _notes_on_classes(prompts: LabelledPrompts, config: ClustersConfig) -> Iterator[str]:
    """Yield notes on classes of one prompt, and on labels of so few prompts that perfect clusters could be chance."""
    for name in config.labels:
        sizes = Counter(prompts.labels[name])
        n_single = sum(size == 1 for size in sizes.values())
        if n_single:
            which = "1 class has" if n_single == 1 else f"{n_single} classes have"
            yield f"Of {len(sizes)} classes of {quoted(name)}, {which} a single prompt, which cannot form a cluster."
        least_p = smallest_adjusted_rand_p_value(prompts.labels[name])
        if least_p > CHANCE_LEVEL * (1 + 1e-9):  # it is from logarithms, which are rounded
            yield (
                f"{len(prompts)} prompts are too few for {quoted(name)}: clusters that are exactly its classes "
                f"arise by chance with p = {least_p:.2g}; give more."
            )


def _notes_on_lost_classes(prompts: LabelledPrompts, sample: LabelledPrompts) -> Iterator[str]:
    """Yield notes on classes of which no prompt was drawn."""
    for label, classes in prompts.classes.items():
        n_drawn = len(sample.classes[label])
        if n_drawn < len(classes):
            yield f"Of {len(classes)} classes of {quoted(label)}, the prompts that were drawn have {n_drawn}."
