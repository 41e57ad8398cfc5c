"""Write the sandbox of one trained model as a page, a film or a figure: `mechclust sandbox`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Shaped
from torch import Tensor

from mechclust.models import build_model, load_model, load_pretrained
from mechclust.models.resolved import resolve_model
from mechclust.models.tokenized_prompts import tokenize_prompts
from mechclust.models.tokenizers import tokenizer_and_sizes
from mechclust.models.weights import set_weights
from mechclust.report.folder import check_writable
from mechclust.report.pictures import png_bytes
from mechclust.sandbox import SandboxRun, record_sandbox, sandbox_figure, sandbox_film, sandbox_page
from mechclust.sandbox.drawn_planes import PlaneName
from mechclust.sandbox.film import find_ffmpeg
from mechclust.sandbox.frames import choose_frames
from mechclust.studies import open_run
from mechclust.studies.clustering_heads.results import load_network
from mechclust.studies.clustering_heads.sandbox import is_drawn_whole, sandbox_run
from mechclust.training import Snapshots
from mechclust.training.state import task_of_state
from probes.engine.hooked_model import HookedModel
from probes.engine.readout import last_token, token_at
from probes.store.files import write_atomic
from tasks import InputError, Task
from tasks.settings import Several, check_settings
from tasks.text.bos_token import Bos
from tasks.text.prompts import LabelledPrompts

_SANDBOX_SUFFIXES = (".html", ".mp4", ".gif", ".png")
_PREFERRED_SPLITS = ("validation_subset", "validation", "test", "dev")
_STEP = re.compile(r"(?:step|checkpoint)-(\d+)")  # a checkpoint's name, without its suffix
_BATCH_SIZE = 1024  # examples from which those followed are taken, at least


@dataclass(frozen=True, kw_only=True)
class View:
    """Choice of views of a model of any size.

    Args:
        label: whose values colour the sequences. By default the task, or the right answer if there is none.
        layers: of the residual stream, 0 for the embedding. By default those of all blocks, or six if there are more.
        heads: such as L0H1. By default all, or none if there are more than eight.
        plane: plane of the points, fixed in all frames: pca (of all frames), last (of the last frame) or classes
            (through the means of the colours in the last frame).
        split: of the task, from which sequences are taken.
        position: a named position of the sequences to read, such as input. By default, the last token.
        sequences: number of sequences to follow.
        prompts: file of prompts with their tasks, as other commands read it, for checkpoints in Hugging Face's format.
        bos: whether each prompt begins with the beginning-of-sequence token: ``yes``, ``no``, or ``model``, as the
            tokenizer does.
        too_long: for a prompt longer than the model's context: ``refuse`` it, or ``truncate`` it from the left.
    """

    label: str | None = None
    layers: tuple[int, ...] = ()
    heads: tuple[str, ...] = ()
    plane: PlaneName = "pca"
    split: str | None = None
    position: str | None = None
    sequences: Several = 64
    prompts: Path | None = None
    bos: Bos = "model"
    too_long: Literal["refuse", "truncate"] = "refuse"

    def check(self) -> None:
        """Refuse values out of range."""
        check_settings(self)


def open_sandbox(
    folder: str | Path,
    seed: int | None = None,
    *,
    max_frames: int = 300,
    view: View | None = None,
    epoch: int | None = None,
) -> SandboxRun:
    """Return one model of a run, ready to be shown.

    Args:
        folder: the ``--out`` of `mechclust run clustering-heads`, with the curves measured there, or the ``out`` of
            ``train_ensemble``. Or a folder of checkpoints, ``step-000100.safetensors`` as ``CheckpointCallback`` writes
            them or ``checkpoint-100`` as Hugging Face's Trainer does, or one with such a folder in it, like the ``out``
            of ``train``.
        seed: of the network, or ``None`` for the first.
        max_frames: most epochs or steps to keep.
        view: the view. With ``None``, a network that ``sandbox_run`` draws is shown entirely, and others by the
            defaults of ``View``.
        epoch: epoch or step that must be among those kept, as for a figure of it.

    Raises:
        InputError: for another folder, a seed that is not in it, a view that it cannot have, or another epoch.
    """
    folder = Path(folder)
    if (folder / "config.json").exists():
        return _of_study(folder, seed, max_frames, view)
    if any(folder.glob("snapshots-*")) and not _checkpoints(folder):
        return _of_ensemble(folder, seed, max_frames, view, epoch)
    holder = _holder(folder)
    checkpoints = _checkpoints(holder)
    if not checkpoints:
        raise InputError(
            f"{str(folder)!r} holds nothing to show; give the --out of mechclust run clustering-heads, the out of "
            "train or train_ensemble, or a folder of checkpoints"
        )
    if seed is not None:
        raise InputError(f"{str(folder)!r} holds the checkpoints of one model; leave --seed out")
    shown = _of_checkpoints(holder, checkpoints, max_frames, view or View(), epoch)
    return replace(shown, available=len(checkpoints))


def _of_ensemble(folder: Path, seed: int | None, max_frames: int, view: View | None, epoch: int | None) -> SandboxRun:
    snapshots = Snapshots(folder)
    member = _place([config.seed for config in snapshots.configs], seed, folder)
    config = snapshots.configs[member]
    task = snapshots.tasks[member]
    if view is None and is_drawn_whole(snapshots, member):
        return sandbox_run(snapshots, member, max_frames=max_frames)
    view = view or View()
    weights = snapshots.of(member)
    rows = {snapshots.steps[row]: row for row in choose_frames(snapshots.steps, max_frames)}
    _check_kept(epoch, list(rows))
    model = build_model(config)
    checkpoints = ((step, _with_weights(model, weights, row)) for step, row in rows.items())
    which = {**_shown(task, view), **_places(view), "max_frames": len(rows)}
    shown = record_sandbox(checkpoints, title=f"seed {config.seed}", **which)
    return replace(shown, available=len(snapshots.steps))


def _check_kept(step: int | None, kept: Sequence[int]) -> None:
    """Refuse a step without a frame, before a model is run."""
    if step is not None and step not in kept:
        near = min(kept, key=lambda other: abs(other - step))
        raise InputError(f"--epoch is {step}, which is not among the {len(kept)} steps shown; the nearest is {near}")


def _with_weights(model: HookedModel, weights: Mapping[str, Shaped[Tensor, "snapshot ..."]], row: int) -> HookedModel:
    set_weights(model, {name: values[row] for name, values in weights.items()})
    return model


def _of_study(folder: Path, seed: int | None, max_frames: int, view: View | None) -> SandboxRun:
    study, config = open_run(folder)
    if study.name != "clustering-heads":
        raise InputError(
            f"{str(folder)!r} holds a run of {study.name}; give one of clustering-heads, of train_ensemble, or a "
            "folder of checkpoints"
        )
    if view is not None:
        raise InputError(
            "a run of clustering-heads is shown whole; leave --label, --layers, --heads and their like out"
        )
    from mechclust.studies.clustering_heads.shown import sandbox_of

    network = load_network(config, folder, config.seeds[_place(config.seeds, seed, folder)])
    return sandbox_of(config, network, folder, max_frames=max_frames)


# ---- folders of checkpoints ----


def _checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a folder by step, in order."""
    by_step = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _STEP.fullmatch(path.stem)
        if match and path.suffix in ("", ".safetensors"):
            by_step[int(match[1])] = path
    return dict(sorted(by_step.items()))


