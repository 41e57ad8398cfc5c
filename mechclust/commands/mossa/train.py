"""Trains the adapters of a MOSSA run: each is a job, resumed where it stopped and never made twice."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mechclust.commands.mossa.config import MossaConfig
from mechclust.commands.mossa.models import TUNED, Model, ResidentBase
from mechclust.jobs import progress_bar
from mechclust.jobs.mapping import each_result
from mechclust.jobs.outcome import first_of
from mechclust.models.resolved import absolute_path
from mechclust.training.tuning import Tuned, tune_adapter, tuned_at
from mechclust.training.tuning.errors import DivergedError
from tasks import InputError


@dataclass(frozen=True)
class Trained:
    """The adapters of a run.

    Attributes:
        found: by model.
        failed: why a model's training was given up, by model.
    """

    found: dict[Model, Tuned]
    failed: dict[Model, str]


def train_adapters(
    base: str, models: Sequence[Model], config: MossaConfig, out: Path, *, progress: bool = False
) -> Trained:
    """Every adapter of a run; those that are there are not trained again.

    A loss that is not finite ends that adapter alone; what else goes wrong is raised when all others are done.

    Raises:
        InputError: where the multi-task model could not be trained.
    """
    wanted = [model for model in models if model.kind != "base" and model.given is None]
    lacking = [model for model in wanted if tuned_at(model.folder(out)) is None]
    failed: dict[Model, str] = {}
    errors: list[Exception] = []
    if wanted:  # also what is there is compared with what is asked for
        results = each_result(
            partial(_train, progress=progress),
            [*lacking, *(model for model in wanted if model not in lacking)],
            setup=partial(ResidentBase, absolute_path(base), config.portable, out.absolute()),
            workers=config.workers or (1 if config.here else None),
            engine=config.jobs,
            timeout=config.job_timeout,
            folder=out,
            name=lambda model: model.name,
        )
        order = [*lacking, *(model for model in wanted if model not in lacking)]
        bar = progress_bar(total=len(wanted), desc="training adapters", unit="adapter", disable=not progress)
        with closing(results), closing(bar):
            for outcome in results:
                if outcome.error is not None:
                    errors.append(outcome.error)
                elif outcome.value is not None:
                    failed[order[outcome.position]] = outcome.value
                bar.update()
    if errors:
        raise first_of(errors)
    for model, why in failed.items():
        if model.kind == TUNED:
            raise InputError(f"{why}; without this model there is nothing to compare the others with")
    found = {model: tuned for model in wanted if (tuned := tuned_at(model.folder(out))) is not None}
    return Trained(found, failed)


def _train(resident: ResidentBase, model: Model, *, progress: bool) -> str | None:
    """One adapter; why it was given up, or ``None``."""
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
