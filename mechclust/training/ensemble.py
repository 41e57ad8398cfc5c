"""Many seeds of a small network trained at once: ``torch.func`` over stacked parameters."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from mechclust.jobs import progress_bar
from mechclust.models.config import AnyConfig, ModelConfig, check_model_config_fits_task, model_config_to_json
from mechclust.training.config import TrainConfig
from mechclust.training.loop import WAIT
from mechclust.training.low_rank import LowRank
from mechclust.training.member import Member, member_width
from mechclust.training.snapshots import (
    SnapshotFile,
    Snapshots,
    check_snapshots,
    lost_snapshots,
    snapshot_steps,
    snapshots_backend,
)
from mechclust.training.stack import Backend, Stack
from mechclust.training.stack_data import StackData
from mechclust.training.state import check_state_files, load_training_state, save_training_state
from probes.engine.devices import check_device
from probes.store.locks import locked_folder
from probes.store.temporary_files import remove_leftovers
from probes.store.versions import package_versions
from tasks import InputError
from tasks.settings import check_choice, settings_to_json

_READ_AHEAD = 2048  # training sequences per member, drawn at once
# Steps, each counted once more for every 2,000 sequences in it: compiling takes some 40 s and saves about 2 ms of each.
_WORTH_COMPILING = 20_000


def train_ensemble(
    members: Sequence[Member],
    config: TrainConfig,
    out: str | Path,
    *,
    snapshot_every: int | None = None,
    backend: Backend = "auto",
    low_rank: LowRank | None = None,
    device: str = "cpu",
    progress: bool = False,
    name: str = "ensemble",
) -> Snapshots:
    """Train every member as ``train`` would train it alone, all at once. Resume from ``out``.

    The networks are ordinary modules with hook points. Their parameters are stacked, the gradient of one is mapped over
    all, and PyTorch's optimiser updates the stack. A member agrees with its seed trained alone up to the rounding of
    float32, which training of such networks magnifies. After some hundred epochs, compare distributions over seeds,
    never single seeds. With dropout it agrees in distribution alone. Gradients are clipped per member. If a member's
    loss is no longer finite, the others continue, and a warning names it.

    Whether it is faster depends on the size, because it saves a step's cost apart from its arithmetic. Networks of some
    hundred weights gain tenfold and more, transformers of width 64 hardly gain on a CPU (``docs/scale.md``).

    Memory: some copies of the stacked weights and of all members' activations, and the snapshots of
    ``config.save_every`` steps.

    Args:
        members: networks of one shape and their data. These are transformers with their task's loss of every token, or
            networks whose logits are ``[batch d_vocab]``. All have one loss, and sequences of one length. Widths of
            feed-forward layers and batch sizes may differ, but each member's step then costs as much as with the
            largest of each. Mixing therefore pays if arithmetic is little of a step's time. An epoch is one of
            ``config.batch_size``.
        config: the settings. A member's ``rate`` multiplies the learning rate.
        out: folder of snapshots and resumable state, for one process at a time. A run that was interrupted, even by
            ``kill -9``, resumes from its last save and ends with identical bits.
        snapshot_every: steps between snapshots. ``None``: an epoch. The start and the end are always kept.
        backend: ``"loop"``: one member after the other. ``"vmap"``: all at once. ``"compiled"``: vmap with
            ``torch.compile``. ``"auto"``: compiled if that works and pays for itself.
        low_rank: train only changes of low rank to some weights of transformers. Snapshots are of whole models, the
            changes added.
        device: where to train.
        progress: show a progress bar.
        name: label of the bar.

    Raises:
        InputError: for no members, members of different shapes or losses, a damaged file, or a folder with another run
            or in which another process trains. Also when a file of snapshots is lost.

    Example:
        >>> from mechclust.studies.clustering_heads import PoolingTransformerConfig
        >>> from tasks import SparseModularAddition
        >>> members = [Member(PoolingTransformerConfig(seed=s), SparseModularAddition(seed=s)) for s in (0, 1)]
        >>> settings = TrainConfig(steps=128, batch_size=32, schedule="constant", optimizer="adam",
        ...                        weight_decay=0.0, clip=None)
        >>> import tempfile
        >>> snapshots = train_ensemble(members, settings, tempfile.mkdtemp())
        >>> snapshots.epochs, snapshots.at(128)["blocks.0.attn.query"].shape
        ([0, 1, 2], torch.Size([2, 1, 2]))
    """
    out = Path(out)
    check_device(device)
    _check(members, config, backend, low_rank)
    epoch = _epoch(members[0], config)
    every = epoch if snapshot_every is None else snapshot_every
    if every < 1:
        raise InputError(f"snapshot_every is {every}; expected at least 1, or None for an epoch")
    run = _run_record(members, config, every, backend, device, low_rank)
    header = _snapshot_header(run, config, every, epoch)
    stack = Stack(members, config, device, low_rank)
    data = StackData(members, config.batch_size, device)
    (first,) = data(range(1))
    stack.check({name: values[0] for name, values in first.items()}, answers=data.answers)
    path = out / "state.safetensors"
    with locked_folder(out, wait=WAIT):
        remove_leftovers(out)
        start = _resume(path, stack, run, header, config)
        if start == config.steps:
            return Snapshots(out)
        chosen = _chosen_backend(backend, out, start, config, len(members))
        header["backend"] = stack.use(chosen, first, forgiving=backend == "auto")
        snapshots_at = set(snapshot_steps(config.steps, every))
        for segment in _segments(stack, data, config, snapshots_at, range(start, config.steps), progress, name):
            segment.write(out, header)
            _warn_of_divergence(segment, name)
            save_training_state(path, stack.weights, stack.optimizer, segment.end, torch.zeros(0), run)
        return Snapshots(out)


def _run_record(
    members: Sequence[Member],
    config: TrainConfig,
    every: int,
    backend: Backend,
    device: str,
    low_rank: LowRank | None,
) -> dict[str, Any]:
    """Return the settings with which a saved state must have been trained to be resumed."""
    records = [_record(member) for member in members]
    run = {
        "training": settings_to_json(config),
        "ensemble": {"members": records, "every": every, "backend": backend, "device": device},
    }
    if low_rank is not None:
        run["training"]["low_rank"] = settings_to_json(low_rank)
    if isinstance(members[0].model, ModelConfig):  # which decides how weights are laid out in the state
        run["versions"] = {"transformer-lens": package_versions()["transformer-lens"].split(".")[0]}
    return run


def _snapshot_header(run: Mapping[str, Any], config: TrainConfig, every: int, epoch: int) -> dict[str, str]:
    """Return the record of the run in the headers of snapshot files."""
    return {
        "members": json.dumps(run["ensemble"]["members"]),
        "training": json.dumps(run["training"]),
        "steps": str(config.steps),
        "every": str(every),
        "epoch_steps": str(epoch),
    }


def _resume(path: Path, stack: Stack, run: dict[str, Any], header: Mapping[str, str], config: TrainConfig) -> int:
    """Put the saved state in place, if there is one, and return the next step.

    Raises:
        InputError: for the state or snapshots of another run, and lost or damaged snapshots.
    """
    start = 0
    if path.exists():
        saved = load_training_state(path, stack.optimizer, run)
        stack.load(saved.weights)
        start = saved.step
    check_snapshots(path.parent, header)
    check_state_files(path, start, lost_snapshots(path.parent, start, config.save_every))
    return start


def _chosen_backend(backend: Backend, out: Path, start: int, config: TrainConfig, n_members: int) -> Backend:
    """Return the backend. For ``"auto"``, the interrupted run's, or else the one that pays for itself."""
    if backend != "auto":
        return backend
    if start:
        return snapshots_backend(out)
    size = config.steps * (1 + n_members * config.batch_size / 2000)
    return "compiled" if size >= _WORTH_COMPILING else "vmap"


