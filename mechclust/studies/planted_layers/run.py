"""Trains the models of the study, plants changes in them, and measures every pair."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mechclust.models import build_model, load_model, load_pretrained, model_for, read_metadata, save_model
from mechclust.models.sizes import Sizes
from mechclust.models.tokenizers import prompt_batches
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import once
from mechclust.studies.planted_layers.alike import learnt, measure_alike
from mechclust.studies.planted_layers.config import (
    Made,
    PlantedConfig,
    measured_skills,
    model_path,
    pairs_of,
    result_path,
    suite_of,
)
from mechclust.studies.planted_layers.measure import (
    Loss,
    measure_planted,
    next_token_loss,
    patch_layers,
)
from mechclust.studies.planted_layers.plant import n_layers_of, plant_in, rounded_in
from mechclust.studies.planted_layers.trios import base_name, control_name, control_sets, skills_of, trios_of
from mechclust.studies.planted_layers.tunings import ModelJob, tunings
from mechclust.training import train
from probes import HookedModel, Readout, last_token, token_at
from probes.engine.identity import fingerprint
from probes.store.files import is_whole
from tasks import Batch
from tasks.text.prompts import LabelledPrompts

_TOKENS = 1024  # per batch of a given model: the residual streams of all layers are held at once


def run_job(config: PlantedConfig, job: ModelJob, out: Path) -> None:
    """Train a model, or measure all pairs of a seed; existing results are not recomputed."""
    if job.kind == "measure":
        _measure(config, job.seed, out)
    elif job.kind == "compare":
        _compare(config, job.seed, out)
    else:
        _train(config, job, out)


def trained_models(config: PlantedConfig, out: Path) -> list[TrainedModel]:
    """The base model of each seed, or the given one, with the prompts measured."""

    def load(seed: int) -> tuple[HookedModel, Iterable[Batch]]:
        given = _prompts(config, seed)
        return given.load("base", out), given.batches("test")

    if config.model is not None:
        return [TrainedModel("base", partial(load, config.seeds[0]))]
    return [TrainedModel(f"base-seed{seed}", partial(load, seed)) for seed in config.seeds]


# ---- training ----


def _train(config: PlantedConfig, job: ModelJob, out: Path) -> None:
    path = model_path(out, job.seed, job.model)
    state = path.with_suffix("")
    base = None if job.kind == "base" else _load(config, job.seed, "base", out)
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
        model, tuning = base, tunings(config)[job.model]
        suite, settings = tuning.suite(suite), tuning.settings(config)
    train(model, suite, settings, state, progress=True, name=job.name)
    save_model(model, path, steps=settings.steps, **began)
    shutil.rmtree(state)


def _load(config: PlantedConfig, seed: int, name: str, out: Path) -> HookedModel:
    return _moved(load_model(model_path(out, seed, name)), config)


def _moved(model: HookedModel, config: PlantedConfig) -> HookedModel:
    if config.device != "cpu":  # TransformerLens reports every move
        model.to(config.device)
    return model


# ---- measuring ----


@dataclass(frozen=True)
class _Prompts:
    """Where the models of a seed come from, and what they are measured on."""

    load: Callable[[str, Path], HookedModel]
    batches: Callable[[str], Iterable[Batch]]
    patched: Callable[[str], Iterable[Batch]]
    readout: Readout
    loss: Loss


def _prompts(config: PlantedConfig, seed: int) -> _Prompts:
    if config.model is not None:
        return _given(config)
    suite, skills = suite_of(config, seed), measured_skills(config)
    few = replace(suite, n_eval=min(config.n_patched, suite.n_eval))
    return _Prompts(
        lambda name, out: _load(config, seed, name, out),
        lambda split: suite.batches(split, tasks=skills),
        lambda split: few.batches(split, tasks=skills),
        token_at("answer"),
        suite.loss,
    )


def _given(config: PlantedConfig) -> _Prompts:
    """A checkpoint and a file of prompts, each read when it is needed."""
    assert config.model is not None
    assert config.prompts is not None
    prompts = LabelledPrompts.from_file(config.prompts)
    loaded: list[HookedModel] = []

    def load(name: str, out: Path) -> HookedModel:
        model = load_pretrained(str(config.model), device=config.device)
        loaded.append(model)
        return model

    def batches(split: str, most: int) -> Iterator[Batch]:
        model: Any = loaded[0] if loaded else load("base", Path())
        few, sizes = _first_of_each(prompts, most), Sizes.from_model(model)
        return prompt_batches(few, model.tokenizer, sizes, tokens_per_batch=_TOKENS, too_long="truncate")

    return _Prompts(
        load,
        lambda split: batches(split, config.suite.n_eval),
        lambda split: batches(split, config.n_patched),
        last_token(),
        next_token_loss,
    )


def _first_of_each(prompts: LabelledPrompts, most: int) -> LabelledPrompts:
    """At most this many prompts per task."""
    seen: Counter[str] = Counter()
    chosen = []
    for i, task in enumerate(prompts.labels["task"]):
        seen[task] += 1
        if seen[task] <= most:
            chosen.append(i)
    return LabelledPrompts(
        [prompts.prompts[i] for i in chosen],
        {"task": [prompts.labels["task"][i] for i in chosen]},
        source=prompts.source,
    )


class _Models:
    """The models that pairs are made of: two copies of each model in use, so that one can be changed."""

    def __init__(self, load: Callable[[str, Path], HookedModel], seed: int, out: Path) -> None:
        self._load, self._seed, self._out = load, seed, out
        self._held: dict[int, tuple[str, HookedModel]] = {}

    def copy(self, source: str, side: int) -> HookedModel:
        """The trained model with this name; each side has its own copy."""
        if side not in self._held or self._held[side][0] != source:
            self._held[side] = (source, self._load(source, self._out))
        return self._held[side][1]

    @contextmanager
    def made(self, what: Made, side: int) -> Iterator[HookedModel]:
        """A context that gives a model with its planted change."""
        model = self.copy(what.source, side)
        if what.rounded:
            with rounded_in(model):
                yield model
        elif what.noise:
            layers = what.layers or tuple(range(1, n_layers_of(model) + 1))
            with plant_in(model, layers, noise=what.noise, seed=10_000 * self._seed + what.draw):
                yield model
        else:
            yield model


def _measure(config: PlantedConfig, seed: int, out: Path) -> None:
    """How far apart the models of every pair are, and what patching restores."""
    given = _prompts(config, seed)
    models = _Models(given.load, seed, out)
    for pair in pairs_of(config, n_layers_of(models.copy("base", 0))):
        with models.made(pair.base, 0) as base, models.made(pair.tuned, 1) as tuned:
            of = {"base": fingerprint(base), "tuned": fingerprint(tuned)}
            change = partial(measure_planted, base, tuned, given.batches(pair.split), given.readout, n_few=config.n_few)
            once(result_path(out, seed, f"{pair.name}.change"), change, of)
            if pair.truth is not None:
                patch = partial(patch_layers, base, tuned, given.patched(pair.split), given.loss)
                once(result_path(out, seed, f"{pair.name}.patched"), patch, of)


def _compare(config: PlantedConfig, seed: int, out: Path) -> None:
    """Similarity of the base and of every model of several tasks to their controls, and what all of them learnt."""
    suite, skills = suite_of(config, seed), skills_of(config)
    load = partial(_load, config, seed, out=out)
    base = load("base")
    prints = {"base": fingerprint(base)}
    trios = trios_of(config)
    for controls in control_sets(config):
        single = {skill: load(control_name(controls, skill)) for skill in skills}
        own = {skill: fingerprint(model) for skill, model in single.items()}
        of_base = (base_name(controls), "base")
        for name, kind in [of_base, *((trio.name, trio.tuned) for trio in trios if trio.controls == controls)]:
            model = base if kind == "base" else load(kind)
            prints.setdefault(kind, fingerprint(model))
            measure = partial(
                measure_alike,
                model,
                single,
                base,
                lambda skill: suite.batches("test", tasks=[skill]),
                token_at("answer"),
                n_few=config.n_few,
            )
            once(result_path(out, seed, name), measure, {"base": prints["base"], kind: prints[kind], **own})
        path = result_path(out, seed, f"learnt-{controls}")
        once(path, partial(learnt, {skill: (model, [skill]) for skill, model in single.items()}, suite), own)
    for kind in dict.fromkeys(["base", *(trio.tuned for trio in trios)]):
        path = result_path(out, seed, f"learnt-{kind}")
        once(path, partial(learnt, {kind: (load(kind), skills)}, suite), {kind: prints[kind]})
