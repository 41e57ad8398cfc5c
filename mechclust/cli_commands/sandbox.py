"""``mechclust sandbox``: a model drawn over its training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from mechclust.cli_commands.printing import print_visible
from mechclust.cli_settings import Perhaps
from mechclust.commands.sandbox import View, check_new, check_output, open_sandbox, write_sandbox


def command(
    run_folder: tyro.conf.Positional[Path],
    view: tyro.conf.OmitArgPrefixes[View],
    seed: Perhaps[int] = None,
    out: Path = Path("sandbox.html"),
    epoch: Perhaps[int] = None,
    panels: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")] = (),
    max_frames: int = 300,
) -> None:
    """Run ``mechclust sandbox``.

    Args:
        run_folder: the --out folder of `mechclust run clustering-heads` or of train_ensemble, or a folder of
            checkpoints: step-000100.safetensors, as CheckpointCallback writes them into the folder of train, or
            checkpoint-100, as Hugging Face's Trainer does.
        seed: seed of the network to show, by default the first.
        out: new file to write. Its suffix decides the format.
        epoch: epoch or step that a figure shows, by default the last.
        panels: panels of a film or figure, by default all.
        max_frames: most epochs or steps to keep.
    """
    check_output(out, epoch, panels)
    check_new(out)
    view.check()
    run = open_sandbox(run_folder, seed, max_frames=max_frames, view=None if view == View() else view, epoch=epoch)
    print_visible(f"{write_sandbox(run, out, epoch=epoch, panels=panels)}: {run.title}; {run.kept}")
