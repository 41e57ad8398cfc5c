"""MOSSA: CKA between a multi-task model and single-task controls shows which layers hold which tasks.

Zhao, Ziser & Cohen, "Layer by Layer: Uncovering Where Multi-Task Learning Happens in Instruction-Tuned Large
Language Models" (EMNLP 2024, arXiv 2410.20008), in miniature.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mechclust.models import build_model, load_model, model_for, save_model
from mechclust.report.analysis import Analysis
from mechclust.studies.extra_probes import Subject
from mechclust.studies.study import Study, check_seeds
from mechclust.training import TrainConfig, train
from mechclust.training.callbacks import accuracy
from probes import CKA, HookedModel, NDims, NeighbourPurity, ProbeResult, Projection, residual, run, token_at
from probes.files import versions
from probes.functional import linear_cka
from probes.hooks import check_device
from tasks import Batch, InputError, SkillSuite

_FROZEN = ("embed", "pos_embed", "unembed")
MODELS = ("base", "tuned")


@dataclass(frozen=True)
class MossaConfig:
    """Settings of the MOSSA study.

    Args:
        seeds: one base model, one tuned on all seen skills, and one control a skill, per seed.
        suite: the skills; its ``seed``, ``stream`` and ``skills`` are set by the run.
        n_layers: transformer blocks.
        d_model: width.
        n_heads: attention heads.
        pretraining: of the base model, on the generic stream.
        tuning: of the model tuned on all seen skills, from the base.
        control_steps: of the controls, otherwise tuned as that model. With 1 / 12 of its steps (12 skills are seen)
            a control sees its skill as often as that model does, as after the same number of epochs.
        init_std: standard deviation of initial weights; None: 1 / sqrt(d_model). GPT-2's .02 is for a larger width.
        ceiling: also tune the controls of seen skills again with another order of the data: how alike two of them are.
        n_neighbours: nearest neighbours behind cluster purity.
        n_purity: prompts of each seen skill among which these are looked for.
        n_projected: examples in the projection figure.
        device: where to train, such as ``cpu`` or ``cuda``.
        test_claims: whether this size can test the claims.
    """

    seeds: tuple[int, ...] = (30, 31, 32)
    suite: SkillSuite = SkillSuite()
    n_layers: int = 8
    d_model: int = 64
    n_heads: int = 4
    init_std: float | None = None
    pretraining: TrainConfig = TrainConfig(steps=1500, batch_size=64, lr=2e-3, warmup=50)
    tuning: TrainConfig = TrainConfig(
        steps=12 * 240, batch_size=32, lr=2e-3, warmup=50, layer_decay=0.5, freeze=_FROZEN
    )
    control_steps: int = 240
    ceiling: bool = True
    n_neighbours: int = 10
    n_purity: int = 250
    n_projected: int = 600
    device: str = "cpu"
    test_claims: bool = True

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        own = SkillSuite()
        for name in ("seed", "stream", "skills", "stream_seed"):
            if getattr(self.suite, name) != getattr(own, name):
                raise InputError(f"suite.{name} is set by each run; leave it out")
        if self.suite.n_eval < 4:
            raise InputError(f"suite.n_eval is {self.suite.n_eval}; CKA needs at least 4 prompts of every skill")
        for name, least in (("control_steps", 1), ("n_neighbours", 1), ("n_purity", 1), ("n_projected", 4)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if self.control_steps <= self.tuning.warmup:
            raise InputError(
                f"control_steps is {self.control_steps}, and tuning.warmup {self.tuning.warmup}; "
                "expected more steps than that, or the controls never reach their learning rate"
            )
        few = min(self.n_purity, self.suite.n_eval) * len(self.suite.seen)
        if self.n_neighbours >= few:
            raise InputError(
                f"n_neighbours is {self.n_neighbours}, of {few} prompts (n_purity of each seen skill); lower it"
            )


class Job(NamedTuple):
    """One model to train, or one thing to measure."""

    kind: str  # base, tuned, control, measure, describe
    seed: int
    skill: str = ""
    again: bool = False

    @property
    def name(self) -> str:
        return "-".join(filter(None, [self.kind, self.skill, "again" if self.again else "", f"seed{self.seed}"]))


_STAGES = {"base": 0, "tuned": 1, "control": 1, "measure": 2, "describe": 2}


def jobs(config: MossaConfig) -> list[Job]:
    """Every model and measurement; the long ones of a stage first."""
    check_device(config.device)
    skills = config.suite.task_names
    found = [Job(kind, seed) for kind in MODELS for seed in config.seeds]
    found += [Job(kind, seed) for kind in ("measure", "describe") for seed in config.seeds]
    for seed in config.seeds:
        for skill in skills:
            found += [Job("control", seed, skill, again) for again in (False, True)[: 1 + has_ceiling(config, skill)]]
    return found


def has_ceiling(config: MossaConfig, skill: str) -> bool:
    """Whether the skill's control is tuned twice."""
    return config.ceiling and skill in config.suite.seen


