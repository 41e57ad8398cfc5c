"""Reading layers off two curves: which are shared, in transition, or refine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tasks import InputError

_WIDE, _NARROW, _FULL = 0.10, 0.02, 0.95


@dataclass(frozen=True)
class LayerGroups:
    """Layers, counted from 1, of each group; ``transition`` may be empty.

    Attributes:
        shared: where tuning did not bring the model nearer to its controls.
        transition: where it does, and representations of tasks are formed.
        refinement: the rest.
    """

    shared: range
    transition: range
    refinement: range

    def __str__(self) -> str:
        """
        Example:
            >>> str(LayerGroups(range(1, 10), range(10, 16), range(16, 33)))
            'shared 1-9, transition 10-15, refinement 16-32'
        """
        parts = []
        for name, layers in (("shared", self.shared), ("transition", self.transition), ("refinement", self.refinement)):
            parts.append(f"{name} {layers[0]}-{layers[-1]}" if layers else f"no {name}")
        return ", ".join(parts)


def layer_groups(
    base: ArrayLike,
    tuned: ArrayLike,
    spread: ArrayLike,
    n_dims: ArrayLike | None = None,
    *,
    margin: float = 0.02,
) -> LayerGroups:
    """Shared, transition and refinement layers, by a fixed rule.

    Shared: the layers before ``crossover(base, tuned, margin)``. Transition: from there to the first layer with 95%
    of the most dimensions; without dimensions, to the last layer before ``spread`` leaves .02 of its minimum. There
    is none where the spread never falls to .10 after the shared layers. Refinement: the rest.

    The rule is ours. On the paper's curves it gives the paper's groups, 1-9, 10-15 and 16-32 for seen tasks, and no
    transition for unseen ones. The first boundary hangs on a difference of .020 at layer 9 there: with an error of
    .005 in every point, as of reading a figure, it is 8 in about half of the draws.

    Source: Zhao, Ziser & Cohen 2024 (arXiv 2410.20008), figures 2 and 7.

    Args:
        base: median over tasks of CKA with the controls, by layer from 1; of the untuned model.
        tuned: of the tuned model. NaN where not known.
        spread: interquartile range over tasks of ``tuned``.
        n_dims: dimensions for 99% of the variance, of the tuned model; NaN where not known.
        margin: how far ``tuned`` has to be above ``base``.

    Example:
        >>> base, tuned = [1.0, 0.9, 0.7, 0.5, 0.4], [1.0, 0.9, 0.9, 0.9, 0.9]
        >>> print(layer_groups(base, tuned, spread=[0, 0.2, 0.1, 0.04, 0.1]))
        shared 1-2, transition 3-4, refinement 5-5
    """
    given = (base, tuned, spread, *(() if n_dims is None else (n_dims,)))
    curves = [np.asarray(values, dtype=float) for values in given]
    if len({len(values) for values in curves}) != 1 or not len(curves[0]):
        raise InputError(f"the curves have {', '.join(str(len(v)) for v in curves)} layers; expected one number each")
    last, wide = len(curves[0]), curves[2]
    start = crossover(base, tuned, margin)
    after = range(start, last + 1)
    shared = range(1, start)
    narrow = wide[start - 1 :]
    if not after or np.isnan(narrow).all() or np.nanmin(narrow) > _WIDE:
        return LayerGroups(shared, range(start, start), after)
    if n_dims is not None and not np.isnan(curves[3]).all():
        full = np.flatnonzero(curves[3][start - 1 :] >= _FULL * np.nanmax(curves[3]))
        end = start + (int(full[0]) if len(full) else 0)
    else:
        least = int(np.nanargmin(narrow))
        left = np.flatnonzero(narrow[least:] > narrow[least] + _NARROW)
        end = start + least + int(left[0]) - 1 if len(left) else last
    return LayerGroups(shared, range(start, end + 1), range(end + 1, last + 1))


def crossover(base: ArrayLike, tuned: ArrayLike, margin: float = 0.0, *, exceptions: int = 1) -> int:
    """The first layer from which ``tuned - base`` stays above ``margin``, with so many exceptions allowed.

    Layers count from 1; one more than there are where it never does. A layer where either is NaN is not above.

    Example:
        >>> crossover([1.0, 0.9, 0.8, 0.8, 0.7], [0.9, 0.8, 0.9, 0.8, 0.9])
        3
    """
    above = np.asarray(tuned, dtype=float) - np.asarray(base, dtype=float) > margin
    for layer in range(len(above)):
        if above[layer] and int((~above[layer:]).sum()) <= exceptions:
            return layer + 1
    return len(above) + 1
