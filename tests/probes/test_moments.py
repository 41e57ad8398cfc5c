from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import probes.engine.moments as moments
from probes import Moments, Probe, ProbeResult, collect_rows, run
from probes.engine.moments import MomentsState
from probes.extend import check_probe
from probes.functional.cka import cka_from_hsic
from tasks import Batch, InputError
from tests.probes.functional.test_cka import brute_force, gaussians

PAIRS = [*((x, x) for x in "zab"), *combinations("zab", 2)]


def rows_of(n: int, *dims: int) -> dict[str, torch.Tensor]:
    """Three sites that share a direction; the mean of the first drifts, the last is far from 0."""
    z, a, b = gaussians(n, *dims)
    a[:, 0] += z[:, 0]
    b[:, 1] -= a[:, 0]
    return {"z": z + torch.arange(n)[:, None], "a": a, "b": 1e-3 * b + 50}


def gathered(rows: dict[str, torch.Tensor], sizes: list[int], classes: torch.Tensor) -> MomentsState:
    state, start = MomentsState(), 0
    for size in sizes:
        chosen = slice(start, start := start + size)
        state.add({site: x[chosen] for site, x in rows.items()}, classes[chosen], PAIRS)
    return state


def value(state: MomentsState, key: str, x: str, y: str, debiased: bool) -> float:
    terms = (state[key].pair(*pair).hsic() for pair in ((x, y), (x, x), (y, y)))
    return cka_from_hsic(*terms, debiased=debiased)[0]


@pytest.mark.parametrize("dims", [(4, 4, 4), (3, 5, 2)])
@pytest.mark.parametrize("sizes", [[60], [1] * 60, [1, 2, 30, 27], [40, 20]])
def test_sites_gathered_together_equal_the_kernel_matrices(sizes: list[int], dims: tuple[int, ...]) -> None:
    rows, classes = rows_of(60, *dims), torch.arange(60) % 7 // 6
    state = gathered(rows, sizes, classes)
    assert {key: state[key].n for key in state} == {"0": 52, "1": 8}
    for c in range(2):
        for x, y in PAIRS:
            for debiased in (False, True):
                expected = brute_force(rows[x][classes == c], rows[y][classes == c])[debiased]
                assert value(state, str(c), x, y, debiased) == pytest.approx(expected, abs=1e-10)


def test_a_copy_does_not_change_with_what_comes_later() -> None:
    """Sums are made in place; what was merged, saved or loaded before stays as it was."""
    rows, classes = rows_of(30, 4, 2, 3), torch.zeros(30, dtype=torch.int64)
    state = gathered(rows, [20], classes)
    tensors = state.tensors()
    merged, loaded = MomentsState(), MomentsState()
    merged.merge(state)
    loaded.load(tensors)
    copies = [{name: x.clone() for name, x in s.tensors().items()} for s in (state, merged, loaded)]
    for s in (state, loaded):
        s.add({site: x[20:] for site, x in rows.items()}, classes[20:], PAIRS)
    assert all(torch.equal(tensors[name], x) for name, x in copies[0].items())
    assert all(torch.equal(merged.tensors()[name], x) for name, x in copies[1].items())
    assert (state["0"].n, loaded["0"].n, merged["0"].n) == (30, 30, 20)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_blocks_of_rows_change_nothing(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, classes = rows_of(90, 4, 2, 3), torch.arange(90) % 2
    whole = MomentsState()
    whole.add(rows, classes, PAIRS, precision=precision)
    monkeypatch.setattr(moments, "_MIN_ROWS_PER_BLOCK", 7)
    monkeypatch.setattr(moments, "_MAX_ELEMENTS_PER_BLOCK", 1)
    parts = MomentsState()
    parts.add(rows, classes, PAIRS, precision=precision)
    for c, (x, y) in product("01", [("z", "a"), ("z", "b"), ("a", "b")]):
        chosen = classes == int(c)
        expected = brute_force(rows[x][chosen], rows[y][chosen])[1]
        near = 1e-10 if precision == "float64" else 1e-6
        for state in (whole, parts):
            assert value(state, c, x, y, True) == pytest.approx(expected, abs=near)


class LargestInFloat64(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor in float64 that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.numel = max(self.numel, result.numel())
        return result


def test_rows_in_float64_are_copied_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "_MIN_ROWS_PER_BLOCK", 50)
    monkeypatch.setattr(moments, "_MAX_ELEMENTS_PER_BLOCK", 1)
    state = MomentsState()
    rows = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0)).half()
    with LargestInFloat64() as largest:
        state.add({"a": rows})
    assert largest.numel <= 50 * 8
    torch.testing.assert_close(state["all"].point, rows.double().mean(0), rtol=1e-12, atol=1e-15)