def suite_of(config: MossaConfig, seed: int) -> SkillSuite:
    """The skills of one seed."""
    return replace(config.suite, seed=seed)


def readout() -> Any:
    """The last token of the prompt, always ANS."""
    return token_at("answer")


def sites(config: MossaConfig) -> Any:
    """Every block's output. The embedding of ANS is one vector, which has no CKA."""
    return residual(list(range(1, config.n_layers + 1)))


def _model_path(out: Path, job: Job) -> Path:
    return out / "models" / f"seed{job.seed}" / f"{job.name.removesuffix(f'-seed{job.seed}')}.safetensors"


def result_path(out: Path, seed: int, name: str) -> Path:
    """Where a measurement stands."""
    return out / "results" / f"seed{seed}" / f"{name}.safetensors"


def _run_job(config: MossaConfig, job: Job, out: Path) -> None:
    if job.kind == "measure":
        _measure(config, job.seed, out)
    elif job.kind == "describe":
        _describe(config, job.seed, out)
    else:
        _train(config, job, out)


def _train(config: MossaConfig, job: Job, out: Path) -> None:
    path = _model_path(out, job)
    state = path.with_suffix("")
    if path.exists():
        shutil.rmtree(state, ignore_errors=True)  # of a run killed between saving and this
        return
    suite, settings = suite_of(config, job.seed), config.tuning
    if job.kind == "base":
        suite, settings = replace(suite, stream="pretraining"), config.pretraining
        shape: dict[str, Any] = {"n_layers": config.n_layers, "d_model": config.d_model, "n_heads": config.n_heads}
        init_std = config.d_model**-0.5 if config.init_std is None else config.init_std
        model = build_model(model_for(suite, seed=job.seed, init_std=init_std, **shape))
    else:
        if job.kind == "control":
            suite = replace(suite, skills=(job.skill,), stream_seed=1 + job.again)
            settings = replace(settings, steps=config.control_steps)
        model = load_model(_model_path(out, Job("base", job.seed)))
    train(_moved(model, config), suite, settings, state, progress=True, name=job.name)
    save_model(model, path, steps=settings.steps)
    shutil.rmtree(state)


def _load(config: MossaConfig, out: Path, job: Job) -> Any:
    return _moved(load_model(_model_path(out, job)), config)


def _moved(model: Any, config: MossaConfig) -> Any:
    return model if config.device == "cpu" else model.to(config.device)  # TransformerLens tells of every move


def _measure(config: MossaConfig, seed: int, out: Path) -> None:
    """CKA of every control with the base, with the tuned model, and with the control tuned again; its accuracy."""
    suite = suite_of(config, seed)
    probe = CKA(at=sites(config), readout=readout())
    models = {kind: _load(config, out, Job(kind, seed)) for kind in MODELS}
    for skill in suite.task_names:
        paths = {kind: result_path(out, seed, f"{skill}.{kind}") for kind in (*MODELS, "again", "accuracy")}
        models.pop("again", None)
        if not has_ceiling(config, skill):
            del paths["again"]
        if all(path.exists() for path in paths.values()):
            continue
        batches = list(suite.batches("test", tasks=[skill]))
        control = _load(config, out, Job("control", seed, skill))
        if "again" in paths:
            models["again"] = _load(config, out, Job("control", seed, skill, again=True))
        for kind, model in models.items():
            if not paths[kind].exists():
                run({kind: model, "control": control}, batches, probe).save(paths[kind])
        if not paths["accuracy"].exists():
            _save_accuracy({"control": control}, suite, [skill], paths["accuracy"])


def _subjects(config: MossaConfig, out: Path) -> list[Subject]:
    jobs = [Job(kind, seed) for seed in config.seeds for kind in MODELS]
    return [Subject(job.name, partial(_subject, config, out, job)) for job in jobs]


