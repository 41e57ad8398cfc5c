"""Save the additions of each block of base and tuned model to the base's residual stream."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from mechclust.commands.compare.config import CompareConfig
from mechclust.commands.saved_rows import Checkpoint, name_in_errors, save_batches
from mechclust.models.same_input import same_input
from probes import residual
from probes.engine.hooked_model import HookedModel, n_hooked_blocks
from probes.rows.shards import store_shards
from tasks import Batch


def block_folder(rows: Path, role: str) -> Path:
    """Return the folder of the additions of a model's blocks.

    Args:
        rows: folder of hidden states.
        role: ``"base"`` or ``"tuned"``.
    """
    return rows / f"blocks-{role}"


def save_block_rows(
    models: Mapping[Checkpoint, HookedModel],
    batches: Sequence[Batch],
    config: CompareConfig,
    rows: Path,
    *,
    progress: bool = False,
) -> None:
    """Save the rows of both models, anew in a folder that has rows of further prompts.

    Args:
        models: base and tuned model, whose hooks can write.
        batches: the prompts.
        config: the settings of the saved rows.
        rows: folder that gets ``blocks-base`` and ``blocks-tuned``.
        progress: show progress bars.
    """
    base, _ = models.values()
    blocks = residual(range(1, n_hooked_blocks(base.hook_dict) + 1))
    for checkpoint, model in models.items():
        folder = block_folder(rows, checkpoint.role)
        _remove_rows_of_others(folder, batches)
        with name_in_errors(checkpoint), same_input(base, model) as hooked:
            save_batches(hooked, batches, folder, config.readout, config.kept_labels, progress=progress, at=blocks)


def _remove_rows_of_others(folder: Path, batches: Sequence[Batch]) -> None:
    """Remove a folder with rows of prompts that are not in the batches, as after a lower ``--blocks-prompts``."""
    given = torch.cat([batch.index for batch in batches])
    kept = [shard.columns()["index"] for shard in store_shards(folder)]
    if kept and not bool(torch.isin(torch.cat(kept), given).all()):
        shutil.rmtree(folder)