def _holder(folder: Path) -> Path:
    """Return the folder, or the only one in it that holds checkpoints, such as ``models`` in the ``out`` of ``train``.

    Raises:
        InputError: for several.
    """
    if not folder.is_dir() or _checkpoints(folder):
        return folder
    below = sorted(path for path in folder.iterdir() if path.is_dir() and _checkpoints(path))
    if len(below) > 1:
        names = ", ".join(path.name for path in below)
        raise InputError(f"{str(folder)!r} holds several folders of checkpoints ({names}); give one of them")
    return below[0] if below else folder


def _of_checkpoints(
    folder: Path, by_step: dict[int, Path], max_frames: int, view: View, epoch: int | None
) -> SandboxRun:
    every_step = list(by_step)
    steps = [every_step[i] for i in choose_frames(every_step, max_frames)]
    _check_kept(epoch, steps)
    if all(path.suffix for path in by_step.values()):
        task = _task_of(folder)
        checkpoints = ((step, load_model(by_step[step])) for step in steps)
        title = folder.parent.name if folder.name == "models" else folder.name
        which = {**_shown(task, view), **_places(view), "max_frames": len(steps)}
        return record_sandbox(checkpoints, title=title, **which)
    if view.prompts is None:
        raise InputError(f"{str(by_step[steps[0]])!r} needs texts to read; give them with --prompts")
    for name in ("split", "position"):
        if getattr(view, name) is not None:
            raise InputError(f"--{name} is for a task's examples, and --prompts gives the texts; leave --{name} out")
    prompts = LabelledPrompts.from_file(view.prompts)
    tokenizer, sizes = tokenizer_and_sizes(resolve_model(by_step[steps[0]]))
    label = "task" if view.label is None else view.label
    return record_sandbox(
        ((step, load_pretrained(by_step[step])) for step in steps),
        # One batch, of which the model reads only the prompts that are followed.
        tokenize_prompts(prompts, tokenizer, sizes, tokens_per_batch=sys.maxsize, bos=view.bos, too_long=view.too_long),
        title=f"{folder.name}{_left_out(folder)}",
        label=label,
        label_names=prompts.classes.get(label),
        vocab=partial(_token_text, tokenizer),
        max_frames=len(steps),
        **_places(view),
    )


