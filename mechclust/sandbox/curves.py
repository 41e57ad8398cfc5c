"""Keep numbers that were measured at every epoch of a run, for the sandbox to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from tasks import InputError
from tasks.errors import did_you_mean

CURVE_PANELS = ("loss", "accuracy", "gradient_norms", "within_ratio", "spikes")


@dataclass(frozen=True, eq=False)
class Curves:
    """Numbers of one network over its training. NaN is an undefined number, drawn as a gap.

    Args:
        epochs: ``[n]`` the epochs measured, in order. They need not be those the sandbox shows.
        panels: by panel, one of ``CURVE_PANELS`` (the loss in nats), and by the name in its legend, ``[n]`` numbers.
        spikes: first epoch of every loss spike, and its diagnosis in a few words. Marked on the first curve of the loss
            and of the spikes.
        small_spikes: rises that are like spikes but stay below the loss from which spikes are counted.

    Raises:
        InputError: for epochs out of order, an unknown panel, a curve of another length, or a spike at no measured
            epoch.

    Example:
        >>> curves = Curves([0, 1, 2], {"loss": {"train": [0.7, 0.5, 0.1]}}, spikes=[(1, "small norm of xi")])
        >>> curves.panels["loss"]["train"].tolist()
        [0.7, 0.5, 0.1]
    """

    epochs: ArrayLike
    panels: Mapping[str, Mapping[str, ArrayLike]] = field(default_factory=dict)
    spikes: Sequence[tuple[int, str]] = ()
    small_spikes: Sequence[tuple[int, str]] = ()

    def __post_init__(self) -> None:
        epochs = np.asarray(self.epochs)
        if epochs.ndim != 1 or not len(epochs) or (np.diff(epochs) <= 0).any():
            raise InputError(
                f"epochs has shape {epochs.shape}; expected [n] increasing numbers, one for each value of a curve"
            )
        object.__setattr__(self, "epochs", epochs.astype(np.int64))
        for panel in self.panels:
            if panel not in CURVE_PANELS:
                known = ", ".join(CURVE_PANELS)
                raise InputError(f"no panel of curves {panel!r} (there are {known}){did_you_mean(panel, CURVE_PANELS)}")
        panels = {
            panel: {name: _series(f"{panel}[{name!r}]", values, len(epochs)) for name, values in curves.items()}
            for panel, curves in self.panels.items()
        }
        object.__setattr__(self, "panels", panels)
        for name in ("spikes", "small_spikes"):
            spikes = [(int(epoch), str(text)) for epoch, text in getattr(self, name)]
            lost = [epoch for epoch, _ in spikes if epoch not in epochs]
            if lost:
                raise InputError(
                    f"a spike is at epoch {lost[0]}, but the curves go from {epochs[0]} to {epochs[-1]} without it; "
                    "give spikes by epoch"
                )
            object.__setattr__(self, name, spikes)


def _series(name: str, values: ArrayLike, n: int) -> Float[np.ndarray, "epoch"]:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n,):
        raise InputError(f"{name} has shape {array.shape} for {n} epochs; expected one number per epoch")
    return array
