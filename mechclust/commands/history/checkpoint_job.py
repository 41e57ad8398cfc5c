"""The job of one checkpoint: its model is loaded once for everything that needs it, and each file is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.inputs import Inputs, own_tokenizer, tokens_of
from mechclust.commands.history.integrity import Identity
from mechclust.commands.history.measurements import PatternBytes
from mechclust.commands.history.series import Checkpoint
from mechclust.commands.parts import shard_rows
from mechclust.commands.saved_rows import free_memory, save_rows_anew
from mechclust.commands.settings import stamps_of
from mechclust.models.plain_model import plain_model
from mechclust.models.tokenizers import tokenizer_digest
from mechclust.models.weight_digest import has_random_weights, named_weights, weights_digest
from probes import Probe, RowStore, TopicAttention, attention, record, resolve, run
from probes.engine.attention import pattern_of
from probes.engine.devices import device_of
from probes.engine.fingerprint import fingerprinted_settings
from probes.engine.hooked_model import evaluation_mode, forward
from probes.store.digest import digest_of
from probes.store.file_names import file_name
from probes.store.files import read_json, write_json
from probes.store.safetensors_files import is_whole_file, read_safetensors, write_safetensors
from probes.store.versions import package_versions
from tasks import Batch, InputError
from tasks.text.visible import quoted

MAX_ATTENTION_TOKENS = 32  # of a prompt whose attention is shown
_FORMAT = 4  # of facts.json and the files beside it


@dataclass(frozen=True)
class CheckpointJob:
    """Measure one checkpoint.

    Attributes:
        checkpoint: the checkpoint.
        parent: folder of all checkpoints.
        inputs: prompts and corpus.
        config: the settings.
        own_tokenizer: compare the checkpoint's tokenizer with others.
    """

    checkpoint: Checkpoint
    parent: Path
    inputs: Inputs
    config: HistoryConfig
    own_tokenizer: bool

    @property
    def name(self) -> str:
        """Name of the job in errors."""
        return self.checkpoint.name

    @cached_property
    def folder(self) -> Path:
        """Folder of the checkpoint's files."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.checkpoint.name)[:60]
        return self.parent / f"{name}-{digest_of([self.checkpoint.model.source])[:8]}"

    @property
    def key(self) -> str:
        """Digest of everything that the files here depend on, the checkpoint's files included once they are here."""
        config = self.config
        settings: list[Any] = [_FORMAT, config.dtype, config.quantize, config.adapter, config.readout]
        settings += [sorted(self.inputs.words)]
        settings += [] if self.own_tokenizer else ["without tokenizer"]
        settings += [config.heads] if "heads" in config.measured else []
        settings += [config.n_permutations, config.n_resamples, config.seed] if "topics" in config.measured else []
        settings += [repr(config.registered(name)) for name in config.others]
        model = self.checkpoint.model
        stamps = [stamps_of(folder) for folder in model.folders]
        return digest_of(
            [json.dumps([model.source, settings, package_versions(), stamps], default=str), self.inputs.digest]
        )

    @property
    def done(self) -> bool:
        """Return whether all files are there, of which ``facts.json`` is written last."""
        facts = self.folder / "facts.json"
        return facts.exists() and is_whole_file(facts) and bool(read_json(facts).get("key") == self.key)

    @property
    def rows(self) -> RowStore:
        """Hidden states of the prompts."""
        return RowStore(self.folder / "rows")

    def result_path(self, probe: str) -> Path:
        """Return the file of a probe's result."""
        return self.folder / f"{file_name(probe)}.safetensors"

    @property
    def identity(self) -> Identity:
        """Weights, configuration and tokenizer of the checkpoint."""
        facts = read_json(self.folder / "facts.json")
        return Identity(self.name, facts["weights"], facts["config"], facts["tokenizer"])

    @property
    def has_random_weights(self) -> bool:
        """Return whether the checkpoint was not trained."""
        return bool(read_json(self.folder / "facts.json")["random"])

    @property
    def attention(self) -> dict[int, PatternBytes]:
        """Attention patterns of the prompts that are shown, by their number in the file."""
        patterns = read_safetensors(self.folder / "attention.safetensors")[0]
        return {int(place): of_prompt for place, of_prompt in patterns.items()}

    def run(self) -> None:
        """Load the checkpoint and write its files, unless they are there.

        Raises:
            InputError: for a checkpoint that cannot be loaded, or has NaN or infinity in its weights or activations.
        """
        if self.done:
            return
        (self.folder / "facts.json").unlink(missing_ok=True)
        config = self.config
        tokenizer = self._tokenizer_digest()  # a damaged one is found before anything is measured
        model = config.load(
            self.checkpoint.model,
            "prompts",
            without_patterns=config.needs_no_patterns,
            tokenizer=self.inputs.tokenizer,
        )
        _check_finite(model, self.name)
        with _naming_if_not_finite(self.name):
            self._write(model, tokenizer)
        del model
        free_memory(config.device)

    def _write(self, model: Any, tokenizer: str | None) -> None:
        save_rows_anew(
            model,
            self.inputs.batches,
            self.folder / "rows",
            readout=self.config.readout,
            labels=self.config.kept_labels,
            shard_rows=shard_rows(len(self.inputs.prompts)),
        )
        for name, probe, batches in self._probes():
            run(model, batches, probe).save(self.result_path(name))
        words = self.inputs.words
        patterns = {str(place): _patterns(model, tokens_of(self.inputs.batches, place)) for place in words}
        write_safetensors(self.folder / "attention.safetensors", patterns, {})
        facts = {
            "key": self.key,
            "weights": weights_digest(model),
            "random": has_random_weights(model),
            "config": json.loads(json.dumps(fingerprinted_settings(plain_model(model).config), default=str)),
            "tokenizer": tokenizer,
        }
        write_json(self.folder / "facts.json", facts)

    def _tokenizer_digest(self) -> str | None:
        """Return the digest of the checkpoint's tokenizer, or ``None`` if it has none, or it is not compared."""
        if not self.own_tokenizer:
            return None
        try:
            tokenizer = own_tokenizer(self.checkpoint, self.config)
        except InputError as error:
            raise InputError(f"checkpoint {quoted(self.name)}: {error}, or leave this checkpoint out") from error
        if tokenizer is None:
            return None
        prompts = self.inputs.prompts.prompts
        return tokenizer_digest(tokenizer, prompts, chat=self.config.chat, bos=self.config.bos)

    def _probes(self) -> Iterator[tuple[str, Probe, Iterable[Batch]]]:
        """Yield the probes that need the model, by name, with their batches."""
        config = self.config
        inputs = self.inputs
        for name in config.others:
            yield name, config.registered(name), inputs.batches
        if "heads" in config.measured:
            yield "heads", config.heads, inputs.batches
        if inputs.corpus is not None and inputs.topics is not None:
            topics = TopicAttention(
                inputs.topics,
                words="word",
                n_permutations=config.n_permutations,
                seed=config.seed,
                n_resamples=config.n_resamples,
                units="document",
            )
            yield "topics", topics, inputs.corpus.batches(config.tokens_per_batch)


