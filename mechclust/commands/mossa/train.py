"""Train the adapters of a MOSSA run: each is a job, resumed after interruptions and never trained twice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.inputs import Inputs
from mechclust.commands.mossa.models import BASE, TUNED, Model, ResidentBase, run_on_base, tuning_of
from mechclust.training.diverged import DivergedError
from mechclust.training.tuning import TunedAdapter, tune_adapter, tuned_adapter_at
from tasks import InputError
from tasks.settings import settings_to_json


@dataclass(frozen=True)
class Trained:
    """The adapters of a run.

    Attributes:
        adapters: by model.
        failed: why a model's training was given up, by model.
    """

    adapters: dict[Model, TunedAdapter]
    failed: dict[Model, str]


def train_adapters(inputs: Inputs, config: MossaConfig, out: Path, *, progress: bool = False) -> Trained:
    """Train every adapter of a run that is not trained yet.

    A loss that is not finite ends that adapter alone. Other errors are raised when all others are done.

    Raises:
        InputError: before anything is trained, for an adapter of other settings; at the end, if the multi-task model
            could not be trained.
    """
    wanted = [model for model in inputs.models if model.kind != BASE and model.given is None]
    lacking = []
    for model in wanted:
        settings = settings_to_json(tuning_of(model, inputs.collection, config))
        if tuned_adapter_at(model.folder(out), {"config": settings}, model.name) is None:
            lacking.append(model)
    # Finished adapters are jobs too, the first ones: their data and the base are compared with those of this run.
    order = [*(model for model in wanted if model not in lacking), *lacking]
    if not order:
        return Trained({}, {})
    train = partial(_train, progress=progress)
    title = "training adapters" if progress else None
    reasons = run_on_base(train, order, inputs.base, config, out, title=title)
    failed = {model: why for model, why in zip(order, reasons, strict=True) if why is not None}
    for model, why in failed.items():
        if model.kind == TUNED:
            raise InputError(f"{why}; without this model there is nothing to compare the others with")
    adapters = {}
    for model in wanted:
        tuned = tuned_adapter_at(model.folder(out))
        if tuned is not None:
            adapters[model] = tuned
    return Trained(adapters, failed)


def _train(resident: ResidentBase, model: Model, *, progress: bool) -> str | None:
    """Train one adapter. Return why it was given up, or ``None``."""
    examples, tuning = resident.training(model)
    try:
        tune_adapter(
            resident.plain,
            examples,
            tuning,
            model.folder(resident.out),
            base=resident.print,
            name=model.name,
            source=str(resident.base),
            progress=progress,
        )
    except DivergedError as error:
        return str(error)
    return None
