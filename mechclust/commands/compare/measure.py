"""Compare a tuned model with its base: prompts, hidden states, measures by layer, result."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mechclust.commands.compare.both_models import measure_together
from mechclust.commands.compare.by_layer import SavedRows, results_by_layer
from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.compare.estimate import cost_of
from mechclust.commands.compare.inputs import Inputs, check_same_depth, check_same_prompts, prompts_file, read_inputs
from mechclust.commands.compare.planes import prompt_planes
from mechclust.commands.compare.result import CompareResult
from mechclust.commands.folder import own_folder
from mechclust.commands.saved_rows import rows_errors, saved_rows
from mechclust.commands.units import NONE
from mechclust.models.pretrained import AnyModel
from mechclust.report.folder import save_folder_results


def compare_models(
    base: AnyModel,
    tuned: AnyModel,
    config: CompareConfig,
    out: str | Path,
    *,
    tokenizer: Any = None,
    progress: bool = False,
) -> CompareResult:
    """Measure CKA between a model and the one it was tuned from, at every layer, for every task of the prompts.

    One model is in memory at a time: its hidden states are saved in ``out/rows`` and compared from there. Then, unless
    ``config.blocks`` is off and ``config.n_patched`` is 0, both are in memory. This measures each block's addition to
    the base's residual stream, and the effect of patching the tuned model's residual stream into the base. A second
    call with the same arguments resumes an interrupted one, and does not repeat finished measurements. With
    ``config.workers`` or a Ray cluster, the models, and then the layers, are spread over several processes. The results
    do not depend on that.

    Args:
        base: hub name or local directory, see ``load_pretrained``.
        tuned: hub name or local directory. Its tokenizer must read these prompts as the base's does, and it must
            have as many layers. Its width may differ.
        config: the settings.
        out: folder for the hidden states and, in ``results``, the measurements.
        tokenizer: tokenizer of models in memory that have none.
        progress: show progress bars.

    Raises:
        InputError: before any weights are loaded, for bad settings or prompts, an unavailable device, models without
            weights or tokenizer, tokenizers that read a prompt differently, or different numbers of layers. Also for
            too little memory or disk, a model in memory for several processes, or an ``out`` in use by another process
            or started with other prompts or models. Later, for a model that cannot be loaded, an ``out`` that holds
            another model's hidden states, or activations that are not finite.

    Example:
        >>> result = compare_models("gpt2", "my-gpt2", CompareConfig(Path("prompts.jsonl")), "out")  # doctest: +SKIP
        >>> result.headline, result.summary(), result.to_dataframe()  # doctest: +SKIP
    """
    out = Path(out)
    inputs = read_inputs(base, tuned, config, out, tokenizer)
    config = replace(config, units=inputs.units.label or NONE)
    pair = inputs.checkpoints
    config.check_shared(*(checkpoint.model for checkpoint in pair))
    subject = {f"{checkpoint.role} model": str(checkpoint.model.portable) for checkpoint in pair}
    subject["texts"] = inputs.digest()
    if progress:
        fewer = "fewer prompts (--max-per-task), half-samples (--n-resamples) or pairings (--n-permutations)"
        cost_of(inputs, config).check(config, fewer)
    begun = prompts_file(out).exists()
    with rows_errors("--max-per-task"), own_folder(out, "compare", None if begun else subject):
        check_same_prompts(inputs, out)
        if progress:
            print(inputs.units.sentence, file=sys.stderr)
        result = _measure(inputs, config, out / "rows", progress)
        save_folder_results(out, "compare", result.results, subject)
    return result


def _measure(inputs: Inputs, config: CompareConfig, folder: Path, progress: bool) -> CompareResult:
    """Save hidden states in the folder, or read the ones that ``saved_rows`` finds there, and compare them."""
    folder = folder if config.here else folder.absolute()
    base, tuned = inputs.checkpoints
    stores = saved_rows(
        inputs.checkpoints, inputs.batches, config, config.readout, config.kept_labels, folder, progress=progress
    )
    # Now of models too whose configuration does not give it.
    check_same_depth({model: len(stores[model].sites) - 1 for model in inputs.checkpoints})
    pair = {"tuned": stores[tuned], "base": stores[base]}
    rows = SavedRows(pair, inputs.of_task())
    metadata = {"tokenization": dict(inputs.tokenization)}
    together = measure_together(inputs, rows, config, folder, progress=progress)
    by_layer = results_by_layer(rows, config, folder, metadata, blocks=together.blocks, progress=progress)
    notes = list(inputs.notes)
    if stores[base].model == stores[tuned].model:
        notes.insert(0, "Base and tuned model are the same: their weights and configurations are identical.")
    return CompareResult(
        base=str(base.model),
        tuned=str(tuned.model),
        config=config,
        families=inputs.families,
        tasks=inputs.tasks,
        **by_layer,
        notes=notes,
        patching=together.patching,
        why_no_blocks=together.why_no_blocks,
        why_no_patching=together.why_no_patching,
        tokenization=inputs.tokenization,
        planes=prompt_planes(pair, inputs, config.map_prompts, progress=progress),
    )
