"""Weights of many networks of one shape as one stack: their gradients, mapped over the networks, and their updates."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from mechclust.models.build import build_model
from mechclust.models.config import AnyConfig, ModelConfig
from mechclust.models.weights import get_weights, set_weights, trainable
from mechclust.training.config import TrainConfig
from mechclust.training.dropout import dropout_of, drops
from mechclust.training.loop import make_optimizer, trained_names
from mechclust.training.low_rank import LowRank
from tasks import Batch, InputError, Task
from tasks.errors import check_at_least

Backend = Literal["auto", "compiled", "vmap", "loop"]
Tensors = dict[str, Tensor]
Gradients = Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensor]]

_ANSWERS = "answers"  # of data whose networks give one row of logits a sequence
_OPTIONAL = ("attention_mask", "targets", "loss_mask")


@dataclass(frozen=True)
class Member:
    """One network of an ensemble.

    Args:
        model: its configuration; members differ in the seed and the width of the feed-forward layers alone.
        task: its data.
        rate: factor on the learning rate.
        rates: further factors, by the beginning of a parameter's name, such as ``{"blocks.0.mlp": 0.1}``.
        weights: initial weights, under the names of ``get_weights``; ``None``: drawn from ``model.seed``.
        batch_size: examples in each step, a divisor of the ensemble's ``batch_size``; ``None``: all of it.

    Raises:
        InputError: for a factor below 0 or not finite, or a batch size below 1.
    """

    model: AnyConfig
    task: Task
    rate: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, Tensor] | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_at_least(batch_size=(1 if self.batch_size is None else self.batch_size, 1))
        if bad := [f for f in (self.rate, *self.rates.values()) if not (math.isfinite(f) and f >= 0)]:
            raise InputError(f"a member has a rate of {bad[0]}; expected a factor of at least 0 on the learning rate")


class Stack:
    """Stacked weights, their optimiser, and a way to their gradients.

    Narrow feed-forward layers are filled up with neurons of weights 0, whose gradients are 0: they stay what they are.

    Args:
        members: networks of one shape.
        config: how they are trained.
        device: where.
        low_rank: train changes of low rank to some weights, and nothing else.

    Attributes:
        weights: ``[member ...]`` what is trained, by name.
        optimizer: of these.
        gradients: from weights, what stays as it is, and data to gradients and losses.
    """

    def __init__(
        self, members: Sequence[Member], config: TrainConfig, device: str, low_rank: LowRank | None = None
    ) -> None:
        models = [_initial(member) for member in members]
        widest = max(range(len(members)), key=lambda i: width_of(members[i].model))
        named = [trainable(model) for model in models]
        shares = trained_names(named[0], config, type(models[0]).__name__)
        stacked = {
            name: torch.stack([zero_padded(own[name].detach(), like.shape) for own in named]).to(device)
            for name, like in named[widest].items()
        }
        free = {name for names in shares.values() for name in names}
        self._low_rank = low_rank
        if low_rank is not None:
            self.weights = low_rank.factors([(m.model.seed, own) for m, own in zip(members, named, strict=True)])
            self.weights = {name: values.to(device).requires_grad_() for name, values in self.weights.items()}
            groups = [{"params": list(self.weights.values()), "share": 1.0}]
        else:
            self.weights = {name: values.requires_grad_() for name, values in stacked.items() if name in free}
            groups = [{"params": [self.weights[n] for n in names], "share": share} for share, names in shares.items()]
        self.fixed = {name: values for name, values in stacked.items() if name not in self.weights}
        self.optimizer = make_optimizer(groups, config)
        self._base, self._task, self._clip = models[widest], members[0].task, config.clip
        if device != "cpu":  # TransformerLens prints a line for every move
            self._base.to(device)
        self._mapped: Gradients = vmap(self._gradient, randomness="different" if drops(self._base) else "error")
        self.gradients = self._mapped
        self._dropout_at = dropout_of(self._base, *(member.model.seed for member in members))
        self._names = _native_names(self._base)
        self._order, self._convert = list(named[0]), isinstance(members[0].model, ModelConfig)
        self._factors = _factors(members, self.weights)

    def check(self, data: Tensors, *, answers: bool) -> None:
        """Refuse networks whose logits are not those that the tasks' loss takes ``[batch pos]``."""
        with torch.no_grad():
            shape = list(self._base(data["tokens"]).shape)
        if answers != (len(shape) == 2):
            wanted = "[batch d_vocab], one answer per sequence" if answers else "[batch pos d_vocab]"
            raise InputError(
                f"a {type(self._base).__name__} gives logits {shape}; expected {wanted}; train such models one by one "
                "with train()"
            )

    def set(self, weights: Mapping[str, Tensor]) -> None:
        """Put saved weights in place."""
        with torch.no_grad():
            for name, values in self.weights.items():
                values.copy_(weights[name])

    def snapshot(self) -> Tensors:
        """``[member ...]`` all weights, with changes of low rank added, as ``get_weights`` names and lays them out."""
        with torch.no_grad():
            whole = self._whole(self._detached(), self.fixed, stacked=True)
            if not self._convert:
                return {name: whole[name] for name in self._order}
            found = []
            for i in range(len(next(iter(whole.values())))):
                for name, parameter in trainable(self._base).items():
                    parameter.copy_(whole[name][i])
                found.append({name: values.clone() for name, values in get_weights(self._base).items()})
        return {name: torch.stack([own[name] for own in found]) for name in found[0]}

    def use(self, backend: Backend, data: Tensors, *, forgiving: bool) -> str:
        """Choose how gradients are computed; if that fails and ``forgiving`` is set, try the next simpler way."""
        if backend == "loop":
            self.gradients = self._one_by_one
        elif backend == "vmap" and _ANSWERS not in data:
            try:
                self.gradients(self._detached(), self.fixed, data)
            except RuntimeError as error:
                why = _why(error)
                if not forgiving:
                    raise InputError(
                        f"torch.func cannot map this training over its members ({why}); choose backend 'loop'"
                    ) from None
                warnings.warn(f"torch.func failed ({why}); members are trained in turn", stacklevel=3)
                return self.use("loop", data, forgiving=False)
        if backend != "compiled":
            return backend
        torch.compiler.reset()  # one process may train many ensembles, each of which compiles anew
        self.gradients = torch.compile(self._mapped, dynamic=False)
        try:
            self.gradients(self._detached(), self.fixed, data)
        except Exception as error:  # no compiler on this machine, or something it cannot compile
            if not forgiving:
                raise InputError(
                    f"torch.compile cannot compile this training ({_why(error)}); choose backend 'vmap'"
                ) from None
            warnings.warn(
                f"torch.compile failed ({_why(error)}); training continues uncompiled, at a third of the speed",
                stacklevel=3,
            )
            self.gradients = self._mapped
            return self.use("vmap", data, forgiving=True)
        return backend

    def step(self, step: int, data: Tensors, lr: float) -> Tensor:
        """One update of every member; returns their losses ``[member]`` before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["share"]
        before = {name: self.weights[name].detach().clone() for name in self._factors}
        with self._dropout_at(step):
            gradients, losses = self.gradients(self._detached(), self.fixed, data)
        if self._clip is not None:
            gradients = clipped(gradients, self._clip)
        for name, values in self.weights.items():
            # The fused optimisers read memory in order, whatever the strides.
            values.grad = gradients[name].contiguous()
        self.optimizer.step()
        with torch.no_grad():
            for name, factor in self._factors.items():  # the optimiser went a step at the common rate
                self.weights[name].sub_(before[name]).mul_(factor).add_(before[name])
        return losses.detach()

    def _detached(self) -> Tensors:
        return {name: values.detach() for name, values in self.weights.items()}

    def _whole(self, weights: Tensors, fixed: Tensors, *, stacked: bool = False) -> Tensors:
        """All weights of a member, or of all."""
        if self._low_rank is None:
            return {**fixed, **weights}
        changed: Any = self._low_rank.changed
        return {**fixed, **(vmap(changed)(fixed, weights) if stacked else changed(fixed, weights))}

    def _gradient(self, weights: Tensors, fixed: Tensors, data: Tensors) -> Any:
        def loss(weights: Tensors) -> Tensor:
            own = {
                native: values for name, values in self._whole(weights, fixed).items() for native in self._names[name]
            }
            mask = {} if (mask := data.get("attention_mask")) is None else {"attention_mask": mask.long()}
            # Modules reached by several paths would be taken for tied weights, and put back wrongly.
            logits = functional_call(self._base, own, (data["tokens"],), mask, tie_weights=False)
            if _ANSWERS in data:
                return self._task.loss_at(logits, data[_ANSWERS])  # type: ignore[attr-defined,no-any-return]
            return self._task.loss(logits, _batch(data))

        return grad_and_value(loss)(weights)

    def _one_by_one(self, weights: Tensors, fixed: Tensors, data: Tensors) -> Any:
        found = [
            self._gradient(*({name: values[i] for name, values in of.items()} for of in (weights, fixed, data)))
            for i in range(len(data["tokens"]))
        ]
        gradients = {name: torch.stack([gradient[name] for gradient, _ in found]) for name in weights}
        return gradients, torch.stack([loss for _, loss in found])


def clipped(gradients: Tensors, most: float) -> Tensors:
    """The gradients ``[member ...]``, those of a member scaled down where their norm together is above ``most``.

    Example:
        >>> found = clipped({"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}, 1.0)["w"]
        >>> [[round(x, 3) for x in row] for row in found.tolist()]
        [[0.6, 0.8], [0.3, 0.4]]
    """
    norms = torch.stack([values.flatten(1).norm(dim=1) for values in gradients.values()]).norm(dim=0)
    scale = (most / (norms + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_
    return {name: values * scale.reshape(-1, *[1] * (values.ndim - 1)) for name, values in gradients.items()}


def width_of(config: AnyConfig) -> int:
    """Neurons of each feed-forward layer; 0 where the configuration has no such width."""
    return config.d_feedforward if isinstance(config, ModelConfig) else getattr(config, "d_mlp", 0)


def zero_padded(values: Tensor, shape: Sequence[int]) -> Tensor:
    """The values with zeros behind them, along every axis that is shorter than in ``shape``.

    Example:
        >>> zero_padded(torch.ones(2), (3,)).tolist()
        [1.0, 1.0, 0.0]
    """
    if tuple(values.shape) == tuple(shape):
        return values
    found = values.new_zeros(shape)
    found[tuple(slice(n) for n in values.shape)] = values
    return found


class StackData:
    """Training batches of all members. Where the tasks have a fixed training set, it is gathered at once.

    Args:
        members: networks and their data.
        batch_size: examples of a step and member.
        device: where the batches go.

    Attributes:
        answers: the loss is of one answer a sequence, not of every token.
    """

    def __init__(self, members: Sequence[Member], batch_size: int, device: str) -> None:
        self._tasks, self._batch_size, self._device = [m.task for m in members], batch_size, device
        self._sizes = [batch_size if m.batch_size is None else m.batch_size for m in members]
        for i, size in enumerate(self._sizes):
            if batch_size % size:
                raise InputError(
                    f"member {i} has a batch_size of {size}; expected a divisor of the ensemble's ({batch_size})"
                )
        # A transformer has logits at every token, as the task's own loss takes them.
        self.answers = not isinstance(members[0].model, ModelConfig)
        self._causal = getattr(members[0].model, "attention", None) == "causal"
        self._held: tuple[Tensor, Tensor] | None = None
        if self.answers and all(hasattr(task, "train_rows") for task in self._tasks):
            whole = [_answered(Batch.concat(list(task.batches("train", 4096)))) for task in self._tasks]
            for i, (sequences, _) in enumerate(whole):
                if sequences.shape != whole[0][0].shape:
                    raise InputError(
                        f"member {i} trains on {len(sequences)} sequences of {sequences.shape[1]} tokens, member 0 on "
                        f"{len(whole[0][0])} of {whole[0][0].shape[1]}; only seeds may differ"
                    )
            self._held = torch.stack([t for t, _ in whole]), torch.stack([t for _, t in whole])

    def __call__(self, steps: range) -> list[Tensors]:
        """Of each of the given steps ``[member batch ...]``: tokens, and what the loss asks for, by name."""
        if not self.answers:
            return [self._step(step) for step in steps]
        if self._held is not None and all(size == self._held[0].shape[1] for size in self._sizes):
            whole = dict(zip(("tokens", _ANSWERS), (held.to(self._device) for held in self._held), strict=True))
            return [whole] * len(steps)  # in any order, the mean loss of all sequences is the same
        if self._held is not None:
            drawn = zip(self._tasks, self._sizes, strict=True)
            rows = torch.stack([self._filled(task.train_rows(steps, size), size) for task, size in drawn])  # type: ignore[attr-defined]
            found = [held[torch.arange(len(rows))[:, None], rows] for held in self._held]
        else:
            batches = [
                [self._filled(part, size) for part in _answered(task.train_batches(steps, size))]  # type: ignore[attr-defined]
                for task, size in zip(self._tasks, self._sizes, strict=True)
            ]
            found = [torch.stack(parts) for parts in zip(*batches, strict=True)]
        tokens, targets = (torch.stack(x.tensor_split(len(steps), dim=1)).to(self._device) for x in found)
        return [{"tokens": t, _ANSWERS: answers} for t, answers in zip(tokens, targets, strict=True)]

    def _filled(self, rows: Tensor, size: int) -> Tensor:
        """``[step * batch ...]``: batches of ``size`` over and over, which leaves their mean loss as it is."""
        again = self._batch_size // size
        return (
            rows
            if again == 1
            else torch.cat([part.repeat(again, *[1] * (rows.ndim - 1)) for part in torch.split(rows, size)])
        )

    def _step(self, step: int) -> Tensors:
        drawn = zip(self._tasks, self._sizes, strict=True)
        batches = [task.train_batch(step, size) for task, size in drawn]
        batches = [batch.select(torch.arange(self._batch_size) % len(batch)) for batch in batches]
        if all(batch.attention_mask is not None and batch.loss_mask is not None for batch in batches):
            widest = max(batch.tokens.shape[1] for batch in batches)
            batches = [_widened(batch, widest) for batch in batches]
        for i, batch in enumerate(batches):
            if (shape := _shape(batch)) != _shape(batches[0]):
                raise InputError(
                    f"at step {step} member {i} trains on {shape}, member 0 on {_shape(batches[0])}; only "
                    "seeds may differ"
                )
        # As in train(): in a causal model padding on the right changes nothing, and no mask is faster.
        real = all(b.attention_mask is None or bool(b.attention_mask.all()) for b in batches)
        bare = real or (self._causal and all(batch.padded_right for batch in batches))
        parts = [_parts(batch, mask=not bare) for batch in batches]
        return {name: torch.stack([own[name] for own in parts]).to(self._device) for name in parts[0]}


def _widened(batch: Batch, width: int) -> Batch:
    """The batch with padding on the right, which its masks leave out."""
    more = width - batch.tokens.shape[1]
    if not more:
        return batch

    def pad(value: Tensor) -> Tensor:
        return torch.nn.functional.pad(value, (0, more)) if value.ndim == 2 else value

    found = {name: pad(value) for name, value in _parts(batch, mask=True).items()}
    return _batch(found)


def _shape(batch: Batch) -> str:
    of = ", ".join(name for name in _parts(batch, mask=True) if name not in ("tokens", "index"))
    return f"{len(batch)} sequences of {batch.tokens.shape[1]} tokens with {of}"


def _parts(batch: Batch, *, mask: bool) -> Tensors:
    """A batch's tensors by name; the attention mask where the model needs one."""
    found = {"tokens": batch.tokens, "index": batch.index}
    found |= {name: value for name in _OPTIONAL if (value := getattr(batch, name)) is not None}
    found |= {f"positions/{name}": value for name, value in batch.positions.items()}
    found |= {f"labels/{name}": value for name, value in batch.labels.items()}
    if not mask:
        found.pop("attention_mask", None)
    return found


def _batch(parts: Tensors) -> Batch:
    """What ``_parts`` took apart."""
    named: dict[str, dict[str, Tensor]] = {"positions": {}, "labels": {}}
    for name, value in parts.items():
        kind, _, own = name.partition("/")
        if own:
            named[kind][own] = value
    return Batch(**{name: value for name, value in parts.items() if "/" not in name}, **named)  # type: ignore[arg-type]


def _answered(batch: Batch) -> tuple[Tensor, Tensor]:
    """Tokens, and the targets where the loss counts."""
    assert batch.targets is not None
    return batch.tokens, batch.targets[batch.loss_mask]


def _initial(member: Member) -> Any:
    model = build_model(member.model)
    if member.weights is not None:
        try:
            set_weights(model, dict(member.weights))
        except (RuntimeError, KeyError) as error:  # PyTorch lists every name and shape
            raise InputError(f"the weights of the member of seed {member.model.seed} do not fit: {error}") from None
    return model


def _native_names(model: Any) -> dict[str, list[str]]:
    """From a parameter's name as ``get_weights`` has it to the model's own, one for each module that has it."""
    owners: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():  # each once, although a bridge reaches them by several paths
        for name, parameter in module.named_parameters(prefix, recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    return {name: owners[id(parameter)] for name, parameter in trainable(model).items()}


def _factors(members: Sequence[Member], weights: Mapping[str, Tensor]) -> Tensors:
    """``[member 1 ...]`` what multiplies each member's steps, of the weights where that is not 1 throughout."""
    found = {}
    for member in members:
        for start in member.rates:
            if not any(name.startswith(start) for name in weights):
                raise InputError(f"no weight's name begins with {start!r} (there are {', '.join(weights)})")
    for name, values in weights.items():
        own = [m.rate * math.prod(f for start, f in m.rates.items() if name.startswith(start)) for m in members]
        if any(factor != 1 for factor in own):
            found[name] = torch.tensor(own, dtype=values.dtype, device=values.device).reshape(
                -1, *[1] * (values.ndim - 1)
            )
    return found


def _why(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
