"""Measure the roles of attention heads: texts, one model after the other, result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from mechclust.attention import attention_view
from mechclust.commands.folder import check_outside, folder_or_temporary, own_folder
from mechclust.commands.heads.config import HeadsConfig
from mechclust.commands.heads.estimate import cost_of
from mechclust.commands.heads.inputs import Inputs, read_inputs
from mechclust.commands.heads.measurements import ATTENTION, TRAINED, ModelRoles
from mechclust.commands.heads.result import HeadsResult
from mechclust.commands.parts import MeasurementPart, part_path, remove_others
from mechclust.commands.settings import stamps_of
from mechclust.jobs import map_jobs, progress_bar
from mechclust.models.pretrained import AnyModel
from mechclust.models.resolved import ResolvedModel
from mechclust.report.folder import check_folder, check_folder_subject, save_folder_results
from probes import HeadRoles, HookedModel, ProbeResult, run
from probes.engine.fingerprint import fingerprint
from tasks import Batch

PARTS = "roles"  # folder of what was measured of each model
_MAX_VIEW_BYTES = 10**9  # of all heads together, of which a few are shown


def measure_heads(
    model: AnyModel,
    config: HeadsConfig,
    out: str | Path | None = None,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> HeadsResult:
    """Measure which role each attention head plays, on repeated random tokens and on documents of a corpus.

    One model is in memory at a time. With ``config.workers`` or a Ray cluster several processes measure a model each;
    the results are the same.

    Args:
        model: hub name or local directory, or a loaded model: Hugging Face's, or one from ``load_pretrained``.
        config: what to measure.
        out: folder for what was measured, so that the same call goes on after an interruption; ``None``: nothing is
            kept.
        tokenizer: tokenizer of a loaded Hugging Face model.
        progress: print an estimate of the cost first, and show progress bars.

    Raises:
        InputError: before any weights are loaded: for bad settings or texts, a model in memory for several processes,
            and an ``out`` that another process uses or that holds something else. Later: for a model that cannot be
            loaded or whose attention cannot be measured, and an ``out`` with measurements of other weights.

    Example:
        >>> result = measure_heads("gpt2", HeadsConfig(corpus=(Path("texts"),)), "runs/heads")  # doctest: +SKIP
        >>> result.headline, result.by_role()  # doctest: +SKIP
    """
    if out is not None:
        check_folder(Path(out), "heads")
        check_outside(out, config.corpus)
    resolved = config.resolve(model)
    config.check_shared(resolved)
    inputs = read_inputs(resolved, config, tokenizer)
    subject = {"model": resolved.portable.title, "texts": inputs.digest}
    if progress:
        cost_of(inputs, config).check(config, "fewer --n-sequences, --max-documents or --n-permutations")
    with folder_or_temporary(out) as folder, own_folder(out, "heads", subject):
        models = _measure(resolved, inputs, config, tokenizer, folder / PARTS, progress=progress)
        trained, *untrained = models
        result = HeadsResult(
            model=resolved.title,
            config=config,
            trained=trained,
            untrained=untrained,
            tokenization=inputs.tokenization,
            input_notes=inputs.notes,
        )
        if out is not None:
            save_folder_results(folder, "heads", result.results, {**subject, "weights": trained.weights})
    return result


def _measure(
    model: ResolvedModel, inputs: Inputs, config: HeadsConfig, tokenizer: Any, folder: Path, *, progress: bool
) -> list[ModelRoles]:
    """Measure the model and the copies with random weights."""
    job = ModelJob(TRAINED, model, config, inputs, tokenizer, folder, progress and config.here)
    jobs = [job]
    for seed in range(config.untrained):
        jobs.append(replace(job, name=f"untrained-seed{seed}", model=model.without_adapter, untrained=seed))
    if config.here:
        measured = [job.run() for job in jobs]
    else:
        jobs = [replace(job, model=job.model.portable, folder=folder.absolute()) for job in jobs]
        title = "models" if progress else None
        measured = map_jobs(methodcaller("run"), jobs, **config.on, folder=folder.absolute(), progress=title)
    remove_others(folder, set(chain.from_iterable(paths for _, paths in measured)))
    return [roles for roles, _ in measured]


@dataclass(frozen=True)
class ModelJob:
    """Measure one model on every text. It is loaded once, and from files only if a measurement is not kept.

    Attributes:
        name: name of the job in errors and files.
        model: the model.
        config: the settings.
        inputs: the texts.
        tokenizer: tokenizer of a loaded Hugging Face model.
        folder: where measurements are kept.
        progress: show progress bars.
        untrained: seed of random weights; ``None`` for the model's own.
    """

    name: str
    model: ResolvedModel
    config: HeadsConfig
    inputs: Inputs
    tokenizer: Any
    folder: Path
    progress: bool
    untrained: int | None = None

    def run(self) -> tuple[ModelRoles, list[Path]]:
        """Return what was measured, and the files in which it is kept.

        Raises:
            InputError: for a model of other weights than the folder's.
        """
        config = self.config
        probe = config.probe(config.n_permutations if self.untrained is None else 0)
        with ExitStack() as stack:
            load = cache(partial(self._load, stack))  # loads at the first call, for as long as the stack is open
            identity = fingerprint(load()) if self.model.in_memory else _stamps(self.model)
            roles = {}
            shown = {}
            for text, batches in self.inputs.batches.items():
                measure = partial(_roles, load, probe, batches, f"{self.name}, {text}" if self.progress else None)
                roles[text] = self._part(f"roles of {self.name} on {text}", text, repr(probe), identity, measure)
                if self.untrained is None:
                    measure = partial(_attention, load, self.inputs.shown[text])
                    shown[text] = self._part(f"attention of {self.name} on {text}", text, "", identity, measure)
            paths = [part.path for part in (*roles.values(), *shown.values())]
            measured = ModelRoles(
                {text: part.found() for text, part in roles.items()},
                {text: part.found() for text, part in shown.items()},
            )
        if self.untrained is None:  # before other models are measured, and earlier measurements removed
            check_folder_subject(self.folder.parent, {"weights": measured.weights})
        return measured, paths

    def _load(self, stack: ExitStack) -> HookedModel:
        """Return the model, which is kept until the stack is closed."""
        options: dict[str, Any] = {} if self.untrained is None else {"untrained": True, "seed": self.untrained}
        loading = self.config.loaded(self.model, "text", tokenizer=self.tokenizer, without_patterns=True, **options)
        hooked: HookedModel = stack.enter_context(loading)[0]
        return hooked

    def _part(
        self, name: str, text: str, probe: str, identity: str | list[Any], measure: partial[ProbeResult]
    ) -> MeasurementPart:
        """Return a measurement whose file is named by all that its numbers depend on."""
        settings = [probe, identity, self.config.dtype, self.config.quantize, self.untrained]
        numbers = self.inputs.numbers(text)
        return MeasurementPart(part_path(self.folder, name.replace(" ", "-"), settings, numbers), name, measure)


def _stamps(model: ResolvedModel) -> list[Any]:
    """Return the folders of a model's weights and the times of their files, which tell it from others."""
    return [[folder, stamps_of(folder)] for folder in model.portable.folders]


def _roles(
    load: Callable[[], HookedModel], probe: HeadRoles, batches: Sequence[Batch], title: str | None
) -> ProbeResult:
    """Return the roles of a model's heads."""
    shown = batches if title is None else progress_bar(batches, desc=title, unit="batch")
    return run(load(), shown, probe)


def _attention(load: Callable[[], HookedModel], tokens: Int[Tensor, "pos"]) -> ProbeResult:
    """Return the attention of every head on one sequence."""
    view = attention_view(load(), tokens, max_bytes=_MAX_VIEW_BYTES)
    places = [str(place) for place in range(len(view.str_tokens))]
    return ProbeResult(
        "Attention",
        {ATTENTION: view.patterns.half()},
        {ATTENTION: ("name", "query", "key")},
        {"name": list(view.names), "query": places, "key": places},
        metadata={"tokens": list(view.str_tokens), "causal": view.causal},
    )
