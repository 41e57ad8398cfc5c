"""Trains the models of the MOSSA study, measures their similarity, and describes them."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechclust.models import build_model, load_model, model_for, read_metadata, save_model
from mechclust.models.build import config_of
from mechclust.models.weights import get_weights
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import once
from mechclust.studies.mossa.config import (
    MODELS,
    ModelJob,
    MossaConfig,
    controlled,
    has_ceiling,
    result_path,
    suite_of,
)
from mechclust.training import LowRank, Member, TrainConfig, train, train_ensemble
from mechclust.training.callbacks import accuracy
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
from probes.engine.identity import fingerprint
from probes.functional import linear_cka
from probes.store.files import is_whole, versions
from tasks import Batch, SkillSuite


def readout() -> Readout:
    """The last token of the prompt, always ANS."""
    return token_at("answer")


def sites(config: MossaConfig) -> Selector:
    """Every block's output. The embedding of ANS is a single vector, for which CKA is undefined."""
    return residual(list(range(1, config.n_layers + 1)))


def run_job(config: MossaConfig, job: ModelJob, out: Path) -> None:
    """Train a model, or measure those of a seed; existing results are not recomputed."""
    if job.kind == "measure":
        _measure(config, job.seed, out)
    elif job.kind == "describe":
        _describe(config, job.seed, out)
    else:
        _train(config, job, out)


def trained_models(config: MossaConfig, out: Path) -> list[TrainedModel]:
    """The base and the tuned model of each seed, with the test prompts of all skills."""

    def load(job: ModelJob) -> tuple[HookedModel, Iterable[Batch]]:
        return _load(config, out, job), suite_of(config, job.seed).batches("test")

    chosen = [ModelJob(kind, seed) for seed in config.seeds for kind in MODELS]
    return [TrainedModel(job.name, partial(load, job)) for job in chosen]


def _train(config: MossaConfig, job: ModelJob, out: Path) -> None:
    path = job.model_path(out)
    state = path.with_suffix("")
    base = None if job.kind == "base" else _load(config, out, ModelJob("base", job.seed))
    began = {} if base is None else {"base": fingerprint(base)}
    if is_whole(path):
        if read_metadata(path)["metadata"].get("base") == began.get("base"):
            shutil.rmtree(state, ignore_errors=True)  # left by a run killed between saving and this
            return
        warnings.warn(
            f"{str(path)!r} was tuned from another base than the present one; it is trained again",
            stacklevel=2,
        )
    suite, settings = suite_of(config, job.seed), config.tuning
    if base is None:
        suite, settings = replace(suite, stream="pretraining"), config.pretraining
        shape: dict[str, Any] = {"n_layers": config.n_layers, "d_model": config.d_model, "n_heads": config.n_heads}
        init_std = config.d_model**-0.5 if config.init_std is None else config.init_std
        model = _moved(build_model(model_for(suite, seed=job.seed, init_std=init_std, **shape)), config)
    else:
        if job.kind == "control":
            suite = replace(suite, skills=(job.skill,), stream_seed=1 + job.again)
            settings = replace(settings, steps=config.control_steps)
        model = base
    if base is None or not config.rank:
        train(model, suite, settings, state, progress=True, name=job.name)
    else:
        model = _adapted(model, suite, settings, config, state, job.name)
    save_model(model, path, steps=settings.steps, **began)
    shutil.rmtree(state)


def _adapted(
    base: HookedModel, suite: SkillSuite, settings: TrainConfig, config: MossaConfig, state: Path, name: str
) -> HookedModel:
    """The base with the trained low-rank changes added to its weights."""
    plan = LowRank(config.rank, 2.0 * config.rank)
    one = Member(config_of(base), suite, weights={k: v.cpu() for k, v in get_weights(base).items()})
    settings = replace(settings, freeze=())
    options: dict[str, Any] = {"low_rank": plan, "backend": "loop", "device": config.device, "progress": True}
    kept = train_ensemble([one], settings, state, snapshot_every=settings.steps, name=name, **options)
    return kept.model(0)


def _load(config: MossaConfig, out: Path, job: ModelJob) -> HookedModel:
    return _moved(load_model(job.model_path(out)), config)


