"""Train the models of the MOSSA study, measure their similarity, and describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from mechclust.models import load_model
from mechclust.models.config import config_of
from mechclust.models.weights import get_weights
from mechclust.mossa.task_curves import MODELS
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import measure_once, on_device, pretrain, train_once
from mechclust.studies.mossa.config import (
    ModelJob,
    MossaConfig,
    controlled_skills,
    has_ceiling,
    result_path,
    suite_of,
)
from mechclust.training import LowRank, Member, TrainConfig, train, train_ensemble
from mechclust.training.task_accuracy import accuracy
from probes import (
    CKA,
    HookedModel,
    NDims,
    NeighbourPurity,
    Probe,
    ProbeResult,
    Projection,
    Readout,
    Selector,
    collect_rows,
    residual,
    run,
    token_at,
)
from probes.functional import linear_cka
from probes.store.versions import package_versions
from tasks import Batch, SkillSuite


def prompt_end_readout() -> Readout:
    """Return the last token of the prompt, always ANS."""
    return token_at("answer")


def block_sites(config: MossaConfig) -> Selector:
    """Return every block's output. The embedding of ANS is a single vector, for which CKA is undefined."""
    return residual(list(range(1, config.n_layers + 1)))


def run_job(config: MossaConfig, job: ModelJob, out: Path) -> None:
    """Train a model, or measure the models of a seed, keeping existing results."""
    if job.kind == "measure":
        _measure(config, job.seed, out)
    elif job.kind == "describe":
        _describe(config, job.seed, out)
    else:
        _train(config, job, out)


def trained_models(config: MossaConfig, out: Path) -> list[TrainedModel]:
    """Return the base and the tuned model of each seed, with the test prompts of all skills."""
    jobs = [ModelJob(kind, seed) for seed in config.seeds for kind in MODELS]
    return [
        TrainedModel.from_parts(job.name, partial(_load, config, out, job), partial(_prompts, config, job))
        for job in jobs
    ]


def _prompts(config: MossaConfig, job: ModelJob) -> Iterable[Batch]:
    return suite_of(config, job.seed).batches("test")


def _load(config: MossaConfig, out: Path, job: ModelJob) -> HookedModel:
    return on_device(load_model(job.model_path(out)), config.device)


def _load_both(config: MossaConfig, out: Path, seed: int) -> dict[str, HookedModel]:
    return {kind: _load(config, out, ModelJob(kind, seed)) for kind in MODELS}


# ---- training ----


def _train(config: MossaConfig, job: ModelJob, out: Path) -> None:
    if job.kind == "base":
        train_once(job.model_path(out), partial(pretrain, config, suite_of(config, job.seed), job.seed, job.name))
    else:
        base = _load(config, out, ModelJob("base", job.seed))
        train_once(job.model_path(out), partial(_tune, config, job, base))


def _tune(config: MossaConfig, job: ModelJob, base: HookedModel, state: Path) -> tuple[HookedModel, int]:
    suite = suite_of(config, job.seed)
    settings = config.tuning
    if job.kind == "control":
        suite = replace(suite, skills=(job.skill,), stream_seed=1 + job.again)
        settings = replace(settings, steps=config.control_steps)
    if config.rank:
        return _adapt(config, base, suite, settings, state, job.name), settings.steps
    train(base, suite, settings, state, progress=True, name=job.name)
    return base, settings.steps


def _adapt(
    config: MossaConfig, base: HookedModel, suite: SkillSuite, settings: TrainConfig, state: Path, name: str
) -> HookedModel:
    """Return the base with the trained low-rank changes added to its weights."""
    weights = {key: weight.cpu() for key, weight in get_weights(base).items()}
    ensemble = train_ensemble(
        [Member(config_of(base), suite, weights=weights)],
        replace(settings, freeze=()),
        state,
        snapshot_every=settings.steps,
        name=name,
        low_rank=LowRank(config.rank, 2.0 * config.rank),
        backend="loop",
        device=config.device,
        progress=True,
    )
    return ensemble.model(0)


