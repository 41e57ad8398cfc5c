"""Train the networks, load the pretrained model, and measure the heads of each and of a random copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.models import ModelConfig, build_model, load_pretrained, model_for
from mechclust.models.chat_templates import templated_tokenizer
from mechclust.models.tokenizers import load_tokenizer
from mechclust.report.probe_trial import try_probes
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.heads_in_models.config import (
    INSTRUCTIONS,
    OFF,
    PLANTED,
    PLANTED_P,
    PRETRAINED,
    PROMPTS,
    RANDOM,
    READ,
    TRAINED,
    UNREAD,
    UNTRAINED,
    HeadsInModelsConfig,
    addition_of,
    arms,
    jobs,
    labels_of,
    prompt_subject,
    prompts_of,
    result_path,
    task_of,
    training_of,
)
from mechclust.studies.heads_in_models.discovery import discover_together, head_sets
from mechclust.studies.heads_in_models.heads import Heads, heads_from, switching_heads
from mechclust.studies.heads_in_models.measure import measure_heads
from mechclust.studies.heads_in_models.prompts import ORDERS, Order
from mechclust.studies.heads_in_models.together import Places, exchange_together
from mechclust.studies.kept import measure_once, on_device
from mechclust.studies.study import Job, check_checkpoint
from mechclust.studies.trainings import Training
from mechclust.training import CheckpointCallback, train
from probes import HookedModel, ProbeResult, Readout, TaskClusterARI, last_token, residual, run, token_at
from probes.checks.bench import Correct
from tasks import Batch, InputError, SparseModularAddition
from tasks.instructions import VALIDATION_SUBSET

_BATCH_SIZE = 128

_Logits = Float[Tensor, "batch pos d_vocab"]


def run_job(config: HeadsInModelsConfig, job: Job, out: Path) -> None:
    """Make a job's models and measure their heads, keeping existing results."""
    if job.arm == PLANTED:
        _measure_planted(config, job, out)
    elif job.arm == PROMPTS:
        _measure_pretrained(config, job, out)
    else:
        _measure_trained(config, job, out)


def check(config: HeadsInModelsConfig) -> None:
    """Refuse too few examples, and a model that is missing, lacks heads or cannot read the prompts.

    Raises:
        InputError: saying which, before anything is trained.
    """
    check_checkpoint(config)
    _check_examples(config)
    if config.model is None:
        return
    tokenizer, model_config = load_tokenizer(config.model)
    text_config = model_config.get_text_config()
    n_heads = text_config.num_hidden_layers * text_config.num_attention_heads
    if n_heads < 2:
        raise InputError(f"{config.model!r} has a single head; give a model with others to compare with")
    if 2 * config.together[-1] > n_heads:
        raise InputError(
            f"together has {config.together[-1]}, but {config.model!r} has {n_heads} heads; give at most half of them, "
            f"such as --together {n_heads // 2}, since as many other heads are the control"
        )
    longest = getattr(text_config, "max_position_embeddings", None)
    for seed in config.word_seeds:
        width = max(_prompt_batch(config, seed, tokenizer, order).tokens.shape[1] for order in ORDERS)
        if longest is not None and width > longest:
            raise InputError(f"the prompts have up to {width} tokens, but {config.model!r} reads {longest} at most")


def _check_examples(config: HeadsInModelsConfig) -> None:
    """Refuse fewer examples than recipients, and examples that cannot be measured, of each arm's first seed."""
    first_jobs = {job.arm: job for job in reversed(jobs(config)) if job.arm != PROMPTS}
    for job in first_jobs.values():
        task = addition_of(config, PLANTED_P, job.seed) if job.arm == PLANTED else task_of(config, job)
        batches = examples_of(config, task)
        n_examples = sum(map(len, batches))
        if config.recipients > n_examples:
            raise InputError(
                f"recipients is {config.recipients}, more than the {n_examples} examples of {job.name}; give fewer"
            )
        for label in labels_of(job.arm):
            batches[0].label(label)
        if job.arm == INSTRUCTIONS:
            try_probes({"clusters": _clusters(n_init=1)}, batches, f"examples of {job.name}", kind="measure")