def _subject(config: MossaConfig, out: Path, job: Job) -> tuple[HookedModel, Iterable[Batch]]:
    return _load(config, out, job), suite_of(config, job.seed).batches("test")


def _save_accuracy(models: Any, suite: SkillSuite, skills: Sequence[str], path: Path) -> None:
    found = [[accuracy(model, suite, "test", tasks=[skill])[0] for skill in skills] for model in models.values()]
    ProbeResult(
        "Accuracy",
        {"accuracy": torch.tensor(found, dtype=torch.float64)},
        {"accuracy": ("model", "task")},
        {"model": list(models), "task": list(skills)},
        metadata={"n": suite.n_eval, "versions": versions()},
    ).save(path)


def _describe(config: MossaConfig, seed: int, out: Path) -> None:
    """Dimensions, purity and accuracy of the base and the tuned model, a picture, and CKA's own check."""
    suite, at = suite_of(config, seed), sites(config)
    models = {kind: _load(config, out, Job(kind, seed)) for kind in MODELS}
    few = replace(suite, n_eval=min(config.n_purity, suite.n_eval))
    pictured = residual(sorted({1, (config.n_layers + 1) // 2, config.n_layers}))
    measures: dict[str, tuple[Any, SkillSuite]] = {
        "dims": (NDims(at=at, readout=readout()), suite),
        "purity": (NeighbourPurity(at=at, readout=readout(), label="cluster", k=config.n_neighbours), few),
    }
    if seed == config.seeds[0]:
        picture = Projection("cluster", at=pictured, readout=readout(), max_rows=config.n_projected)
        measures["projection"] = (picture, few)
    for kind, model in models.items():
        for name, (probe, examples) in measures.items():
            path = result_path(out, seed, f"{kind}.{name}")
            if not path.exists():
                run(model, examples.batches("test", tasks=suite.seen), probe).save(path)
    path = result_path(out, seed, "identity")
    if not path.exists():
        _identity(models["base"], few, at, seed).save(path)
    path = result_path(out, seed, "accuracy")
    if not path.exists():
        _save_accuracy(models, suite, suite.task_names, path)


def _identity(model: Any, suite: SkillSuite, at: Any, seed: int) -> ProbeResult:
    """How far CKA of a model with itself, as it is and rotated and scaled, is from 1, at every layer."""
    probe = CKA(at=at, readout=readout(), form="rows")
    itself = run({"one": model, "two": model}, suite.batches("test"), probe)
    rows = [probe.rows.get(site)[1].double() for site in probe.site_names[: len(itself.coords["site"])]]
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


def _analyse(config: MossaConfig, out: Path) -> Analysis:
    from mechclust.studies.mossa.claims import analyse

    return analyse(config, out)


STUDY = Study(
    name="mossa",
    title="MOSSA: which layers hold which tasks after tuning",
    source="Zhao, Ziser & Cohen, Layer by Layer: Uncovering Where Multi-Task Learning Happens (arXiv 2410.20008)",
    presets={
        "smoke": MossaConfig(
            seeds=(0,),
            suite=SkillSuite(
                n_eval=8,
                n_arguments=2,
                length=4,
                seen=("copy-0", "swap-1", "translate-0", "type-1", "classify-0", "sentiment-1"),
            ),
            n_layers=2,
            d_model=16,
            n_heads=2,
            pretraining=TrainConfig(steps=4, batch_size=8),
            tuning=TrainConfig(steps=4, batch_size=8, layer_decay=0.5, freeze=_FROZEN),
            control_steps=2,
            n_neighbours=3,
            n_purity=6,
            n_projected=40,
            test_claims=False,
        ),
        "quick": MossaConfig(
            seeds=(20,),
            suite=SkillSuite(n_eval=700),
            n_layers=6,
            pretraining=TrainConfig(steps=800, batch_size=64, lr=2e-3, warmup=50),
            tuning=TrainConfig(steps=12 * 80, batch_size=32, lr=2e-3, warmup=30, layer_decay=0.5, freeze=_FROZEN),
            control_steps=80,
            ceiling=False,
        ),
        "paper": MossaConfig(),
    },
    jobs=jobs,
    run_job=_run_job,
    analyse=_analyse,
    subjects=_subjects,
    stage=lambda job: _STAGES[job.kind],
)
