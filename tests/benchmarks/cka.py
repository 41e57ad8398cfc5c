"""CKA against ``pytorch-cka``, its cost beside the forward pass, and its memory."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from pathlib import Path
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


def _ours() -> Tensor:
    """``[layers layers]`` debiased CKA."""
    from probes import CKA, run

    return run(_model(), _batches(_ROWS, _ROWS), CKA(list(_model().hook_dict)))["debiased_cka"][:, :, 0]


@lru_cache
def _theirs_at_once() -> tuple[float, Tensor]:
    """Seconds and values with all rows in one batch; once, for it takes about a minute and 10 GB."""
    start = time.perf_counter()
    found = _theirs(_ROWS)
    return time.perf_counter() - start, found


def _theirs(batch_size: int) -> Tensor:
    from cka import compute_cka
    from torch.utils.data import DataLoader, TensorDataset

    data = DataLoader(TensorDataset(torch.arange(_ROWS)[:, None]), batch_size)
    layers = [f"points.{i}" for i in range(_LAYERS)]
    return compute_cka(_model(), _model(), data, layers=layers, device="cpu", progress=False)[0]


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


def _peak_mib(n: int) -> float:
    code = f"from tests.benchmarks.cka import _peak; _peak({n})"
    command = [sys.executable, "-c", code]
    return median(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3))


def _peak(n: int) -> None:
    from probes import CKA, run
    from tests.benchmarks.run import _memory_mib

    model = _Perceptron(d_vocab=1000, width=64).eval()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is the imports'
    run(model, _batches(n, 1000), CKA(list(model.hook_dict)))
    print(_memory_mib("VmHWM"))