def _check_finite(model: Any, name: str) -> None:
    """Refuse a checkpoint whose weights are not numbers."""
    for weight_name, weight in named_weights(model):
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise InputError(
                f"checkpoint {quoted(name)} has NaN or infinity in the weight {weight_name!r}; leave this checkpoint "
                "out"
            )


@contextmanager
def _naming_if_not_finite(name: str) -> Iterator[None]:
    """Name the checkpoint in an error about activations, which otherwise says to leave the example out."""
    try:
        yield
    except InputError as error:
        where, _, _ = str(error).partition(";")
        if not where.startswith("NaN or infinity"):
            raise
        raise InputError(
            f"checkpoint {quoted(name)}: {where}; give --dtype float32, or leave this checkpoint out"
        ) from error


def _patterns(model: Any, tokens: Int[Tensor, "pos"]) -> PatternBytes:
    """Return attention among the first tokens of a prompt."""
    patterns = _recorded_patterns(model, tokens[:MAX_ATTENTION_TOKENS])
    if bool(patterns.triu(1).any()):  # attention to later tokens, which are then needed
        patterns = _recorded_patterns(model, tokens)
    return (patterns * 255).round().clamp(0, 255).to(torch.uint8)


def _recorded_patterns(model: Any, tokens: Int[Tensor, "pos"]) -> Float[Tensor, "layer head query key"]:
    sites = [site.name for site in resolve(model, attention())]
    with evaluation_mode(model), torch.inference_mode(), record(model, sites) as recorded:
        forward(model, Batch(tokens[None]).to(device_of(model)))
    first = slice(MAX_ATTENTION_TOKENS)
    return torch.stack([pattern_of(recorded[site][0])[0, :, first, first].float().cpu() for site in sites])