def _left_out(folder: Path) -> str:
    """Name the checkpoints whose name is no step alone, so that they have no place among the others."""
    checkpoints = [path.name for path in sorted(folder.glob("checkpoint-*")) if path.is_dir()]
    names = [name for name in checkpoints if _STEP.fullmatch(name) is None]
    return f" (without {', '.join(names)}: not checkpoint- and a step)" if names else ""


def _token_text(tokenizer: Any, token: int) -> str:
    return str(tokenizer.decode([token]))


def _task_of(folder: Path) -> Task:
    for path in (folder / "state.safetensors", folder.parent / "state.safetensors"):
        if path.exists():
            return task_of_state(path)
    raise InputError(
        f"{str(folder)!r} has no state.safetensors that says which task was trained; give the `out` of train, or a "
        "folder in it"
    )


# ---- contents ----


def _shown(task: Task, view: View) -> dict[str, Any]:
    """Return the examples of a task and the facts known of them."""
    if view.prompts is not None:
        raise InputError(f"--prompts is for checkpoints that read texts; this run was trained on {task.name!r}")
    for name in ("bos", "too_long"):
        if getattr(view, name) != getattr(View, name):
            option = name.replace("_", "-")
            raise InputError(f"--{option} is for texts, and this run was trained on {task.name!r}; leave it out")
    split = view.split or next((name for name in _PREFERRED_SPLITS if name in task.splits), task.splits[0])
    batch = next(iter(task.batches(split, max(_BATCH_SIZE, view.sequences))))
    position = view.position or ("input" if "input" in batch.positions else None)
    label = view.label or ("task" if "task" in batch.labels else None)
    return {
        "batches": batch,
        "label": label,
        "readout": last_token() if position is None else token_at(position),
        "vocab": task.vocab,
    }


def _places(view: View) -> dict[str, Any]:
    return {
        "layers": view.layers or None,
        "heads": view.heads or None,
        "planes": view.plane,
        "max_sequences": view.sequences,
    }


def _place(seeds: Sequence[int], seed: int | None, folder: Path) -> int:
    if seed is not None and seed not in seeds:
        shown = ", ".join(map(str, seeds)) if len(seeds) < 10 else f"{min(seeds)} to {max(seeds)}"
        raise InputError(f"{str(folder)!r} has no network of seed {seed} (it has {shown})")
    if seeds.count(seed) > 1:
        raise InputError(
            f"{str(folder)!r} has {seeds.count(seed)} networks of seed {seed}, which --seed does not tell apart; leave "
            "it out for the first of all"
        )
    return 0 if seed is None else seeds.index(seed)


def write_sandbox(run: SandboxRun, out: str | Path, *, epoch: int | None = None, panels: tuple[str, ...] = ()) -> Path:
    """Write a page (.html), film (.mp4, .gif) or figure (.png), by the name of ``out``.

    Args:
        run: from ``open_sandbox``.
        out: the file.
        epoch: epoch of the figure, or ``None`` for the last.
        panels: panels of the film or figure, or all if empty. A page has them all.

    Raises:
        InputError: for another suffix, an unknown panel, an epoch that was not kept, or a folder that cannot be
            written.
    """
    out = Path(out)
    check_output(out, epoch, panels)
    if out.suffix == ".html":
        return sandbox_page(run, out)
    if out.suffix == ".png":
        epoch = run.epochs[-1] if epoch is None else epoch
        write_atomic(out, png_bytes(sandbox_figure(run, epoch, panels=panels or None)))
        return out
    return sandbox_film(run, out, panels=panels or None)


def check_output(out: Path, epoch: int | None, panels: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, and options that it has no use for.

    Raises:
        InputError: saying which.
    """
    if out.suffix not in _SANDBOX_SUFFIXES:
        raise InputError(f"--out is {str(out)!r}; expected a name that ends in {', '.join(_SANDBOX_SUFFIXES)}")
    if epoch is not None and out.suffix != ".png":
        raise InputError(f"--epoch is for a figure; {str(out)!r} shows them all: give --out a name that ends in .png")
    if panels and out.suffix == ".html":
        raise InputError(
            "a page has all panels; leave --panels out, or give --out a name that ends in .png, .mp4 or .gif"
        )
    if out.suffix == ".mp4":
        find_ffmpeg()
    check_writable(out.parent)


def check_new(out: Path) -> None:
    """Refuse a file that is there already, since it may not be ours.

    Raises:
        InputError: naming it.
    """
    if out.exists() or out.is_symlink():
        raise InputError(f"{str(out)!r} exists; move it away, or give another file with --out")
