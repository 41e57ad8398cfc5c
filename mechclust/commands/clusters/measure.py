"""How well a user's own model clusters a user's own prompts by task, layer by layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from mechclust.commands.clusters.config import ClustersConfig
from mechclust.commands.clusters.result import ClustersResult
from mechclust.models.pretrained import AnyModel
from mechclust.models.tokenizers import encoder, n_leading, tokenization, what_is_wrong
from mechclust.report.chance import LEVEL
from probes import ProbeResult, TaskClusterARI, residual, run
from probes.functional.task_cluster_ari import n_relabellings
from tasks import InputError, LabelledPrompts
from tasks.errors import check_at_least, suggest


def measure_clusters(
    model: AnyModel, config: ClustersConfig, *, tokenizer: Any = None, progress: bool = False
) -> ClustersResult:
    """ARI between k-means clusters of hidden states and the prompts' labels, at every layer.

    Args:
        model: hub name or local directory, or a loaded model: Hugging Face's, or one that ``load_pretrained`` gave.
        config: what to measure.
        tokenizer: of a loaded Hugging Face model.
        progress: show progress bars.

    Raises:
        InputError: for bad prompts (before the model is loaded) or a model that cannot be loaded.
    """
    prompts = LabelledPrompts.from_jsonl(config.prompts)
    _check(prompts, config)
    probe = TaskClusterARI(
        at=residual(),
        readout=config.readout,
        also=config.also,
        reduce="tsne" if config.tsne else None,
        n_init=config.n_init,
        n_permutations=config.n_permutations,
        max_rows=config.max_rows,
        seed=config.seed,
    )

    notes: list[str] = []

    def measure(**options: Any) -> ProbeResult:
        with config.loaded(model, "prompts", tokenizer=tokenizer, attention="sdpa", **options) as (hooked, reader):
            batches = list(
                prompts.batches(
                    encoder(reader, config.chat, bos=config.bos),
                    config.batch_size,
                    pad_id=reader.pad_token_id or 0,
                    max_length=hooked.cfg.n_ctx,
                    too_long=config.too_long,
                    keep=n_leading(reader, config.bos),
                    d_vocab=hooked.cfg.d_vocab,
                )
            )
            notes[:] = what_is_wrong(reader, batches, prompts.repeated)
            found = run(hooked, batches, probe, progress=progress)
        used = tokenization(reader, chat=config.chat, bos=config.bos)
        return replace(found, metadata={**found.metadata, "tokenization": used})

    trained = measure()
    untrained = [measure(untrained=True, seed=seed) for seed in range(config.untrained)]
    return ClustersResult(
        config.title(model), config, trained, untrained, [*_few(prompts, config), *_lost(prompts, trained), *notes]
    )


def _labels(config: ClustersConfig) -> list[str]:
    return ["task", *config.also]


def _check(prompts: LabelledPrompts, config: ClustersConfig) -> None:
    config.check()
    if config.max_rows is not None:
        check_at_least(max_rows=(config.max_rows, 2))
    if "task" in config.also:
        raise InputError("task is measured anyway; leave it out of --also")
    n = min(len(prompts), config.max_rows or len(prompts))
    for name in _labels(config):
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


def _lost(prompts: LabelledPrompts, found: ProbeResult) -> list[str]:
    """Classes of which no prompt was drawn, as notes."""
    return [
        f"Of {len(prompts.classes[label])} classes of {label!r}, the prompts that were drawn have {n}."
        for label, n in found.metadata["n_clusters"].items()
        if n < len(prompts.classes[label])
    ]


def _few(prompts: LabelledPrompts, config: ClustersConfig) -> list[str]:
    """Labels of so few prompts that even perfect clusters could be chance, as notes."""
    notes = []
    n = min(len(prompts), config.max_rows or len(prompts))
    for name in _labels(config):
        sizes = Counter(prompts.labels[name])
        if alone := sum(size == 1 for size in sizes.values()):
            which = "1 class has" if alone == 1 else f"{alone} classes have"
            notes.append(f"Of {len(sizes)} classes of {name!r}, {which} a single prompt, which cannot form a cluster.")
        if n == len(prompts) and (least := 1 / n_relabellings(prompts.labels[name])) > LEVEL:
            notes.append(
                f"{n} prompts are too few for {name!r}: clusters that are exactly its classes come about by chance "
                f"with p = {least:.2g}; give more."
            )
    return notes
