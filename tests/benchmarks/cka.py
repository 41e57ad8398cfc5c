"""CKA against ``pytorch-cka``, and against the products that it must make."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import combinations_with_replacement, product
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from tests.benchmarks.ratio import alternate

torch.set_num_threads(1)
_LAYERS, _ROWS, _WIDTH = 6, 10_000, 256
_BATCH = 256  # of both, unless told


class _Perceptron(nn.Module):
    """A random residual perceptron over one token, which speaks the hook protocol. Its points are modules too."""

    def __init__(self, d_vocab: int = _ROWS, width: int = _WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(d_vocab, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(_LAYERS))
        self.points = nn.ModuleList(nn.Identity() for _ in range(_LAYERS))
        self.hook_dict = {f"blocks.{i}.hook_resid_post": point for i, point in enumerate(self.points)}

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer, point in zip(self.layers, self.points, strict=True):
            x = point(x + layer(x))
        return x

    @contextmanager
    def hooks(self, fwd_hooks: Sequence[tuple[str, Any]]) -> Iterator[None]:
        handles = [
            self.hook_dict[name].register_forward_hook(lambda module, _, out, f=f: f(out, hook=module))
            for name, f in fwd_hooks
        ]
        yield
        for handle in handles:
            handle.remove()


@lru_cache
def _model() -> _Perceptron:
    return _Perceptron().eval()


def _batches(n: int, vocabulary: int) -> Iterator[Any]:
    from tasks import Batch

    for index in torch.arange(n).split(_BATCH):
        yield Batch(index[:, None] % vocabulary, index=index)


def _ours(measure: str = "debiased_cka", **options: Any) -> Tensor:
    """``[layers layers]`` CKA."""
    from probes import CKA, run

    return run(_model(), _batches(_ROWS, _ROWS), CKA(list(_model().hook_dict), **options))[measure][:, :, 0]


@lru_cache
def _theirs_at_once() -> tuple[float, Tensor]:
    """Seconds and values with all rows in one batch; once, for it takes about a minute and 10 GB."""
    start = time.perf_counter()
    found = _theirs(_ROWS)
    return time.perf_counter() - start, found


def _theirs(batch_size: int, model: nn.Module | None = None, n: int = _ROWS) -> Tensor:
    from cka import compute_cka
    from torch.utils.data import DataLoader, TensorDataset

    model = _model() if model is None else model
    data = DataLoader(TensorDataset(torch.arange(n)[:, None]), batch_size)
    layers = [f"points.{i}" for i in range(_LAYERS)]
    return compute_cka(model, model, data, layers=layers, device="cpu", progress=False)[0]


@lru_cache
def _by_definition() -> Tensor:
    """The same from n x n kernel matrices in float64, a block of rows at a time."""
    from probes import Probe, Rows, last_token, run

    class Keep(Probe):
        rows = Rows()

        def update(self, activations: Any, batch: Any) -> None:
            for site, x in activations.items():
                self.rows.add(site, batch.index, x)

        def compute(self) -> Any:
            return self.result({}, {})

    probe, n = Keep(list(_model().hook_dict), last_token()), _ROWS
    run(_model(), _batches(n, n), probe)
    rows = [probe.rows.get(site)[1].double() for site in probe.site_names]
    rows = [x - x.mean(0) for x in rows]
    together = torch.zeros(_LAYERS, _LAYERS, dtype=torch.float64)
    sums = torch.zeros(_LAYERS, n, dtype=torch.float64)
    for part in torch.arange(n).split(500):
        kernels = [x[part] @ x.T for x in rows]
        for i, kernel in enumerate(kernels):
            kernel[torch.arange(len(part)), part] = 0
            sums[i, part] = kernel.sum(1)
        for i, j in product(range(_LAYERS), repeat=2):
            if i <= j:
                together[i, j] += torch.vdot(kernels[i].flatten(), kernels[j].flatten())
    together = together.triu() + together.triu(1).T
    whole = sums.sum(1)
    hsic = together + torch.outer(whole, whole) / ((n - 1) * (n - 2)) - 2 / (n - 2) * sums @ sums.T
    return hsic / hsic.diagonal().outer(hsic.diagonal()).sqrt()


def faster_at_once() -> float:
    """``pytorch-cka`` over ours, from tokens to the 6 x 6 matrix: all rows in one batch, as its value needs."""

    def seconds() -> float:
        start = time.perf_counter()
        _ours()
        return time.perf_counter() - start

    return _theirs_at_once()[0] / median(seconds() for _ in range(3))


def faster_all_at_once(n: int, width: int) -> float:
    """The same with ``n`` rows of another width, all in one batch of ``pytorch-cka``, which computes in float32."""
    from probes import CKA, run

    model = _Perceptron(n, width).eval()
    ours = CKA(list(model.hook_dict))
    return alternate(lambda: _theirs(n, model, n), lambda: run(model, _batches(n, n), ours), rounds=3)


def decimals(found: Tensor | None = None) -> float:
    """How many decimals of the worst of the 36 values are right: ours, unless given others."""
    error = float(((_ours() if found is None else found) - _by_definition()).abs().max())
    return -math.log10(max(error, 1e-17))


def decimals_in_batches(batch_size: int) -> float:
    """Of ``pytorch-cka``."""
    return decimals(_theirs(batch_size))


def decimals_at_once() -> float:
    """Of ``pytorch-cka``."""
    return decimals(_theirs_at_once()[1])


# ---- every two layers, from kept rows ----


@lru_cache
def _states(layers: int, n: int, d: int) -> dict[str, Tensor]:
    """Rows of some layers: noise, with the first dimension in common, far from 0."""
    draw = torch.Generator().manual_seed(0)
    found = {f"{i:02}": torch.randn(n, d, generator=draw) for i in range(layers)}
    for x in found.values():
        x[:, 0] = 3 * found["00"][:, 0]
        x += 2
    return found


def _products(rows: dict[str, Tensor], pairs: list[tuple[str, str]]) -> None:
    """The bare float32 products, all into one place."""
    like = next(iter(rows.values()))
    place = like.new_zeros(like.shape[1], like.shape[1])
    for x, y in pairs:
        torch.mm(rows[x].T, rows[y], out=place)


def kernels_over_grams(layers: int, n: int = 2_000, d: int = 1_024) -> float:
    """Time of HSIC of every two layers from kept rows in float32 over that of ``_gram_products`` of the same rows."""
    from probes.functional.cka import linear_cka_terms

    rows = _states(layers, n, d)
    pairs = [*combinations_with_replacement(rows, 2)]
    return alternate(lambda: linear_cka_terms(rows, pairs, "float32"), lambda: _gram_products(rows, pairs), rounds=3)


def kernels_over_products(layers: int, n: int = 2_000, d: int = 1_024) -> float:
    """Time of the same over that of the bare float32 products X.T @ Y of every two layers."""
    from probes.functional.cka import linear_cka_terms

    rows = _states(layers, n, d)
    pairs = [*combinations_with_replacement(rows, 2)]
    ours = partial(linear_cka_terms, rows, pairs, "float32")
    return alternate(ours, lambda: _products(rows, pairs), rounds=3)


def _gram_products(rows: dict[str, Tensor], pairs: list[tuple[str, str]], block: int = 2**16) -> list[float]:
    """One centred float32 Gram matrix per layer, and the sum of the products of every pair in float64, in blocks."""
    grams = {}
    for site, x in rows.items():
        x = x - x.double().mean(0).float()
        gram = x @ x.T
        mean = gram.double().mean(0)
        grams[site] = (gram - mean.float()[None] - mean.float()[:, None] + float(mean.mean())).flatten()
    sums = []
    for one, other in pairs:
        parts = zip(grams[one].split(block), grams[other].split(block), strict=True)
        sums.append(sum(float((a * b).double().sum()) for a, b in parts))
    return sums


def decimals_in_float32() -> float:
    return decimals(_ours(precision="float32"))


def table() -> list[tuple[str, Callable[[], float], str]]:
    """What is measured, how, and the goal. The goals have the rows on every two layers."""
    sizes = ((500, 256), (2_000, 256), (2_000, 1_024), (5_000, 1_024))
    return [
        ("pytorch-cka, 10,000 rows at once / CKA, 6 x 6 layers", faster_at_once, ">= 5"),
        *(
            (f"pytorch-cka, {n:,} rows of {d:,} at once / CKA in float64", partial(faster_all_at_once, n, d), "")
            for n, d in sizes
        ),
        ("correct decimals: CKA (no ratio)", decimals, ">= 10"),
        ("correct decimals: CKA in float32 (no ratio)", decimals_in_float32, ">= 6"),
        ("correct decimals: pytorch-cka, at once (no ratio)", decimals_at_once, ""),
        ("correct decimals: pytorch-cka, batches of 256 (no ratio)", lambda: decimals_in_batches(256), ""),
    ]