def test_float32_products_are_about_the_mean() -> None:
    """Rows 10,000 times as far from 0 as they spread, in float64: rounded as they are, they would leave nothing."""
    rows = {site: 1e4 + x for site, x in zip("ab", gaussians(200, 5, 4), strict=True)}
    rows["b"][:, 0] += rows["a"][:, 0]
    state = MomentsState()
    for part in torch.arange(200).split(30):
        state.add({site: x[part] for site, x in rows.items()}, None, [("a", "b")], precision="float32")
    parts = [state["all"].pair(*pair).hsic("float32") for pair in (("a", "b"), ("a", "a"), ("b", "b"))]
    assert parts[0].debiased.dtype == torch.float64
    found = cka_from_hsic(*parts, debiased=True)[0]
    error = abs(found - brute_force(rows["a"], rows["b"])[1])
    assert 0 < error < 1e-7


def test_a_merge_leaves_the_other_as_it_was() -> None:
    rows, classes = rows_of(60, 4, 2, 3), torch.zeros(60, dtype=torch.int64)
    parts = [{site: x[part] for site, x in rows.items()} for part in (slice(20), slice(20, 60))]
    expected = brute_force(rows["z"], rows["a"])[1]
    for first, second in (parts, parts[::-1]):
        mine, other = (gathered(part, [len(part["z"])], classes) for part in (first, second))
        before = {name: x.clone() for name, x in other.tensors().items()}
        mine.merge(other)
        assert all(torch.equal(x, before[name]) for name, x in other.tensors().items())
        assert value(mine, "0", "z", "a", True) == pytest.approx(expected, abs=1e-10)
        loaded = MomentsState()
        loaded.load(dict(sorted(mine.tensors().items())))  # a file does not keep their order
        assert value(loaded, "0", "z", "a", True) == value(mine, "0", "z", "a", True)


class Spread(Probe):
    """Somebody else's probe, as the docstring of ``Moments`` has it."""

    moments = Moments()

    def update(self, activations: Any, batch: Batch) -> None:
        self.moments.add({site: x.flatten(1) for site, x in activations.items()})

    def compute(self) -> ProbeResult:
        found = []
        for site in self.site_names:
            m = self.moments["all"].pair(site, site)
            covariance = m.product / m.n - torch.outer(m.sum_x, m.sum_x) / m.n**2
            found.append(covariance.trace() ** 2 / covariance.square().sum())
        notes = [] if m.n > 1 else ["one example does not vary, so its spread is NaN"]
        return self.result({"spread": torch.stack(found)}, {"spread": ("site",)}, notes=notes)


def test_anybodys_probe_may_declare_moments(model: Any, batch: Batch) -> None:
    """Covariances are those of the rows, and the probe keeps the whole contract."""
    check_probe(Spread(), model, batch)
    found = run(model, batch.split(4), Spread())["spread"]
    for k, rows in enumerate(collect_rows(model, batch).values()):
        values = torch.linalg.eigvalsh(torch.cov(rows.double().T))
        assert float(found[k]) == pytest.approx(float(values.sum() ** 2 / values.square().sum()), rel=1e-9)


def test_a_pair_in_both_orders_is_refused() -> None:
    message = "^the pair of 'a' and 'b' is given in both orders; give one of them$"
    with pytest.raises(InputError, match=message):
        MomentsState().add(rows_of(5, 2, 2, 2), pairs=[("a", "z"), ("a", "b"), ("z", "z"), ("b", "a")])


def test_no_examples_change_nothing() -> None:
    state = MomentsState()
    state.add({"a": torch.ones(0, 3)})
    assert len(state) == 0
    state.add({"a": torch.ones(2, 3)})
    assert (list(state), state["all"].n, list(state["all"].product)) == (["all"], 2, [("a", "a")])
