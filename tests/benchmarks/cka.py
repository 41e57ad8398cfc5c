"""CKA against ``pytorch-cka`` and the products that it must make, its cost beside the forward pass, and its memory;
``NDims`` against singular values; ``TopicEmbedding``'s sums against dense ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import combinations, product
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from tests.benchmarks.memory import forget_peak, peak, printed
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


def faster(batch_size: int) -> float:
    """``pytorch-cka`` over ours, both from tokens to the 6 x 6 matrix."""
    return alternate(lambda: _theirs(batch_size), _ours, rounds=5)


def faster_at_once() -> float:
    """The same with all rows in one batch of ``pytorch-cka``, the only way to its value over all of them."""

    def seconds() -> float:
        start = time.perf_counter()
        _ours()
        return time.perf_counter() - start

    return _theirs_at_once()[0] / median(seconds() for _ in range(3))


def faster_all_at_once(n: int, width: int, precision: str) -> float:
    """The same with ``n`` rows of another width, all in one batch of ``pytorch-cka``, which computes in float32."""
    from probes import CKA, run

    model = _Perceptron(n, width).eval()
    ours = CKA(list(model.hook_dict), precision=precision)
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


def overhead(label: str | None = None) -> float:
    """``run`` with CKA on two transformers of the MOSSA study's size, against their bare forward passes."""
    from mechclust import ModelConfig, build_model
    from probes import CKA, run
    from tasks import Batch

    shape = {"d_vocab": 60, "n_ctx": 12, "n_layers": 8, "d_model": 64, "n_heads": 4}
    models = {name: build_model(ModelConfig(**shape, seed=seed)).eval() for seed, name in enumerate("ab")}
    draw = torch.Generator().manual_seed(0)
    tokens, index = torch.randint(60, (2048, 12), generator=draw), torch.arange(2048)
    batches = list(Batch(tokens, labels={"task": index % 24}, index=index).split(64))

    def bare() -> None:
        with torch.inference_mode():
            for batch, model in product(batches, models.values()):
                model(batch.tokens)

    return alternate(lambda: run(models, batches, CKA(label=label)), bare, rounds=3)


def memory() -> float:
    """Peak memory of a process at 100,000 rows over that at 10,000."""
    return _peak_mib(100_000) / _peak_mib(10_000)


def _peak_mib(n: int, probe: str = "CKA") -> float:
    code = f"from tests.benchmarks.cka import _peak; _peak({n}, {probe!r})"
    return printed(code, rounds=3)[0]


def _peak(n: int, probe: str) -> None:
    import probes

    model = _Perceptron(d_vocab=1000, width=64).eval()
    forget_peak()  # the peak so far is the imports'
    probes.run(model, _batches(n, 1000), getattr(probes, probe)(list(model.hook_dict)))
    print(peak())


# ---- at the width of a language model ----

_WIDE = (33, 1_024, 4_096)  # layers, rows, dimensions of what fits in a minute or two; 10,000 rows take ten times that


@lru_cache
def _states(layers: int, n: int, d: int) -> dict[str, Tensor]:
    """Rows of some layers: noise, with the first dimension in common, far from 0."""
    draw = torch.Generator().manual_seed(0)
    found = {f"{i:02}": torch.randn(n, d, generator=draw) for i in range(layers)}
    for x in found.values():
        x[:, 0] = 3 * found["00"][:, 0]
        x += 2
    return found


def _seconds(what: Callable[[], object]) -> float:
    start = time.perf_counter()
    what()
    return time.perf_counter() - start


def _pairs(sites: Iterable[str], every: bool) -> list[tuple[str, str]]:
    return [*((x, x) for x in sites), *(combinations(sites, 2) if every else ())]


def _products(rows: dict[str, Tensor], pairs: list[tuple[str, str]], held: bool = True) -> float:
    """Seconds of the bare float32 products; ``held``: each into its place, else all into one."""
    like = next(iter(rows.values()))
    places = [like.new_zeros(like.shape[1], like.shape[1]) for _ in (pairs if held else pairs[:1])]
    return _seconds(lambda: [torch.mm(rows[x].T, rows[y], out=places[i * held]) for i, (x, y) in enumerate(pairs)])


def _moments(rows: dict[str, Tensor], pairs: list[tuple[str, str]], precision: str, labels: int = 1) -> float:
    """Seconds of the moments, in batches of 512 rows."""
    from probes.engine.moments import MomentsState

    state, n = MomentsState(), len(next(iter(rows.values())))

    def add() -> None:
        for part in torch.arange(n).split(512):
            state.add({site: x[part] for site, x in rows.items()}, part % labels, pairs, precision=precision)

    return _seconds(add)


def over_products(precision: str, layers: int, n: int, d: int, every: bool = False, labels: int = 1) -> float:
    """Time of the moments of layers with themselves, or also with every other, over that of float32 products alone."""
    rows = _states(layers, n, d)
    pairs = _pairs(rows, every)
    return _moments(rows, pairs, precision, labels) / _products(rows, pairs)


