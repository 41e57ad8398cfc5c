"""Measure every checkpoint of a training run: one model in memory at a time, each checkpoint a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mechclust.commands.folder import check_outside, folder_or_temporary, own_folder
from mechclust.commands.history.by_checkpoint import ByCheckpoint, results_by_checkpoint
from mechclust.commands.history.checkpoint_job import CheckpointJob
from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.curves import TITLES, Curve, other_curves, read_curve
from mechclust.commands.history.estimate import cost_of
from mechclust.commands.history.inputs import Inputs, read_inputs, sizes_of
from mechclust.commands.history.integrity import check_series, flagged_checkpoints
from mechclust.commands.history.planes import fixed_planes
from mechclust.commands.history.result import HistoryResult
from mechclust.commands.history.series import Checkpoint, find_series
from mechclust.commands.history.trial import check_probes
from mechclust.commands.saved_rows import rows_errors
from mechclust.commands.units import NONE
from mechclust.jobs import map_jobs, progress_bar
from mechclust.models.resolved import resolved_model_path
from mechclust.report.folder import check_folder, save_folder_results
from probes import ProbeResult


def measure_history(
    model: str | Path,
    config: HistoryConfig,
    out: str | Path | None = None,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> HistoryResult:
    """Run probes at every checkpoint of a training run, and check that the checkpoints are as their names say.

    Prompts and corpus are tokenized once, with the last checkpoint's tokenizer. Each checkpoint is loaded once, and
    only one is in memory at a time. Hidden states are saved in ``out/checkpoints``. Clusters and CKA are computed from
    there. A second call with this ``out`` does not reload checkpoints that are already measured.

    Args:
        model: the hub name whose revisions ``config.revisions`` are, or a folder of ``checkpoint-*`` folders. Its
            tokenizer is used if no checkpoint has one.
        config: the settings.
        out: folder for hidden states and results, or ``None`` for a temporary one, which is deleted afterwards.
        tokenizer: used instead of the checkpoints' own.
        progress: show progress bars.

    Raises:
        InputError: before any weights are loaded, for invalid settings, prompts or checkpoints. Later, for a checkpoint
            that cannot be loaded or a full disk.

    Example:
        >>> config = HistoryConfig(Path("prompts.jsonl"), revisions=("step0", "step1000"))  # doctest: +SKIP
        >>> result = measure_history("EleutherAI/pythia-70m", config, "runs/pythia")  # doctest: +SKIP
        >>> result.headline, result.crossings, result.to_dataframe()  # doctest: +SKIP
    """
    config.check()
    if out is not None:
        check_folder(Path(out), "history")
        check_outside(out, config.corpus)
    series = find_series(model, config)
    inputs = read_inputs(model, series, config, tokenizer)
    config = replace(config, units=inputs.units.label or NONE)
    check_probes(inputs, config)
    if progress:
        fewer = "fewer prompts, --n-resamples, --n-permutations or --cka-permutations"
        cost_of(inputs, sizes_of(series[-1], config), len(series), config).check(config, fewer)
    subject = {
        "model": str(resolved_model_path(model)),
        "texts": inputs.prompts_digest,
        "corpus": inputs.corpus_digest,
        "position": config.position,
    }
    with folder_or_temporary(out) as folder, rows_errors("a shorter file"), own_folder(out, "history", subject):
        if progress:
            print(inputs.units.sentence, file=sys.stderr)
        checkpoints = (folder / "checkpoints").absolute()
        own_tokenizers = tokenizer is None
        jobs = [CheckpointJob(checkpoint, checkpoints, inputs, config, own_tokenizers) for checkpoint in series]
        _run_jobs(jobs, config, checkpoints, progress)
        results = results_by_checkpoint(jobs, config, checkpoints, progress=progress)
        result = _result(str(model), series, inputs, config, jobs, results)
        if out is not None:
            save_folder_results(out, "history", result.results, subject)
    return result


def _run_jobs(jobs: Sequence[CheckpointJob], config: HistoryConfig, folder: Path, progress: bool) -> None:
    title = "checkpoints"
    if config.here:
        for job in progress_bar(jobs, desc=title, unit="model", disable=not progress):
            job.run()
    else:
        map_jobs(CheckpointJob.run, jobs, **config.on, folder=folder, progress=title if progress else None)


def _result(
    model: str,
    series: Sequence[Checkpoint],
    inputs: Inputs,
    config: HistoryConfig,
    jobs: Sequence[CheckpointJob],
    results: dict[str, ByCheckpoint],
) -> HistoryResult:
    """Check the series, and arrange the results in curves."""
    identities = [job.identity for job in jobs]
    findings = check_series(identities, _biased_cka(results.get("cka_last"), len(series)))
    wrong = flagged_checkpoints(findings)
    first = min(set(range(len(series))) - wrong, default=0)
    stores = [job.rows for job in jobs]
    named_results: dict[str, ProbeResult] = {}
    for name, by_checkpoint in results.items():
        named_results |= {f"{name}/{series[i].name}": result for i, result in by_checkpoint.items()}
    return HistoryResult(
        model=model,
        config=config,
        series=series,
        findings=findings,
        results=named_results,
        curves=_comparable(_curves(results, config, len(series)), wrong, len(series)),
        planes=fixed_planes(stores, inputs.prompts, config) if config.map_prompts else None,
        attention=[job.attention for job in jobs],
        words=inputs.words,
        input_notes=inputs.notes,
        starts_random=jobs[first].has_random_weights,
    )


def _curves(results: dict[str, ByCheckpoint], config: HistoryConfig, n: int) -> dict[str, Curve]:
    curves = {name: read_curve(name, results[name], n) for name in TITLES if name in results}
    for name in config.others:
        curves |= {curve.name: curve for curve in other_curves(name, results[name], n)}
    return curves


def _comparable(curves: dict[str, Curve], wrong: set[int], n: int) -> dict[str, Curve]:
    """Remove CKA with a checkpoint that contradicts its name, which the last one never does."""
    without = {"cka_previous": {i + 1 for i in wrong}}
    if 0 in wrong:
        without["cka_first"] = set(range(n))
    return {name: curve.without(without[name]) if name in without else curve for name, curve in curves.items()}


def _biased_cka(results: ByCheckpoint | None, n: int) -> Float[np.ndarray, "checkpoint layer"] | None:
    """Return CKA with the last checkpoint, whose 1 is reached only by identical states."""
    if not results:
        return None
    cka = np.full((n, len(results[max(results)].coords["site"])), np.nan)
    for i, result in results.items():
        cka[i] = result.sel("cka", label="all").numpy()
    return cka
