"""Classes of examples that lead to equal answers."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.functional.arrays import Array, computed_in_torch
from tasks import InputError


@computed_in_torch()
def response_classes(answers: Int[Array, "recipient example"], tolerance: float = 0.0) -> Int[Array, "example"]:
    """Return the class of each example: examples of a class give equal answers in all recipients, or nearly all.

    Takes tensors, NumPy arrays or lists, and returns tensors for tensors, otherwise arrays.

    Memory: with a tolerance, the examples squared in float64, independent of the number of recipients.

    Args:
        answers: answer of each recipient, with each example in it.
        tolerance: largest share of the recipients in which two examples of one class differ. Above 0, classes come from
            complete linkage, cut there.

    Returns:
        Classes 0, 1, ..., in the order in which they first occur.

    Example:
        >>> response_classes(torch.tensor([[5, 5, 7, 5], [1, 1, 1, 2]])).tolist()
        [0, 0, 1, 2]
    """
    if not 0 <= tolerance <= 1:
        raise InputError(f"tolerance is {tolerance}; expected a share from 0 to 1")
    if tolerance == 0 or answers.shape[1] < 2:
        classes = torch.unique(answers, dim=1, return_inverse=True)[1]
    else:
        from sklearn.cluster import AgglomerativeClustering

        n_recipients, n = answers.shape
        differ = torch.zeros(n, n, dtype=torch.float64, device=answers.device)
        for row in answers:
            differ += row[:, None] != row
        differ /= n_recipients
        linkage = AgglomerativeClustering(
            n_clusters=None, metric="precomputed", linkage="complete", distance_threshold=tolerance + 1e-9
        )
        classes = torch.from_numpy(linkage.fit_predict(differ.cpu().numpy())).long().to(answers.device)
    places = torch.arange(len(classes), device=answers.device)
    first = torch.full((int(classes.max()) + 1,), len(classes), device=answers.device)
    first = first.scatter_reduce(0, classes, places, "amin")
    return first.argsort().argsort()[classes]


def response_points(answers: Int[Tensor, "recipient example"]) -> Float[Tensor, "example axis"]:
    """Return examples as points: each answer of each recipient is an axis, 1 for the examples that lead to it, else 0.

    Half the squared distance of two examples is the number of recipients in which they lead to different answers.

    Example:
        >>> response_points(torch.tensor([[5, 5, 7]])).tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    return torch.cat([(row[:, None] == torch.unique(row)).double() for row in answers], dim=1)
