"""Weights of many networks of one shape as one stack: their gradients, mapped over the networks, and their updates."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from mechclust.jobs.batch_tensors import batch_of_tensors
from mechclust.models.build import build_model
from mechclust.models.config import ModelConfig
from mechclust.models.weights import get_weights, set_weights, trainable_weights
from mechclust.training.config import TrainConfig
from mechclust.training.dropout import dropout_of, has_dropout
from mechclust.training.low_rank import LowRank
from mechclust.training.member import Member, member_width
from mechclust.training.optimizer import is_in_part, make_optimizer, parameter_groups
from mechclust.training.stack_data import ANSWERS
from tasks import InputError

Backend = Literal["auto", "compiled", "vmap", "loop"]
StackedWeights: TypeAlias = dict[str, Float[Tensor, "member ..."]]
StackedData: TypeAlias = dict[str, Shaped[Tensor, "member ..."]]
MemberWeights: TypeAlias = dict[str, Float[Tensor, "..."]]  # of one member
MemberData: TypeAlias = dict[str, Shaped[Tensor, "..."]]
Losses: TypeAlias = Float[Tensor, "member"]
GradientsAndLosses: TypeAlias = tuple[StackedWeights, Losses]


class Stack:
    """Stacked weights, their optimiser, and a way to their gradients.

    Narrow feed-forward layers are filled up with neurons of weights 0, whose gradients are 0, so that they stay 0.

    Args:
        members: networks of one shape.
        config: how they are trained.
        device: where.
        low_rank: train only changes of low rank to some weights.

    Attributes:
        weights: the stacked weights that are trained, by name.
        fixed: the other ones.
        optimizer: the optimiser of ``weights``.
        gradients: the function from ``weights``, ``fixed`` and data to gradients and losses.
    """

    weights: StackedWeights
    fixed: StackedWeights

    def __init__(
        self, members: Sequence[Member], config: TrainConfig, device: str, low_rank: LowRank | None = None
    ) -> None:
        models = [_initial_model(member) for member in members]
        parameters = [trainable_weights(model) for model in models]
        widths = [member_width(member.model) for member in members]
        seeds = [member.model.seed for member in members]
        widest = widths.index(max(widths))
        stacked = _stacked(parameters, parameters[widest], device)
        trained = stacked
        if low_rank is not None:
            trained = low_rank.factors(list(zip(seeds, parameters, strict=True)))
        names_by_share = parameter_groups(trained, config, type(models[0]).__name__)
        names = set(chain.from_iterable(names_by_share.values()))
        self.weights = {name: values.to(device).requires_grad_() for name, values in trained.items() if name in names}
        self.fixed = {name: values for name, values in stacked.items() if name not in self.weights}
        self.optimizer = make_optimizer(self.weights, names_by_share, config)
        self._model = models[widest]
        if device != "cpu":  # TransformerLens prints a line for every move
            self._model.to(device)
        self._tasks: list[Any] = [member.task for member in members]
        self._clip = config.clip
        self._low_rank = low_rank
        self._rate_factors = _rate_factors(members, self.weights)
        self._native_names = _native_names(self._model)
        self._is_transformer = isinstance(members[0].model, ModelConfig)
        self._dropout_at = dropout_of(self._model, *seeds)
        self._mapped = vmap(grad_and_value(self._loss), randomness="different" if has_dropout(self._model) else "error")
        self.gradients: Callable[[StackedWeights, StackedWeights, StackedData], GradientsAndLosses] = self._mapped

    def check(self, data: MemberData, *, answers: bool) -> None:
        """Refuse logits that do not fit the tasks' loss, and tasks of several losses, on the data of one member."""
        with torch.no_grad():
            logits = self._model(data["tokens"])
        shape = list(logits.shape)
        if answers != (len(shape) == 2):
            wanted = "[batch d_vocab], one answer per sequence" if answers else "[batch pos d_vocab]"
            raise InputError(
                f"a {type(self._model).__name__} gives logits {shape}; expected {wanted}; train such models one by one "
                "with train()"
            )
        # Logits of a new network may all be 0, where losses can agree.
        logits = torch.arange(logits.numel(), dtype=logits.dtype, device=logits.device).cos().view_as(logits)
        expected = _task_loss(self._tasks[0], logits, data)
        for i, task in enumerate(self._tasks):
            if not torch.equal(_task_loss(task, logits, data), expected):
                raise InputError(
                    f"member {i} has another loss than member 0; train each loss in an ensemble of its own"
                )

    def load(self, weights: Mapping[str, Float[Tensor, "member ..."]]) -> None:
        """Put saved weights in place."""
        with torch.no_grad():
            for name, values in self.weights.items():
                values.copy_(weights[name])

    def snapshot(self) -> StackedWeights:
        """Return all weights, with changes of low rank added, as ``get_weights`` names and lays them out."""
        with torch.no_grad():
            weights = vmap(self._all_weights)(self._detached(), self.fixed)
            if not self._is_transformer:
                return weights
            n_members = len(next(iter(weights.values())))
            snapshots = [self._converted(_of_member(weights, i)) for i in range(n_members)]
        return {name: torch.stack([snapshot[name] for snapshot in snapshots]) for name in snapshots[0]}

    def use(self, backend: Backend, data: StackedData, *, forgiving: bool) -> str:
        """Choose how gradients are computed, and return it.

        Args:
            backend: the wanted way.
            data: a batch to try it on.
            forgiving: if it fails, warn and try the next simpler way.

        Raises:
            InputError: if it fails and ``forgiving`` is not set.
        """
        if backend == "compiled":
            torch.compiler.reset()  # one process may train many ensembles, each of which compiles anew
            self.gradients = torch.compile(self._mapped, dynamic=False)
            # No compiler on this machine, or something it cannot compile: any exception may come.
            failure = self._failure(data, Exception)
            if failure is None:
                return backend
            if not forgiving:
                raise InputError(f"torch.compile cannot compile this training ({failure}); choose backend 'vmap'")
            warnings.warn(
                f"torch.compile failed ({failure}); training continues uncompiled, at a third of the speed",
                stacklevel=3,
            )
            backend = "vmap"
        if backend == "vmap":
            self.gradients = self._mapped
            failure = None if ANSWERS in data else self._failure(data, RuntimeError)
            if failure is None:
                return backend
            if not forgiving:
                raise InputError(
                    f"torch.func cannot map this training over its members ({failure}); choose backend 'loop'"
                )
            warnings.warn(f"torch.func failed ({failure}); members are trained in turn", stacklevel=3)
        self.gradients = self._one_by_one
        return "loop"

    def step(self, step: int, data: StackedData, lr: float) -> Losses:
        """Update every member once, and return their losses before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["share"]
        before = {name: self.weights[name].detach().clone() for name in self._rate_factors}
        with self._dropout_at(step):
            gradients, losses = self.gradients(self._detached(), self.fixed, data)
        if self._clip is not None:
            gradients = _clipped(gradients, self._clip)
        for name, values in self.weights.items():
            # The fused optimisers read memory in order, whatever the strides.
            values.grad = gradients[name].contiguous()
        self.optimizer.step()
        with torch.no_grad():
            for name, factor in self._rate_factors.items():  # the optimiser went a step at the common rate
                self.weights[name].sub_(before[name]).mul_(factor).add_(before[name])
        return losses.detach()

    def _detached(self) -> StackedWeights:
        return {name: values.detach() for name, values in self.weights.items()}

    def _all_weights(self, weights: MemberWeights, fixed: MemberWeights) -> MemberWeights:
        """Return all weights of one member, with changes of low rank added."""
        changed = weights if self._low_rank is None else self._low_rank.changed(fixed, weights)
        return {**fixed, **changed}

    def _converted(self, weights: MemberWeights) -> MemberWeights:
        """Return copies of one member's weights as ``get_weights`` names and lays them out."""
        for name, parameter in trainable_weights(self._model).items():
            parameter.copy_(weights[name])
        return {name: values.clone() for name, values in get_weights(self._model).items()}

    def _loss(self, weights: MemberWeights, fixed: MemberWeights, data: MemberData) -> Float[Tensor, ""]:
        """Return the loss of one member on its batch."""
        parameters: MemberWeights = {}
        for name, values in self._all_weights(weights, fixed).items():
            for native_name in self._native_names[name]:
                parameters[native_name] = values
        options = {}
        if "attention_mask" in data:
            options["attention_mask"] = data["attention_mask"].long()
        # Modules reached by several paths would be taken for tied weights, and put back wrongly.
        logits = functional_call(self._model, parameters, (data["tokens"],), options, tie_weights=False)
        return _task_loss(self._tasks[0], logits, data)

    def _one_by_one(self, weights: StackedWeights, fixed: StackedWeights, data: StackedData) -> GradientsAndLosses:
        """Return gradients and losses, computed for one member after the other."""
        gradients = []
        losses = []
        for i in range(len(data["tokens"])):
            gradient, loss = grad_and_value(self._loss)(
                _of_member(weights, i), _of_member(fixed, i), _of_member(data, i)
            )
            gradients.append(gradient)
            losses.append(loss)
        stacked = {name: torch.stack([gradient[name] for gradient in gradients]) for name in weights}
        return stacked, torch.stack(losses)

    def _failure(self, data: StackedData, kind: type[Exception]) -> str | None:
        """Return the first line of the error that computing gradients raises, or ``None`` if it works."""
        try:
            self.gradients(self._detached(), self.fixed, data)
        except kind as error:
            return (str(error).strip() or type(error).__name__).splitlines()[0]
        return None


