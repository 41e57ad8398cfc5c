"""Train models of several domains and of one each from scratch, and measure their similarity by SVCCA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechclust.models import load_model
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import measure_once, new_model, on_device, train_once
from mechclust.studies.mossa.config import MossaConfig, suite_of
from mechclust.studies.mossa.origin.corpus import DomainCorpus, skills_of
from mechclust.studies.mossa.origin.jobs import OriginJob, cells_of, models_of
from mechclust.studies.mossa.run import block_sites, prompt_end_readout
from mechclust.training import TrainConfig, train
from mechclust.training.task_accuracy import accuracy
from probes import HookedModel, ProbeResult, collect_rows
from probes.engine.fingerprint import fingerprint
from probes.functional.svcca import svcca_basis, svcca_correlation
from probes.store.versions import package_versions
from tasks import Batch

_VARIANCE = 0.99  # share kept of each side, as published

_ModelsByJob = Mapping[OriginJob, HookedModel]
_Bases = list[Float[Tensor, "row _"]]  # by layer: an orthonormal basis of the principal components


def run_origin_job(config: MossaConfig, job: OriginJob, out: Path) -> None:
    """Train a model, or measure the models of a cell, keeping existing results."""
    if job.kind == "compare":
        models = {other: _load(config, out, other) for other in models_of(config, job.seed, job.cell)}
        prints = {other.name: fingerprint(model) for other, model in models.items()}
        measure_once(job.result_path(out), partial(_compared, config, job, models), prints)
    else:
        train_once(job.model_path(out), partial(_train, config, job))


def corpus_of(config: MossaConfig, job: OriginJob) -> DomainCorpus:
    """Return the data that a model is trained on."""
    domains = (job.domain,) if job.domain else config.origin.domains
    n_examples = round(job.cell.size * config.origin.examples)
    return DomainCorpus(suite_of(config, job.seed), domains, n_examples, order=int(job.again))


def training_of(config: MossaConfig, job: OriginJob) -> TrainConfig:
    """Return how a model is trained."""
    origin = config.origin
    steps = origin.training.steps if job.kind == "experimental" else origin.control_steps
    return replace(origin.training, steps=steps, lr=origin.training.lr * origin.width / job.cell.width)


def trained_origin_models(config: MossaConfig, out: Path) -> list[TrainedModel]:
    """Return the model of all domains of each cell and seed, with its domains' test prompts."""
    jobs = [models_of(config, seed, cell)[0] for seed in config.seeds for cell in cells_of(config)]
    return [
        TrainedModel.from_parts(job.name, partial(_load, config, out, job), partial(_prompts, config, job))
        for job in jobs
    ]


def _prompts(config: MossaConfig, job: OriginJob) -> Iterable[Batch]:
    return corpus_of(config, job).batches("test")


def _load(config: MossaConfig, out: Path, job: OriginJob) -> HookedModel:
    return on_device(load_model(job.model_path(out)), config.device)


def _train(config: MossaConfig, job: OriginJob, state: Path) -> tuple[HookedModel, int]:
    corpus = corpus_of(config, job)
    settings = training_of(config, job)
    model = new_model(
        corpus,
        config.device,
        seed=_initial_seed(config, job),
        n_layers=config.n_layers,
        d_model=job.cell.width,
        n_heads=config.n_heads,
        init_std=config.init_std,
    )
    train(model, corpus, settings, state, progress=True, name=job.name)
    return model, settings.steps


def _initial_seed(config: MossaConfig, job: OriginJob) -> int:
    """Return the seed of the initial weights, which differs between the models of a cell and between seeds."""
    models = models_of(config, job.seed, job.cell)
    return job.seed * len(models) + models.index(job)


# ---- measuring ----


def _compared(config: MossaConfig, job: OriginJob, models: _ModelsByJob) -> ProbeResult:
    """Compare the model of all domains with every control on each domain's test prompts, with ceiling and chance."""
    domains = list(config.origin.domains)
    suite = suite_of(config, job.seed)
    by_domain = []
    notes = []
    for domain in domains:
        measured, undefined = _on_domain(config, job, models, domain)
        by_domain.append(measured)
        notes += undefined
    values = {name: torch.tensor([row[name] for row in by_domain], dtype=torch.float64) for name in by_domain[0]}
    axes = dict.fromkeys(values, ("domain", "layer"))
    layers = [str(layer) for layer in range(1, config.n_layers + 1)]
    return ProbeResult(
        "Origin",
        values,
        {**axes, "svcca": ("domain", "control", "layer"), "accuracy": ("domain", "model")},
        {"domain": domains, "control": domains, "layer": layers, "model": ["experimental", "control"]},
        metadata={"n": suite.n_eval * suite.n_arguments, "variance": _VARIANCE, "versions": package_versions()},
        notes=notes,
    )


def _on_domain(
    config: MossaConfig, job: OriginJob, models: _ModelsByJob, domain: str
) -> tuple[dict[str, list[Any]], list[str]]:
    """Return each measure by layer (``svcca`` by control and layer), and why some are NaN."""
    suite = suite_of(config, job.seed)
    skills = skills_of(suite, domain)
    domains = config.origin.domains
    bases = {other: _bases(config, model, suite.batches("test", tasks=skills)) for other, model in models.items()}
    experimental = job._replace(kind="experimental")
    control = job._replace(kind="control", domain=domain)
    pairs = {f"svcca with {other}": (bases[experimental], bases[control._replace(domain=other)]) for other in domains}
    pairs["chance"] = (bases[experimental], _shuffled(bases[control], [job.seed, domains.index(domain)]))
    if config.origin.ceiling:
        pairs["ceiling"] = (bases[control], bases[control._replace(again=True)])
    curves: dict[str, list[float]] = {}
    notes = []
    for name, (x, y) in pairs.items():
        correlations = [svcca_correlation(of_x, of_y) for of_x, of_y in zip(x, y, strict=True)]
        curves[name] = [value for value, _ in correlations]
        for layer, (_, why) in enumerate(correlations, start=1):
            if why:
                notes.append(f"{domain}, layer {layer}, {name} is NaN: {why}")
    measured: dict[str, list[Any]] = {
        "svcca": [curves[f"svcca with {other}"] for other in domains],
        "chance": curves["chance"],
        "n_dims": [float(basis.shape[1]) for basis in bases[experimental]],
        "accuracy": [accuracy(models[model], suite, "test", tasks=skills)[0] for model in (experimental, control)],
    }
    if config.origin.ceiling:
        measured["ceiling"] = curves["ceiling"]
    return measured, notes


def _bases(config: MossaConfig, model: HookedModel, prompts: Iterable[Batch]) -> _Bases:
    rows = collect_rows(model, prompts, block_sites(config), prompt_end_readout())
    return [svcca_basis(x.double(), _VARIANCE) for x in rows.values()]


def _shuffled(bases: _Bases, seed: Sequence[int]) -> _Bases:
    """Return the bases with their rows in one random order."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(bases[0])))
    return [basis[order] for basis in bases]
