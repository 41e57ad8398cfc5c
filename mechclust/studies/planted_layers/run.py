"""Train the models of the study, plant changes in them, and measure every pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mechclust.models import load_model, load_pretrained
from mechclust.models.chat_templates import templated_tokenizer
from mechclust.models.hugging_face_checkpoint import find_checkpoint, read_checkpoint_config
from mechclust.models.sizes import Sizes
from mechclust.models.tokenized_prompts import tokenize_prompts
from mechclust.report.text import counted
from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.kept import measure_once, on_device, pretrain, train_once
from mechclust.studies.planted_layers.alike import measure_alike, share_learnt
from mechclust.studies.planted_layers.config import (
    Made,
    PlantedConfig,
    measured_skills,
    model_path,
    pairs_of,
    result_path,
    spans_of,
    suite_of,
)
from mechclust.studies.planted_layers.measure import Loss, measure_planted, next_token_loss, patch_layers
from mechclust.studies.planted_layers.plant import n_layers_of, plant_in, rounded_in
from mechclust.studies.planted_layers.trios import (
    base_name,
    control_name,
    control_sets,
    trios_of,
)
from mechclust.studies.planted_layers.tunings import ModelJob, tunings
from mechclust.studies.study import check_machine
from mechclust.training import train
from probes import HookedModel, ProbeResult, Readout, last_token, load_result, token_at
from probes.store.digest import digest_of
from probes.store.safetensors_files import is_whole_file
from tasks import Batch, InputError, SkillSuite
from tasks.text.prompts import LabelledPrompts
from tasks.text.visible import quoted

_TOKENS_PER_BATCH = 1024  # of a given model, unless a prompt is longer: the streams of all layers are held at once


def check(config: PlantedConfig) -> None:
    """Refuse a given model that is missing or lacks planted layers, and prompts that are missing or too few.

    Raises:
        InputError: saying which, before anything is written.
    """
    check_machine(config)
    if config.model is None or config.prompts is None:
        return
    sizes = Sizes.from_config(read_checkpoint_config(find_checkpoint(config.model)))
    if sizes.n_layers is not None:
        spans_of(config, sizes.n_layers)
    counts = Counter(LabelledPrompts.from_file(config.prompts).labels["task"])
    task = min(counts, key=counts.__getitem__)
    if counts[task] <= config.n_few:
        raise InputError(
            f"{config.prompts!r} has {counted(counts[task], 'prompt')} of {quoted(task)}, and n_few is {config.n_few}; "
            "expected more, or lower n_few"
        )


def run_job(config: PlantedConfig, job: ModelJob, out: Path) -> None:
    """Train a model, or measure all pairs of a seed, keeping existing results."""
    if job.kind == "measure":
        _measure(config, job.seed, out)
    elif job.kind == "compare":
        _compare(config, job.seed, out)
    else:
        _train(config, job, out)


def trained_models(config: PlantedConfig, out: Path) -> list[TrainedModel]:
    """Return the base model of each seed, or the given one, with the prompts measured."""
    if config.model is not None:
        return [TrainedModel("base", partial(_base_and_prompts, config, config.seeds[0], out))]
    return [
        TrainedModel(f"base-seed{seed}", partial(_base_and_prompts, config, seed, out), partial(_prompts, config, seed))
        for seed in config.seeds
    ]


def _base_and_prompts(config: PlantedConfig, seed: int, out: Path) -> tuple[HookedModel, Iterable[Batch]]:
    source = _source(config, seed, out)
    return source.load("base"), source.batches("test")


def _prompts(config: PlantedConfig, seed: int) -> Iterable[Batch]:
    return suite_of(config, seed).batches("test", tasks=measured_skills(config))


# ---- training ----


def _train(config: PlantedConfig, job: ModelJob, out: Path) -> None:
    path = model_path(out, job.seed, job.model)
    if job.kind == "base":
        train_once(path, partial(pretrain, config, suite_of(config, job.seed), job.seed, job.name))
    else:
        base = _load(config, job.seed, out, "base")
        train_once(path, partial(_tune, config, job, base))


def _tune(config: PlantedConfig, job: ModelJob, base: HookedModel, state: Path) -> tuple[HookedModel, int]:
    tuning = tunings(config)[job.model]
    suite = tuning.suite(suite_of(config, job.seed))
    train(base, suite, tuning.settings(config), state, progress=True, name=job.name)
    return base, tuning.steps


def _load(config: PlantedConfig, seed: int, out: Path, name: str) -> HookedModel:
    return on_device(load_model(model_path(out, seed, name)), config.device)


# ---- models and prompts ----


@dataclass(frozen=True)
class _Source:
    """The models of a seed, and the prompts that they are measured on.

    Attributes:
        load: name to trained model.
        batches: split to the prompts to measure on.
        few_batches: split to the prompts to patch on.
        readout: the position to read.
        loss: the loss that patching restores.
        digest: of the given prompts and their tasks, or ``""`` for the miniature's.
    """

    load: Callable[[str], HookedModel]
    batches: Callable[[str], Iterable[Batch]]
    few_batches: Callable[[str], Iterable[Batch]]
    readout: Readout
    loss: Loss
    digest: str


def _source(config: PlantedConfig, seed: int, out: Path) -> _Source:
    if config.model is not None:
        given = _GivenModel(config)
        batches = partial(given.batches, config.suite.n_eval)
        few_batches = partial(given.batches, config.n_patched)
        return _Source(given.load, batches, few_batches, last_token(), next_token_loss, given.digest())
    suite = suite_of(config, seed)
    few = replace(suite, n_eval=min(config.n_patched, suite.n_eval))
    skills = measured_skills(config)
    return _Source(
        partial(_load, config, seed, out),
        partial(suite.batches, tasks=skills),
        partial(few.batches, tasks=skills),
        token_at("answer"),
        suite.loss,
        digest="",
    )


class _GivenModel:
    """A checkpoint, read when it is needed, and the prompts of a file."""

    def __init__(self, config: PlantedConfig) -> None:
        assert config.prompts is not None
        self.config = config
        self.prompts = LabelledPrompts.from_file(config.prompts)
        self.loaded: Any = None

    def load(self, name: str) -> HookedModel:
        """Return the checkpoint, whatever the name."""
        model = load_pretrained(str(self.config.model), device=self.config.device)
        self.loaded = model
        return model

    def digest(self) -> str:
        """Return a digest of the prompts that are measured and of their tasks."""
        chosen = _first_of_each(self.prompts, max(self.config.suite.n_eval, self.config.n_patched))
        return digest_of([*chosen.prompts, *chosen.labels["task"]])

    def batches(self, n_per_task: int, split: str) -> Iterator[Batch]:
        """Return the first prompts of each task, whatever the split."""
        if self.loaded is None:
            self.load("base")
        prompts = _first_of_each(self.prompts, n_per_task)
        sizes = Sizes.from_model(self.loaded)
        tokenizer = self.loaded.tokenizer
        longest = max(map(len, templated_tokenizer(tokenizer)(prompts.prompts)))
        tokens_per_batch = max(_TOKENS_PER_BATCH, min(longest, sizes.n_ctx or longest))
        return tokenize_prompts(prompts, tokenizer, sizes, tokens_per_batch=tokens_per_batch, too_long="truncate")


def _first_of_each(prompts: LabelledPrompts, n_per_task: int) -> LabelledPrompts:
    """Return at most this many prompts per task."""
    counts: Counter[str] = Counter()
    chosen = []
    for i, task in enumerate(prompts.labels["task"]):
        counts[task] += 1
        if counts[task] <= n_per_task:
            chosen.append(i)
    texts = [prompts.prompts[i] for i in chosen]
    tasks = [prompts.labels["task"][i] for i in chosen]
    return LabelledPrompts(texts, {"task": tasks}, source=prompts.source)


class _ChangedModels:
    """The models of the pairs: two copies of each model in use, so that one can be changed."""

    def __init__(self, source: _Source, seed: int) -> None:
        self.source = source
        self.seed = seed
        self.copies: dict[int, tuple[str, HookedModel]] = {}

    def copy(self, name: str, side: int) -> HookedModel:
        """Return the trained model with this name. Each side has a separate copy."""
        if side not in self.copies or self.copies[side][0] != name:
            self.copies[side] = (name, self.source.load(name))
        return self.copies[side][1]

    @contextmanager
    def changed(self, change: Made, side: int) -> Iterator[HookedModel]:
        """Give a model its planted change inside a context."""
        model = self.copy(change.source, side)
        if change.rounded:
            with rounded_in(model):
                yield model
        elif change.noise:
            layers = change.layers or tuple(range(1, n_layers_of(model) + 1))
            with plant_in(model, layers, noise=change.noise, seed=10_000 * self.seed + change.draw):
                yield model
        else:
            yield model


# ---- measuring ----


def _measure(config: PlantedConfig, seed: int, out: Path) -> None:
    """Measure how far apart the models of every pair are, and how much patching restores."""
    source = _source(config, seed, out)
    if source.digest:
        _check_same_prompts(config, out, source.digest)
    models = _ChangedModels(source, seed)
    for pair in pairs_of(config, n_layers_of(models.copy("base", 0))):
        with models.changed(pair.base, 0) as base, models.changed(pair.tuned, 1) as tuned:
            change = partial(
                measure_planted, base, tuned, source.batches(pair.split), source.readout, n_few=config.n_few
            )
            measure_once(result_path(out, seed, f"{pair.name}.change"), partial(_with_digest, change, source.digest))
            if pair.truth is not None:
                patch = partial(patch_layers, base, tuned, source.few_batches(pair.split), source.loss)
                measure_once(result_path(out, seed, f"{pair.name}.patched"), patch)


def _with_digest(measure: Callable[[], ProbeResult], digest: str) -> ProbeResult:
    """Return a result whose metadata has the digest of the given prompts, if there are any."""
    result = measure()
    return replace(result, metadata={**result.metadata, "prompts": digest}) if digest else result


def _check_same_prompts(config: PlantedConfig, out: Path, digest: str) -> None:
    """Refuse prompts other than those that a part of this run was measured on."""
    for seed in config.seeds:
        for path in sorted(result_path(out, seed, "").parent.glob("*.change.safetensors")):
            if is_whole_file(path) and load_result(path).metadata.get("prompts", digest) != digest:
                raise InputError(
                    f"{config.prompts!r} was changed since seed {seed} was measured; restore it, or choose another "
                    "folder with --out"
                )


def _compare(config: PlantedConfig, seed: int, out: Path) -> None:
    """Measure the similarity of the base and of models of several tasks to controls, and how much all learnt."""
    suite = suite_of(config, seed)
    skills = measured_skills(config)
    load = partial(_load, config, seed, out)
    base = load("base")
    trios = trios_of(config)
    for controls in control_sets(config):
        single = {skill: load(control_name(controls, skill)) for skill in skills}
        compared = {base_name(controls): "base"}
        compared |= {trio.name: trio.tuned for trio in trios if trio.controls == controls}
        for name, tuned in compared.items():
            model = base if tuned == "base" else load(tuned)
            prompts = partial(_prompts_of, suite)
            measure = partial(measure_alike, model, single, base, prompts, token_at("answer"), n_few=config.n_few)
            measure_once(result_path(out, seed, name), measure)
        alone = {skill: (model, [skill]) for skill, model in single.items()}
        measure_once(result_path(out, seed, f"learnt-{controls}"), partial(share_learnt, alone, suite))
    for tuned in dict.fromkeys(["base", *(trio.tuned for trio in trios)]):
        answers = partial(share_learnt, {tuned: (load(tuned), skills)}, suite)
        measure_once(result_path(out, seed, f"learnt-{tuned}"), answers)


def _prompts_of(suite: SkillSuite, skill: str) -> Iterable[Batch]:
    return suite.batches("test", tasks=[skill])
