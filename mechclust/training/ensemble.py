"""Many seeds of a small network trained at once: ``torch.func`` over stacked parameters."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from mechclust.models.build import build_model
from mechclust.models.config import AnyConfig, config_to_json
from mechclust.models.weights import set_weights
from mechclust.training.config import TrainConfig
from mechclust.training.loop import WAIT, make_optimizer, step_bar
from mechclust.training.snapshots import Segment, Snapshots, backend_of, check_run, file_of, lost_files, snapshot_steps
from mechclust.training.state import load_state, save_state
from probes.files import remove_leftovers
from probes.hooks import check_device
from probes.locks import locked
from tasks import Batch, InputError, Task
from tasks.errors import check_choice
from tasks.settings import to_json

Backend = Literal["auto", "compiled", "vmap", "loop"]
Gradients = Callable[[dict[str, Tensor], Tensor, Tensor], tuple[dict[str, Tensor], Tensor]]

_READ_AHEAD = 2048  # training sequences per member, drawn at once
# Steps, each counted once more for every 300 sequences in it: compiling takes some 40 s and saves about 2 ms of each.
_WORTH_COMPILING = 20_000


@dataclass(frozen=True)
class Member:
    """One network of an ensemble.

    Args:
        model: its configuration; members differ in the seed alone.
        task: its data.
        rate: factor on the learning rate.
        rates: further factors, by the beginning of a parameter's name, such as ``{"blocks.0.mlp": 0.1}``.
        weights: initial weights; ``None``: drawn from ``model.seed``.

    Raises:
        InputError: for a factor below 0 or not finite.
    """

    model: AnyConfig
    task: Task
    rate: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        if bad := [f for f in (self.rate, *self.rates.values()) if not (math.isfinite(f) and f >= 0)]:
            raise InputError(f"a member has a rate of {bad[0]}; expected a factor of at least 0 on the learning rate")


def train_ensemble(
    members: Sequence[Member],
    config: TrainConfig,
    out: str | Path,
    *,
    snapshot_every: int | None = None,
    backend: Backend = "auto",
    device: str = "cpu",
    progress: bool = False,
    name: str = "ensemble",
) -> Snapshots:
    """Train every member as ``train`` would train it alone, all at once; goes on where ``out`` left off.

    The networks are ordinary modules with hook points; their parameters are stacked, the gradient of one is
    mapped over all, and PyTorch's own optimiser updates the stack. A member agrees with the same seed
    trained alone up to the rounding of float32, which training of such networks magnifies: after some
    hundred epochs compare distributions over seeds, never single seeds.

    Memory: some copies of the stacked weights, and the snapshots of ``config.save_every`` steps.

    Args:
        members: networks of one shape, whose logits are ``[batch d_vocab]``, and their data.
        config: the settings; a member's ``rate`` multiplies the learning rate. ``clip`` must be ``None``.
        out: folder of snapshots and resumable state, one process at a time. A run that was interrupted, also by
            ``kill -9``, goes on from its last save and ends with the same bits. Where a file of snapshots is lost,
            the steps up to it are trained again in memory, with a warning.
        snapshot_every: steps between snapshots; ``None``: an epoch. The start and the end are always kept.
        backend: ``"loop"`` one member after the other, ``"vmap"`` all at once, ``"compiled"`` the same
            through ``torch.compile``; ``"auto"``: compiled where that pays for itself and works.
        device: where to train.
        progress: show a progress bar.
        name: its label.

    Raises:
        InputError: for no members, members of different shapes, a damaged file, a folder with another run or in
            which another process trains, and when what is lost cannot be made again, because training gives other
            numbers here.

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
    _check(members, config, backend)
    every = _epoch(members[0], config) if snapshot_every is None else snapshot_every
    if every < 1:
        raise InputError(f"snapshot_every is {every}; expected at least 1, or None for an epoch")
    records = [_record(member) for member in members]
    run = {
        "training": to_json(config),
        "ensemble": {"members": records, "every": every, "backend": backend, "device": device},
    }
    header = {
        "members": json.dumps(records),
        "training": json.dumps(run["training"]),
        "steps": str(config.steps),
        "every": str(every),
        "epoch_steps": str(_epoch(members[0], config)),
    }
    stack, data = _Stack(members, config, device), _Data(members, config.batch_size, device)
    tokens, targets = data(range(1))
    stack.check(tokens[0, 0])
    wanted = set(snapshot_steps(config.steps, every))
    with locked(out, wait=WAIT):
        remove_leftovers(out)
        path, start, saved = out / "state.safetensors", 0, None
        if path.exists():
            saved = load_state(path, stack.optimizer, run)
            stack.set(saved.weights)
            start = saved.step
        check_run(out, header)
        lost = lost_files(out, start, config.save_every)
        if start == config.steps and not lost:
            return Snapshots(out)
        chosen = backend
        if backend == "auto":
            worth = config.steps * (1 + len(members) * config.batch_size / 300) >= _WORTH_COMPILING
            known = start and len(lost) < -(-start // config.save_every)
            chosen = backend_of(out) if known else ("compiled" if worth else "vmap")
        header["backend"] = stack.use(chosen, tokens[0], targets[0], forgiving=backend == "auto")
        if saved is not None and lost:
            warnings.warn(
                f"{_named(lost)} missing; the steps up to there are trained again to make what is lost", stacklevel=2
            )
            again = _Stack(members, config, device)
            again.gradients = stack.gradients
            parts = _segments(again, data, config, wanted, range(start), progress, f"{name}, what is lost")
            _make(lost, parts, again, saved.weights, header)
        if start < config.steps:
            for segment in _segments(stack, data, config, wanted, range(start, config.steps), progress, name):
                segment.write(out, header)
                save_state(path, stack.weights, stack.optimizer, segment.end, torch.zeros(0), run)
        return Snapshots(out)


def _segments(
    stack: _Stack, data: _Data, config: TrainConfig, wanted: set[int], steps: range, progress: bool, name: str
) -> Iterator[Segment]:
    """Train for the given steps; gives what is kept of them at every save and at the end, the stack being there."""
    ahead, segment = max(1, _READ_AHEAD // config.batch_size), Segment(steps.start)
    for step in step_bar(steps.start, steps.stop, progress, name):
        if step > steps.start and step % config.save_every == 0:
            yield segment
            segment = Segment(step)
        if step in wanted:
            segment.keep(step, stack.weights)
        place = (step - steps.start) % ahead
        if place == 0:
            tokens, targets = data(range(step, min(step + ahead, config.steps)))
        segment.losses.append(stack.step(tokens[place], targets[place], config.lr_at(step)))
    if steps.stop == config.steps:
        segment.keep(config.steps, stack.weights)
    yield segment


def _make(
    lost: Sequence[Path], parts: Iterable[Segment], stack: _Stack, end: Mapping[str, Tensor], header: Mapping[str, str]
) -> None:
    """Write what is lost, once something that is kept and comes after it shows that it is of the same training.

    Args:
        lost: the files.
        parts: of a training from the start to the saved state.
        stack: which is trained.
        end: the weights of the saved state.
        header: of the files.
    """
    folder, waiting, left = lost[0].parent, list[Segment](), set(lost)
    for segment in parts:
        path = file_of(folder, segment.start)
        if path in left:
            waiting.append(segment)
            left.remove(path)
        elif not segment.agrees(path):
            raise _otherwise(lost)
        else:
            while waiting:
                waiting.pop(0).write(folder, header)
            if not left:
                return
    if any(not torch.equal(values.detach().cpu(), end[name]) for name, values in stack.weights.items()):
        raise _otherwise(lost)
    for segment in waiting:
        segment.write(folder, header)


def _named(lost: Sequence[Path]) -> str:
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return f"{str(lost[0])!r}{more} {'are' if more else 'is'}"


def _otherwise(lost: Sequence[Path]) -> InputError:
    return InputError(
        f"{_named(lost)} missing and cannot be made again here, where training gives other numbers than those that are "
        "kept; give the same command on the machine and with the versions and the number of threads it was trained "
        "with, or another folder"
    )


class _Stack:
    """Stacked weights, their optimiser, and a way to their gradients."""

    def __init__(self, members: Sequence[Member], config: TrainConfig, device: str) -> None:
        models = [_initial(member) for member in members]
        named = [dict(model.named_parameters()) for model in models]
        self.weights = {
            name: torch.stack([own[name].detach() for own in named]).to(device).requires_grad_() for name in named[0]
        }
        self.optimizer = make_optimizer(list(self.weights.values()), config)
        self.gradients: Gradients = vmap(self._gradient)
        self._base, self._task = models[0].to(device), members[0].task
        self._factors = _factors(members, self.weights)

    def check(self, tokens: Tensor) -> None:
        """Refuse networks whose answer is not one row of logits a sequence ``[batch pos]``."""
        with torch.no_grad():
            shape = list(self._base(tokens).shape)
        if len(shape) != 2:
            raise InputError(
                f"a {type(self._base).__name__} gives logits {shape}; expected [batch d_vocab], one answer per "
                "sequence; train such models one by one with train()"
            )

    def set(self, weights: Mapping[str, Tensor]) -> None:
        """Put saved weights in place."""
        with torch.no_grad():
            for name, values in self.weights.items():
                values.copy_(weights[name])

    def use(self, backend: Backend, tokens: Tensor, targets: Tensor, *, forgiving: bool) -> str:
        """Choose what computes the gradients; where compiling fails and that is forgiven, ``"vmap"``."""
        if backend == "loop":
            self.gradients = self._one_by_one
        if backend != "compiled":
            return backend
        torch.compiler.reset()  # one process may train many ensembles, each of which compiles anew
        self.gradients = torch.compile(vmap(self._gradient), dynamic=False)
        try:
            self.gradients(self._detached(), tokens, targets)
        except Exception as error:  # no compiler on this machine, or something it cannot compile
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            if not forgiving:
                raise InputError(f"torch.compile cannot compile this training ({why}); choose backend 'vmap'") from None
            warnings.warn(
                f"torch.compile failed ({why}); training goes on uncompiled, at a third of the speed", stacklevel=3
            )
            self.gradients = vmap(self._gradient)
            return "vmap"
        return backend

    def step(self, tokens: Tensor, targets: Tensor, lr: float) -> Tensor:
        """One update of every member; returns their losses ``[member]`` before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        before = {name: self.weights[name].detach().clone() for name in self._factors}
        gradients, losses = self.gradients(self._detached(), tokens, targets)
        for name, values in self.weights.items():
            values.grad = gradients[name]
        self.optimizer.step()
        with torch.no_grad():
            for name, factor in self._factors.items():  # the optimiser went a step at the common rate
                self.weights[name].sub_(before[name]).mul_(factor).add_(before[name])
        return losses.detach()

    def _detached(self) -> dict[str, Tensor]:
        return {name: values.detach() for name, values in self.weights.items()}

    def _gradient(self, weights: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Any:
        def loss(weights: dict[str, Tensor]) -> Tensor:
            return self._task.loss_at(functional_call(self._base, weights, (tokens,)), targets)  # type: ignore[attr-defined]

        return grad_and_value(loss)(weights)

    def _one_by_one(self, weights: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Any:
        found = [
            self._gradient({name: values[i] for name, values in weights.items()}, tokens[i], targets[i])
            for i in range(len(tokens))
        ]
        gradients = {name: torch.stack([gradient[name] for gradient, _ in found]) for name in weights}
        return gradients, torch.stack([loss for _, loss in found])


def _check(members: Sequence[Member], config: TrainConfig, backend: str) -> None:
    if not members:
        raise InputError("there are no members; give at least one network to train")
    check_choice(backend=(backend, get_args(Backend)))
    if config.clip is not None:
        raise InputError(f"clip is {config.clip}; an ensemble is trained without clipping, set clip=None")
    if config.freeze or config.layer_decay != 1:
        raise InputError("freeze and layer_decay are of train(); give members of an ensemble rates by name instead")
    first = members[0]
    for i, member in enumerate(members):
        if member.model.with_seed(0) != first.model.with_seed(0):
            raise InputError(f"member {i} is a {member.model}, member 0 a {first.model}; expected one shape, any seed")
        if not hasattr(member.task, "loss_at"):
            raise InputError(f"the task {member.task.name!r} has no loss_at; train its models one by one with train()")
        if member.task.d_vocab > member.model.d_vocab:
            raise InputError(
                f"the task of member {i} has {member.task.d_vocab} tokens; expected at most its model's d_vocab "
                f"({member.model.d_vocab})"
            )


def _initial(member: Member) -> Any:
    model = build_model(member.model)
    if member.weights is not None:
        try:
            set_weights(model, dict(member.weights))
        except RuntimeError as error:  # PyTorch lists every name and shape
            raise InputError(f"the weights of the member of seed {member.model.seed} do not fit: {error}") from None
    return model


def _epoch(member: Member, config: TrainConfig) -> int:
    """Steps of an epoch; all of them, where a task has none."""
    steps = getattr(member.task, "epoch_steps", None)
    return config.steps if steps is None else steps(config.batch_size)


def _record(member: Member) -> dict[str, Any]:
    digest = None
    if member.weights is not None:
        parts = (np.ascontiguousarray(v.detach().cpu().numpy()).tobytes() for _, v in sorted(member.weights.items()))
        digest = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    return {
        "model": config_to_json(member.model),
        "task": member.task.to_config(),
        "rate": member.rate,
        "rates": dict(member.rates),
        "weights": digest,
    }


def _factors(members: Sequence[Member], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``[member 1 ...]`` what multiplies each member's steps, of the weights where that is not 1 throughout."""
    found = {}
    for member in members:
        for start in member.rates:
            if not any(name.startswith(start) for name in weights):
                raise InputError(f"no weight's name begins with {start!r} (there are {', '.join(weights)})")
    for name, values in weights.items():
        own = [m.rate * math.prod(f for start, f in m.rates.items() if name.startswith(start)) for m in members]
        if any(factor != 1 for factor in own):
            found[name] = torch.tensor(own, device=values.device).reshape(-1, *[1] * (values.ndim - 1))
    return found


class _Data:
    """Training batches of all members. Where the tasks have a fixed training set, it is gathered at once."""

    def __init__(self, members: Sequence[Member], batch_size: int, device: str) -> None:
        self._tasks, self._batch_size, self._device = [m.task for m in members], batch_size, device
        self._held: tuple[Tensor, Tensor] | None = None
        if all(hasattr(task, "train_rows") for task in self._tasks):
            whole = [_answered(Batch.concat(list(task.batches("train", 4096)))) for task in self._tasks]
            for i, (sequences, _) in enumerate(whole):
                if sequences.shape != whole[0][0].shape:
                    raise InputError(
                        f"member {i} trains on {len(sequences)} sequences of {sequences.shape[1]} tokens, member 0 on "
                        f"{len(whole[0][0])} of {whole[0][0].shape[1]}; expected one size, any seed"
                    )
            self._held = torch.stack([t for t, _ in whole]), torch.stack([t for _, t in whole])

    def __call__(self, steps: range) -> tuple[Tensor, Tensor]:
        """``[step member batch pos]`` tokens and ``[step member batch]`` targets of the given steps."""
        if self._held is not None:
            rows = torch.stack([task.train_rows(steps, self._batch_size) for task in self._tasks])  # type: ignore[attr-defined]
            found = [held[torch.arange(len(rows))[:, None], rows] for held in self._held]
        else:
            batches = [_answered(task.train_batches(steps, self._batch_size)) for task in self._tasks]
            found = [torch.stack(parts) for parts in zip(*batches, strict=True)]
        tokens, targets = (torch.stack(x.tensor_split(len(steps), dim=1)).to(self._device) for x in found)
        return tokens, targets


def _answered(batch: Batch) -> tuple[Tensor, Tensor]:
    """Tokens, and the targets where the loss counts."""
    assert batch.targets is not None
    return batch.tokens, batch.targets[batch.loss_mask]
