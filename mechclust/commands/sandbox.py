"""The sandbox of one trained network, as a page, a film or a figure: what `mechclust sandbox` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mechclust.report.folder import check_writable
from mechclust.report.html import png
from mechclust.studies import open_run
from mechclust.studies.clustering_heads.results import load_network
from mechclust.studies.clustering_heads.sandbox import (
    SandboxRun,
    sandbox_figure,
    sandbox_film,
    sandbox_page,
    sandbox_run,
)
from mechclust.studies.clustering_heads.sandbox.panels import panel_grid
from mechclust.training import Snapshots
from probes.files import write_atomic
from tasks import InputError

_KINDS = (".html", ".mp4", ".gif", ".png")


def open_sandbox(folder: str | Path, seed: int | None = None, *, max_frames: int = 300) -> SandboxRun:
    """One network of a clustering-head run, or of an ensemble's snapshots, ready to be shown.

    Args:
        folder: the ``--out`` of `mechclust run clustering-heads`, with the curves measured there, or the
            ``out`` of ``train_ensemble``.
        seed: seed of the network; ``None``: the first.
        max_frames: most epochs to keep.

    Raises:
        InputError: for another folder, or a seed that is not in it.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        snapshots = Snapshots(folder)
        seeds = [config.seed for config in snapshots.configs]
        return sandbox_run(snapshots, _place(seeds, seed, folder), max_frames=max_frames)
    study, config = open_run(folder)
    if study.name != "clustering-heads":
        raise InputError(
            f"{str(folder)!r} holds a run of {study.name}; give one of clustering-heads, or of train_ensemble"
        )
    from mechclust.studies.clustering_heads.figures import sandbox_of

    network = load_network(config, folder, config.seeds[_place(config.seeds, seed, folder)])
    return sandbox_of(config, network, folder, max_frames=max_frames)


def _place(seeds: Sequence[int], seed: int | None, folder: Path) -> int:
    if seed is not None and seed not in seeds:
        shown = ", ".join(map(str, seeds)) if len(seeds) < 10 else f"{min(seeds)} to {max(seeds)}"
        raise InputError(f"{str(folder)!r} has no network of seed {seed} (it has {shown})")
    return 0 if seed is None else seeds.index(seed)


def write_sandbox(run: SandboxRun, out: str | Path, *, epoch: int | None = None, panels: tuple[str, ...] = ()) -> Path:
    """Write a page (.html), film (.mp4, .gif) or figure (.png), by the name of ``out``.

    Args:
        run: from ``open_sandbox``.
        out: where to.
        epoch: of the figure; ``None``: the last.
        panels: of the film or figure; all when empty. A page has them all.

    Raises:
        InputError: for another suffix, an unknown panel, an epoch that was not kept, or a folder that cannot be
            written.
    """
    out = Path(out)
    check_output(out, epoch, panels)
    if out.suffix == ".html":
        return sandbox_page(run, out)
    if out.suffix == ".png":
        shown = run.epochs[-1] if epoch is None else epoch
        write_atomic(out, png(sandbox_figure(run, shown, panels=panels or None)))
        return out
    return sandbox_film(run, out, panels=panels or None)


def check_output(out: Path, epoch: int | None, panels: tuple[str, ...]) -> None:
    """Refuse a file of another kind, a folder that cannot be written, and options that it has no use for.

    Raises:
        InputError: saying which.
    """
    if out.suffix not in _KINDS:
        raise InputError(f"--out is {str(out)!r}; expected a name that ends in {', '.join(_KINDS)}")
    if epoch is not None and out.suffix != ".png":
        raise InputError(f"--epoch is for a figure; {str(out)!r} shows them all: give --out a name that ends in .png")
    if panels and out.suffix == ".html":
        raise InputError(
            "a page has all panels; leave --panels out, or give --out a name that ends in .png, .mp4 or .gif"
        )
    panel_grid(panels or None)
    check_writable(out.parent)
