"""Keep numbers that were measured at every epoch of a run, for the sandbox to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from tasks import InputError

_NAMES = {
    "train_loss": "train",
    "test_loss": "test",
    "train_accuracy": "train",
    "test_accuracy": "test",
    "within_ratio": "within / total",
    "followed_loss": "sequences followed",
    "followed_accuracy": "sequences followed",
    "smallest_norm": "min |ξ|",
    "margin": "margin",
}


@dataclass(frozen=True, eq=False)
class Curves:
    """Numbers of one network over its training. ``None`` means not measured.

    NaN is an undefined number, drawn as a gap.

    Args:
        epochs: ``[n]`` the epochs measured, in order. They need not be those the sandbox shows.
        train_loss: ``[n]`` mean loss over the training sequences, in nats.
        test_loss: ``[n]`` mean loss over the test sequences, in nats.
        train_accuracy: ``[n]`` share of training sequences answered correctly.
        test_accuracy: ``[n]`` share of test sequences answered correctly.
        followed_loss: ``[n]`` mean loss over the sequences that the sandbox follows, in nats.
        followed_accuracy: ``[n]`` share of these answered correctly.
        gradient_norms: group of parameters to the ``[n]`` norms of its gradient.
        within_ratio: ``[n]`` within-cluster over total variance of xi.
        smallest_norm: ``[n]`` the smallest length of xi over sequences.
        margin: ``[n]`` the smallest distance of a cluster to the decision boundary.
        spikes: first epoch of every loss spike, and its diagnosis in a few words.
        small_spikes: rises that are like spikes but stay below the loss from which spikes are counted.

    Raises:
        InputError: for epochs out of order, a curve of another length, or a spike at no measured epoch.

    Example:
        >>> curves = Curves(epochs=[0, 1, 2], train_loss=[0.7, 0.5, 0.1], spikes=[(1, "small norm of xi")])
        >>> curves.train_loss.tolist(), curves.test_loss is None
        ([0.7, 0.5, 0.1], True)
    """

    epochs: ArrayLike
    train_loss: ArrayLike | None = None
    test_loss: ArrayLike | None = None
    train_accuracy: ArrayLike | None = None
    test_accuracy: ArrayLike | None = None
    followed_loss: ArrayLike | None = None
    followed_accuracy: ArrayLike | None = None
    gradient_norms: Mapping[str, ArrayLike] = field(default_factory=dict)
    within_ratio: ArrayLike | None = None
    smallest_norm: ArrayLike | None = None
    margin: ArrayLike | None = None
    spikes: Sequence[tuple[int, str]] = ()
    small_spikes: Sequence[tuple[int, str]] = ()

    def __post_init__(self) -> None:
        epochs = np.asarray(self.epochs)
        if epochs.ndim != 1 or not len(epochs) or (np.diff(epochs) <= 0).any():
            raise InputError(
                f"epochs has shape {epochs.shape}; expected [n] increasing numbers, one for each value of a curve"
            )
        object.__setattr__(self, "epochs", epochs.astype(np.int64))
        for name in SERIES:
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, _series(name, values, len(epochs)))
        norms = self.gradient_norms.items()
        groups = {group: _series(f"gradient_norms[{group!r}]", values, len(epochs)) for group, values in norms}
        object.__setattr__(self, "gradient_norms", groups)
        for name in ("spikes", "small_spikes"):
            spikes = [(int(epoch), str(text)) for epoch, text in getattr(self, name)]
            lost = [epoch for epoch, _ in spikes if epoch not in epochs]
            if lost:
                raise InputError(
                    f"a spike is at epoch {lost[0]}, but the curves go from {epochs[0]} to {epochs[-1]} without it; "
                    "give spikes by epoch"
                )
            object.__setattr__(self, name, spikes)


FOLLOWED = ("followed_loss", "followed_accuracy")
SERIES = tuple(each.name for each in fields(Curves) if each.default is None)


def _series(name: str, values: ArrayLike, n: int) -> Float[np.ndarray, "epoch"]:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n,):
        raise InputError(f"{name} has shape {array.shape} for {n} epochs; expected one number per epoch")
    return array


def shown_curves(curves: Curves, names: Sequence[str]) -> dict[str, list[float]]:
    """Return the measured curves of a panel by their displayed name."""
    shown: dict[str, list[float]] = {}
    for name in names:
        values = getattr(curves, name)
        if name == "gradient_norms":
            shown.update({group: series.tolist() for group, series in values.items()})
        elif values is not None:
            shown[_NAMES[name]] = values.tolist()
    return shown