def _moved(model: HookedModel, config: MossaConfig) -> HookedModel:
    if config.device != "cpu":  # TransformerLens reports every move
        model.to(config.device)
    return model


def _measure(config: MossaConfig, seed: int, out: Path) -> None:
    """CKA of every control with the base, with the tuned model, and with the control tuned again; its accuracy."""
    suite = suite_of(config, seed)
    probe = CKA(at=sites(config), readout=readout())
    models = {kind: _load(config, out, ModelJob(kind, seed)) for kind in MODELS}
    prints = {kind: fingerprint(model) for kind, model in models.items()}
    for skill in controlled(config, suite):
        load = partial(_load, config, out)
        others, control = dict(models), load(ModelJob("control", seed, skill))
        if has_ceiling(config, suite, skill):
            others["again"] = load(ModelJob("control", seed, skill, again=True))
        own = fingerprint(control)
        for kind, model in others.items():
            measure = partial(run, {kind: model, "control": control}, suite.batches("test", tasks=[skill]), probe)
            of = {kind: prints.get(kind) or fingerprint(model), "control": own}
            once(result_path(out, seed, f"{skill}.{kind}"), measure, of)
        path = result_path(out, seed, f"{skill}.accuracy")
        once(path, partial(_accuracy, {"control": control}, suite, [skill]), {"control": own})


def _describe(config: MossaConfig, seed: int, out: Path) -> None:
    """Dimensions, purity and accuracy of the base and the tuned model, a picture, and CKA's own check."""
    suite, at = suite_of(config, seed), sites(config)
    models = {kind: _load(config, out, ModelJob(kind, seed)) for kind in MODELS}
    prints = {kind: fingerprint(model) for kind, model in models.items()}
    few = replace(suite, n_eval=min(config.n_purity, suite.n_eval))
    measures: dict[str, tuple[Probe, SkillSuite]] = {
        "dims": (NDims(at=at, readout=readout()), suite),
        "purity": (NeighbourPurity(at=at, readout=readout(), label="cluster", k=config.n_neighbours), few),
    }
    if seed == config.seeds[0]:
        pictured = residual(sorted({1, (config.n_layers + 1) // 2, config.n_layers}))
        picture = Projection("cluster", at=pictured, readout=readout(), max_rows=config.n_projected)
        measures["projection"] = (picture, few)
    for kind, model in models.items():
        for name, (probe, examples) in measures.items():
            batches = examples.batches("test", tasks=suite.seen)
            once(result_path(out, seed, f"{kind}.{name}"), partial(run, model, batches, probe), prints[kind])
    once(result_path(out, seed, "identity"), partial(_identity, models["base"], few, at, seed), prints["base"])
    once(result_path(out, seed, "accuracy"), partial(_accuracy, models, suite, suite.task_names), prints)


def _accuracy(models: Mapping[str, HookedModel], suite: SkillSuite, skills: Sequence[str]) -> ProbeResult:
    found = [[accuracy(model, suite, "test", tasks=[skill])[0] for skill in skills] for model in models.values()]
    return ProbeResult(
        "Accuracy",
        {"accuracy": torch.tensor(found, dtype=torch.float64)},
        {"accuracy": ("model", "task")},
        {"model": list(models), "task": list(skills)},
        metadata={"n": suite.n_eval, "versions": versions()},
    )


def _identity(model: HookedModel, suite: SkillSuite, at: Selector, seed: int) -> ProbeResult:
    """How far the CKA of a model with itself, unchanged or rotated and scaled, is from 1, at every layer."""
    itself = run({"one": model, "two": model}, suite.batches("test"), CKA(at=at, readout=readout(), form="rows"))
    rows = [x.double() for x in collect_rows(model, suite.batches("test"), at, readout()).values()]
    draw = torch.Generator().manual_seed(seed)
    d = rows[0].shape[1]
    rotation = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64))[0]
    rotated = [float(linear_cka(x, 1000 * x @ rotation, debiased=True)) for x in rows]
    values = {
        "itself": (itself.sel("debiased_cka", label="all") - 1).abs(),
        "rotated": (torch.tensor(rotated, dtype=torch.float64) - 1).abs(),
    }
    axes = dict.fromkeys(values, ("site",))
    return ProbeResult("identity", values, axes, {"site": itself.coords["site"]}, itself.layers)