def trainings(config: HeadsInModelsConfig) -> list[Training]:
    """Return the trainings, by arm."""
    trained = []
    for arm in arms(config):
        if arm not in (PLANTED, PROMPTS):
            job = Job(arm, config.seeds[0])
            network = _model_config(config, job)
            trained.append(Training(network, task_of(config, job), training_of(config, arm), len(config.seeds)))
    return trained


def trained_models(config: HeadsInModelsConfig, out: Path) -> list[TrainedModel]:
    """Return every network at the end of its training, with the examples measured, and the pretrained model."""
    first_draw = Job(PROMPTS, config.word_seeds[0])
    loaded = [job for job in jobs(config) if job.arm not in (PLANTED, PROMPTS) or job == first_draw]
    models = []
    for job in loaded:
        examples = None if job.arm == PROMPTS else partial(_examples, config, job)
        models.append(TrainedModel(job.name, partial(_load, config, job, out), examples))
    return models


def _examples(config: HeadsInModelsConfig, job: Job) -> Iterable[Batch]:
    return examples_of(config, task_of(config, job))


def _load(config: HeadsInModelsConfig, job: Job, out: Path) -> tuple[HookedModel, Iterable[Batch]]:
    if job.arm == PROMPTS:
        model = load_pretrained(str(config.model), device=config.device)
        return model, [_prompt_batch(config, job.seed, model.tokenizer, ORDERS[0])]
    return _train(config, job, out), _examples(config, job)


# ---- the network set by hand ----


def _measure_planted(config: HeadsInModelsConfig, job: Job, out: Path) -> None:
    from mechclust.studies.heads_in_models.planted import PlantedHeads  # loads TransformerLens

    task = addition_of(config, PLANTED_P, job.seed)
    for subject in (READ, UNREAD):
        model = PlantedHeads(task, config.n_layers, config.n_heads, job.seed, read=subject == READ)
        correct = _planted_is_right if subject == READ else _undefined
        _measure(config, job, subject, on_device(model, config.device), examples_of(config, task), correct, out)


def _planted_is_right(logits: _Logits, batch: Batch) -> Float[Tensor, "batch"]:
    """Return whether the answer's first part is the sum modulo p."""
    answer = torch.div(logits[:, -1].argmax(dim=-1), PLANTED_P, rounding_mode="floor")
    return (answer == batch.label("answer")).double()


def _undefined(logits: _Logits, batch: Batch) -> Float[Tensor, "batch"]:
    """Return NaN: a network that does not add has no answer to check."""
    return torch.full((len(batch),), torch.nan)


# ---- networks that are trained ----


def _measure_trained(config: HeadsInModelsConfig, job: Job, out: Path) -> None:
    task = task_of(config, job)
    models = {TRAINED: _train(config, job, out), UNTRAINED: build_network(config, job)}
    for subject, model in models.items():
        batches = examples_of(config, task)
        correct: Any = task.accuracy
        _measure(config, job, subject, model, batches, correct, out)
        if job.arm == INSTRUCTIONS:
            path = result_path(out, job, f"{subject}.clusters")
            measure_once(path, partial(run, model, batches, _clusters(n_init=10)))


def _clusters(n_init: int) -> TaskClusterARI:
    """Return the probe of clusters at x, with this number of k-means starts."""
    return TaskClusterARI(also=("output",), readout=token_at("input"), at=residual(), n_init=n_init, n_permutations=0)


def build_network(config: HeadsInModelsConfig, job: Job) -> HookedModel:
    """Return the network of a run before training."""
    return on_device(build_model(_model_config(config, job)), config.device)


def _model_config(config: HeadsInModelsConfig, job: Job) -> ModelConfig:
    shape: dict[str, Any] = {"n_layers": config.n_layers, "d_model": config.d_model, "n_heads": config.n_heads}
    return model_for(task_of(config, job), seed=job.seed, init_std=config.d_model**-0.5, **shape)


def _train(config: HeadsInModelsConfig, job: Job, out: Path) -> HookedModel:
    """Return the network at the end of its training, which is resumed from its last checkpoint."""
    model = build_network(config, job)
    settings = training_of(config, job.arm)
    folder = out / "models" / job.name
    keep = CheckpointCallback(folder, at=[settings.steps])
    train(model, task_of(config, job), settings, folder, [keep], progress=True, name=job.name)
    return model