def kernels_over_grams(layers: int, n: int = 2_000, d: int = 1_024) -> float:
    """Time of HSIC of every two layers from kept rows in float32 over that of ``_gram_products`` of the same rows."""
    from probes.functional.cka import linear_cka_terms

    rows = _states(layers, n, d)
    pairs = _pairs(rows, True)
    return alternate(lambda: linear_cka_terms(rows, pairs, "float32"), lambda: _gram_products(rows, pairs), rounds=3)


def kernels_over_products(layers: int, n: int = 2_000, d: int = 1_024) -> float:
    """Time of the same over that of the bare float32 products X.T @ Y of every two layers."""
    from probes.functional.cka import linear_cka_terms

    rows = _states(layers, n, d)
    pairs = _pairs(rows, True)
    ours = partial(linear_cka_terms, rows, pairs, "float32")
    return alternate(ours, lambda: _products(rows, pairs, held=False), rounds=3)


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


def float32_over_float64() -> float:
    """Time of ``CKA`` on 10,000 x 768, 6 x 6 layers, from rows to moments."""
    rows = _states(6, _ROWS, 768)
    return _moments(rows, _pairs(rows, True), "float32") / _moments(rows, _pairs(rows, True), "float64")


def decimals_in_float32() -> float:
    return decimals(_ours(precision="float32"))


def n_dims_over_svd(n: int, d: int) -> float:
    """Time of ``n_dims`` over that of the singular values of the same rows in float64."""
    from probes.functional import n_dims

    rows = _states(1, n, d)["00"]
    return alternate(lambda: n_dims(rows), lambda: torch.linalg.svdvals((x := rows.double()) - x.mean(0)), rounds=3)


def sums_in_place(words: int = 10_000, d: int = 768, batch: int = 256) -> float:
    """Time of a dense sum a batch, as it was, over that of ``Sum.add_rows``."""
    from probes.engine.state import SumState

    dense, ours, draw = SumState(torch.float64), SumState(torch.float64), torch.Generator().manual_seed(0)
    index, rows = torch.randint(words, (batch,), generator=draw), torch.randn(batch, d, generator=draw)

    def by_dense() -> None:
        dense.add("a", torch.zeros(words, d, dtype=torch.float64).index_add_(0, index, rows.double()))

    return alternate(by_dense, lambda: ours.add_rows("a", index, rows, words), rounds=5)


def n_dims_memory() -> float:
    """Peak memory of a process with ``NDims`` at 100,000 rows over that at 10,000."""
    return _peak_mib(100_000, "NDims") / _peak_mib(10_000, "NDims")


def table() -> list[tuple[str, Callable[[], float], str]]:
    """What is measured, how, and the goal."""
    layers, n, d = _WIDE
    wide = f"{layers} layers x {n:,} x {d:,}"
    return [
        ("pytorch-cka, 10,000 rows at once / CKA, 6 x 6 layers", faster_at_once, ">= 5"),
        ("the same, pytorch-cka in batches of 256", lambda: faster(256), ""),
        *(
            (f"pytorch-cka, {n:,} rows of {d:,} at once / CKA in {p}", partial(faster_all_at_once, n, d, p), "")
            for p in ("float32", "float64")
            for n, d in ((500, 256), (2_000, 256), (2_000, 1_024), (5_000, 1_024))
        ),
        ("correct decimals: CKA (no ratio)", decimals, ">= 10"),
        ("correct decimals: CKA in float32 (no ratio)", decimals_in_float32, ">= 6"),
        ("correct decimals: pytorch-cka, at once (no ratio)", decimals_at_once, ""),
        ("correct decimals: pytorch-cka, batches of 256 (no ratio)", lambda: decimals_in_batches(256), ""),
        ("CKA moments 10,000 x 768, 6 x 6, float32 / float64", float32_over_float64, "<= .6"),
        (f"CKA moments in float32, {wide} / bare float32 products", lambda: over_products("float32", *_WIDE), "<= 1.5"),
        ("the same in float64", lambda: over_products("float64", *_WIDE), ""),
        ("the same in float32, 10,000 x 768, 6 x 6", lambda: over_products("float32", 6, 10_000, 768, True), "<= 1.5"),
        ("the same, for 8 labels", lambda: over_products("float32", 6, 10_000, 768, True, 8), ""),
        (
            "CKA of 8 layers x 2,000 x 1,024, float32 / Gram matrices, products",
            partial(kernels_over_grams, 8),
            "<= 1.1",
        ),
        ("the same, 16 layers", partial(kernels_over_grams, 16), "<= 1.1"),
        ("the same, 33 layers", partial(kernels_over_grams, 33), "<= 1.1"),
        ("CKA of two models, 9 layers / two bare forwards", overhead, ""),
        ("the same, also for each of 24 tasks", lambda: overhead("task"), ""),
        ("peak memory of CKA, 100,000 rows / 10,000", memory, "1"),
        ("n_dims of 10,000 x 768 / its singular values", lambda: n_dims_over_svd(10_000, 768), "<= 1"),
        ("n_dims of 500 x 2,048 / its singular values", lambda: n_dims_over_svd(500, 2_048), "<= 1"),
        ("peak memory of NDims, 100,000 rows / 10,000", n_dims_memory, "1"),
        ("dense sum per batch / Sum.add_rows, 10,000 words x 768, 256 tokens", sums_in_place, ">= 10"),
    ]
