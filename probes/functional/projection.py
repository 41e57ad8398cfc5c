"""t-SNE: rows in two dimensions."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from jaxtyping import Float

from tasks import InputError

_MAX_DIMENSIONS = 50  # openTSNE gets at most this many principal components


def project_2d(rows: Float[np.ndarray, "row dim"], seed: int = 0) -> Float[np.ndarray, "row 2"]:
    """Return scikit-learn's t-SNE of the rows, from a PCA start.

    Example:
        >>> project_2d(np.random.default_rng(0).normal(size=(9, 4))).shape
        (9, 2)
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    tsne = TSNE(n_components=2, perplexity=_perplexity(rows), init="pca", random_state=seed)
    with threadpool_limits(1):
        return tsne.fit_transform(rows)  # type: ignore[no-any-return]


def open_tsne_2d(rows: Float[np.ndarray, "row dim"], seed: int = 0) -> Float[np.ndarray, "row 2"]:
    """Return openTSNE's t-SNE of the rows, from a PCA start, on one thread.

    Rows of more than 50 dimensions are reduced to the first 50 principal components. From 10,000 rows on, its time
    grows with ``n``, and scikit-learn's with ``n log n``.

    Source: Policar, Strazar & Zupan 2024 (openTSNE). 50 components: van der Maaten & Hinton 2008.

    Raises:
        InputError: if openTSNE is not installed.
    """
    check_open_tsne()
    from openTSNE import TSNE
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        if min(rows.shape) > _MAX_DIMENSIONS:
            rows = PCA(_MAX_DIMENSIONS, random_state=seed).fit_transform(rows)
        tsne = TSNE(perplexity=_perplexity(rows), initialization="pca", random_state=seed, n_jobs=1)
        return np.asarray(tsne.fit(rows))


def check_open_tsne() -> None:
    """Raise an error if openTSNE is missing.

    Raises:
        InputError: if it is not installed.
    """
    if find_spec("openTSNE") is None:
        raise InputError(
            "method is 'opentsne', which needs openTSNE; install it with: pip install 'mechclust[tsne]', or choose "
            "'tsne'"
        )


def _perplexity(rows: Float[np.ndarray, "row dim"]) -> float:
    return min(30.0, (len(rows) - 1) / 3)