def _segments(
    stack: Stack, data: StackData, config: TrainConfig, snapshots_at: set[int], steps: range, progress: bool, name: str
) -> Iterator[SnapshotFile]:
    """Train the given steps, and yield the segment since the last save, at each save and at the end.

    The stack then holds the weights of that step.
    """
    ahead = max(1, _READ_AHEAD // config.batch_size)
    segment = SnapshotFile(steps.start)
    bar = progress_bar(steps, disable=not progress, desc=name, unit="step", initial=steps.start, total=steps.stop)
    for step in bar:
        if step > steps.start and step % config.save_every == 0:
            yield segment
            segment = SnapshotFile(step)
        if step in snapshots_at:
            segment.keep(step, stack.snapshot())
        place = (step - steps.start) % ahead
        if place == 0:
            batches = data(range(step, min(step + ahead, config.steps)))
        segment.losses.append(stack.step(step, batches[place], config.lr_at(step)))
    if steps.stop == config.steps:
        segment.keep(config.steps, stack.snapshot())
    yield segment


def _warn_of_divergence(segment: SnapshotFile, name: str) -> None:
    """Name the first member whose loss is not finite, and how many others there are."""
    lost = ~torch.stack(segment.losses).isfinite().cpu()
    diverged = lost.any(dim=0).nonzero().flatten().tolist()
    if not diverged:
        return
    step = segment.start + int(lost[:, diverged[0]].nonzero()[0])
    others = f" and those of {len(diverged) - 1} more" if len(diverged) > 1 else ""
    warnings.warn(
        f"{name} diverged: the loss of member {diverged[0]}{others} is not finite (step {step}); give a smaller lr or "
        "rate",
        stacklevel=3,
    )


def _check(members: Sequence[Member], config: TrainConfig, backend: str, low_rank: LowRank | None) -> None:
    """Refuse members that cannot be trained together."""
    if not members:
        raise InputError("there are no members; give at least one network to train")
    check_choice(backend=(backend, get_args(Backend)))
    first = members[0]
    transformers = isinstance(first.model, ModelConfig)
    if low_rank is not None:
        if not transformers:
            raise InputError(f"low_rank is for transformers, not for a {type(first.model).__name__}; leave it out")
        if config.freeze or config.layer_decay != 1:
            raise InputError("low_rank trains nothing else; leave out freeze and layer_decay")
    for i, member in enumerate(members):
        if _alike(member.model) != _alike(first.model):
            raise InputError(
                f"member {i} is a {member.model}, member 0 a {first.model}; only seeds and d_mlp may differ"
            )
        if low_rank is not None and member_width(member.model) != member_width(first.model):
            raise InputError(
                f"member {i} has a d_mlp of {member_width(member.model)}, member 0 of {member_width(first.model)}; "
                "expected one width with low_rank"
            )
        if not transformers and not hasattr(member.task, "loss_at"):
            raise InputError(f"the task {member.task.name!r} has no loss_at; train its models one by one with train()")
        check_model_config_fits_task(member.task, member.model)


def _alike(config: AnyConfig) -> AnyConfig:
    """Return the configuration without the fields that may differ between members."""
    same = config.with_seed(0)
    return replace(same, d_mlp=1) if member_width(same) else same  # type: ignore[type-var]  # a dataclass with that field


def _epoch(member: Member, config: TrainConfig) -> int:
    """Return the steps of an epoch, or all of them if a task has none."""
    epoch_steps = getattr(member.task, "epoch_steps", None)
    return config.steps if epoch_steps is None else epoch_steps(config.batch_size)


def _record(member: Member) -> dict[str, Any]:
    """Return the record that identifies a member in a saved state."""
    digest = None
    if member.weights is not None:
        parts = (np.ascontiguousarray(v.detach().cpu().numpy()).tobytes() for _, v in sorted(member.weights.items()))
        digest = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    record = {
        "model": model_config_to_json(member.model),
        "task": member.task.to_config(),
        "rate": member.rate,
        "rates": dict(member.rates),
        "weights": digest,
    }
    if member.batch_size is not None:
        record["batch_size"] = member.batch_size
    return record