def _task_loss(task: Any, logits: Float[Tensor, "..."], data: MemberData) -> Float[Tensor, ""]:
    """Return a task's loss of one member's logits."""
    if ANSWERS in data:
        return task.loss_at(logits, data[ANSWERS])  # type: ignore[no-any-return]
    return task.loss(logits, batch_of_tensors(data))  # type: ignore[no-any-return]


def _clipped(gradients: StackedWeights, most: float) -> StackedWeights:
    """Return the gradients, with a member's scaled down if their total norm is above ``most``.

    Example:
        >>> gradients = _clipped({"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}, 1.0)["w"]
        >>> [[round(x, 3) for x in row] for row in gradients.tolist()]
        [[0.6, 0.8], [0.3, 0.4]]
    """
    norms = torch.stack([values.flatten(1).norm(dim=1) for values in gradients.values()]).norm(dim=0)
    scale = (most / (norms + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_
    return {name: values * _broadcast(scale, values.ndim) for name, values in gradients.items()}


def _zero_padded(values: Float[Tensor, "..."], shape: Sequence[int]) -> Float[Tensor, "..."]:
    """Return the values with zeros behind them, along every axis that is shorter than in ``shape``.

    Example:
        >>> _zero_padded(torch.ones(2), (3,)).tolist()
        [1.0, 1.0, 0.0]
    """
    if tuple(values.shape) == tuple(shape):
        return values
    padded = values.new_zeros(shape)
    padded[tuple(slice(n) for n in values.shape)] = values
    return padded


def _stacked(parameters: Sequence[MemberWeights], widest: MemberWeights, device: str) -> StackedWeights:
    """Return the members' parameters as one tensor per name, each as wide as in the widest member."""
    stacked = {}
    for name, like in widest.items():
        padded = [_zero_padded(member[name].detach(), like.shape) for member in parameters]
        stacked[name] = torch.stack(padded).to(device)
    return stacked


def _of_member(stacked: StackedData, member: int) -> MemberData:
    return {name: values[member] for name, values in stacked.items()}


def _broadcast(per_member: Float[Tensor, "member"], ndim: int) -> Float[Tensor, "member *ones"]:
    """Return one value per member with as many axes as the weights that it multiplies."""
    return per_member.reshape(-1, *[1] * (ndim - 1))


def _initial_model(member: Member) -> Any:
    model = build_model(member.model)
    if member.weights is not None:
        try:
            set_weights(model, dict(member.weights))
        except (RuntimeError, KeyError) as error:  # PyTorch lists every name and shape
            raise InputError(f"the weights of the member of seed {member.model.seed} do not fit: {error}") from None
    return model


def _native_names(model: Any) -> dict[str, list[str]]:
    """Return the model's names of each parameter, one for each module that has it, by its name in weights."""
    names_by_parameter: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():  # each once, although a bridge reaches them by several paths
        for name, parameter in module.named_parameters(prefix, recurse=False):
            names_by_parameter.setdefault(id(parameter), []).append(name)
    return {name: names_by_parameter[id(parameter)] for name, parameter in trainable_weights(model).items()}


def _rate_factors(members: Sequence[Member], weights: StackedWeights) -> StackedWeights:
    """Return the factors of each member's steps, for weights whose factor is not 1 in all members."""
    for member in members:
        for part in member.rates:
            if not any(is_in_part(name, part) for name in weights):
                raise InputError(f"rates has {part!r}, in which nothing is trained (there are {', '.join(weights)})")
    factors = {}
    for name, values in weights.items():
        per_member = [_rate_factor(member, name) for member in members]
        if any(factor != 1 for factor in per_member):
            factor = torch.tensor(per_member, dtype=values.dtype, device=values.device)
            factors[name] = _broadcast(factor, values.ndim)
    return factors


def _rate_factor(member: Member, name: str) -> float:
    return member.rate * math.prod(factor for part, factor in member.rates.items() if is_in_part(name, part))