# ---- measuring ----


def _measure(config: MossaConfig, seed: int, out: Path) -> None:
    """Measure each control's accuracy and CKA with the base, the tuned model and the control tuned again."""
    suite = suite_of(config, seed)
    probe = CKA(at=block_sites(config), readout=prompt_end_readout())
    models = _load_both(config, out, seed)
    for skill in controlled_skills(config, suite):
        control = _load(config, out, ModelJob("control", seed, skill))
        compared = dict(models)
        if has_ceiling(config, suite, skill):
            compared["again"] = _load(config, out, ModelJob("control", seed, skill, again=True))
        for kind, model in compared.items():
            measure = partial(run, {kind: model, "control": control}, suite.batches("test", tasks=[skill]), probe)
            measure_once(result_path(out, seed, f"{skill}.{kind}"), measure)
        answers = partial(_accuracy, {"control": control}, suite, [skill])
        measure_once(result_path(out, seed, f"{skill}.accuracy"), answers)


def _describe(config: MossaConfig, seed: int, out: Path) -> None:
    """Measure dimensions, purity and accuracy of the base and the tuned model, a picture, and the check of CKA."""
    suite = suite_of(config, seed)
    at = block_sites(config)
    models = _load_both(config, out, seed)
    few = replace(suite, n_eval=min(config.n_purity, suite.n_eval))
    measures: dict[str, tuple[Probe, SkillSuite]] = {
        "dims": (NDims(at=at, readout=prompt_end_readout()), suite),
        "purity": (NeighbourPurity(at=at, readout=prompt_end_readout(), label="cluster", k=config.n_neighbours), few),
    }
    if seed == config.seeds[0]:
        pictured = residual(sorted({1, (config.n_layers + 1) // 2, config.n_layers}))
        picture = Projection("cluster", at=pictured, readout=prompt_end_readout(), max_rows=config.n_projected)
        measures["projection"] = (picture, few)
    for kind, model in models.items():
        for name, (probe, examples) in measures.items():
            batches = examples.batches("test", tasks=suite.seen)
            measure_once(result_path(out, seed, f"{kind}.{name}"), partial(run, model, batches, probe))
    measure_once(result_path(out, seed, "identity"), partial(_identity, models["base"], few, at, seed))
    measure_once(result_path(out, seed, "accuracy"), partial(_accuracy, models, suite, suite.task_names))


def _accuracy(models: Mapping[str, HookedModel], suite: SkillSuite, skills: Sequence[str]) -> ProbeResult:
    shares = []
    for model in models.values():
        shares.append([accuracy(model, suite, "test", tasks=[skill])[0] for skill in skills])
    return ProbeResult(
        "Accuracy",
        {"accuracy": torch.tensor(shares, dtype=torch.float64)},
        {"accuracy": ("model", "task")},
        {"model": list(models), "task": list(skills)},
        metadata={"n": suite.n_eval, "versions": package_versions()},
    )


def _identity(model: HookedModel, suite: SkillSuite, at: Selector, seed: int) -> ProbeResult:
    """Measure how far the CKA of a model with itself, unchanged or rotated and scaled, is from 1, at every layer."""
    itself = run(
        {"one": model, "two": model}, suite.batches("test"), CKA(at=at, readout=prompt_end_readout(), form="rows")
    )
    rows = [x.double() for x in collect_rows(model, suite.batches("test"), at, prompt_end_readout()).values()]
    d_model = rows[0].shape[1]
    draw = torch.randn(d_model, d_model, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rotation = torch.linalg.qr(draw)[0]
    rotated = [float(linear_cka(x, 1000 * x @ rotation, debiased=True)) for x in rows]
    distances = {
        "itself": (itself.sel("debiased_cka", label="all") - 1).abs(),
        "rotated": (torch.tensor(rotated, dtype=torch.float64) - 1).abs(),
    }
    axes = dict.fromkeys(distances, ("site",))
    return ProbeResult("identity", distances, axes, {"site": itself.coords["site"]}, itself.layers)