def examples_of(config: HeadsInModelsConfig, task: Any) -> list[Batch]:
    """Return ``n_measured`` held-out examples, equally spaced, or drawn independently of the training examples.

    Additions have one more label: the sum of equally many digits off the support.
    """
    if not isinstance(task, SparseModularAddition):
        (batch,) = task.batches(VALIDATION_SUBSET, task.n_eval)
        # They are ordered by task.
        rows = torch.linspace(0, len(batch) - 1, min(len(batch), config.n_measured)).round().long()
        return list(batch.select(rows).split(_BATCH_SIZE))
    (batch,) = task.batches("test", task.n_test)
    off_support = [position for position in range(task.length) if position not in task.positions]
    counted = off_support[-len(task.positions) :]
    labels = {**batch.labels, OFF: batch.tokens[:, counted].sum(dim=1)}
    return list(replace(batch, labels=labels).select(slice(config.n_measured)).split(_BATCH_SIZE))


# ---- the pretrained model ----


def _measure_pretrained(config: HeadsInModelsConfig, job: Job, out: Path) -> None:
    for kind in (PRETRAINED, RANDOM):
        model: Any = load_pretrained(str(config.model), untrained=kind == RANDOM, seed=job.seed, device=config.device)
        batches = {order: _prompt_batch(config, job.seed, model.tokenizer, order) for order in ORDERS}
        ends: dict[Order, Heads] = {}
        for order, batch in batches.items():
            result = _measure(config, job, prompt_subject(kind, order), model, [batch], _is_answer, out)
            ends[order] = heads_from(result, labels_of(PROMPTS))
        switching = switching_heads(config, list(ends.values()))
        following = [(int(block), int(head)) for block, head in zip(*switching.nonzero(), strict=True)]
        for order, batch in batches.items():
            _interchange_together(config, job, prompt_subject(kind, order), model, batch, ends[order], following, out)


def _interchange_together(
    config: HeadsInModelsConfig,
    job: Job,
    subject: str,
    model: HookedModel,
    batch: Batch,
    heads: Heads,
    following: Places,
    out: Path,
) -> None:
    """Interchange several heads at once: heads that follow the thing asked, and heads with the largest effect."""
    n_blocks, n_heads = heads.values["effect"].shape
    exchange = partial(exchange_together, model, batch, following, (n_blocks, n_heads), seed=job.seed)
    measure_once(result_path(out, job, f"{subject}.together"), exchange)
    discover = partial(
        discover_together,
        model,
        batch,
        labels_of(PROMPTS),
        head_sets(heads, config.together, job.seed),
        recipients=config.together_recipients,
        tolerance=config.tolerance,
        seed=job.seed,
    )
    measure_once(result_path(out, job, f"{subject}.discovery"), discover)


def _prompt_batch(config: HeadsInModelsConfig, seed: int, tokenizer: Any, order: Order) -> Batch:
    return prompts_of(config, seed).batch(templated_tokenizer(tokenizer), order, pad_id=tokenizer.pad_token_id or 0)


def _is_answer(logits: _Logits, batch: Batch) -> Float[Tensor, "batch"]:
    rows = torch.arange(len(logits), device=logits.device)
    last = logits[rows, batch.last_positions().to(logits.device)]
    return (last.argmax(dim=-1) == batch.label("answer").to(logits.device)).double()


# ---- measuring ----


def _measure(
    config: HeadsInModelsConfig,
    job: Job,
    subject: str,
    model: HookedModel,
    batches: list[Batch],
    correct: Correct,
    out: Path,
) -> ProbeResult:
    """Measure the heads of a model once. In a small model, all are interchanged."""
    pretrained = job.arm == PROMPTS
    query: Readout = token_at("input") if job.arm == INSTRUCTIONS else last_token()
    measure = partial(
        measure_heads,
        model,
        batches,
        labels_of(job.arm),
        correct,
        tested=config.n_tested if pretrained else config.n_layers * config.n_heads,
        recipients=config.word_recipients if pretrained else config.recipients,
        tolerance=config.tolerance,
        query=query,
        seed=job.seed,
    )
    return measure_once(result_path(out, job, f"{subject}.heads"), measure)
