"""The contract that every probe keeps, as one function: ``check_probe``."""

from __future__ import annotations

import gc
import json
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probes.engine.batches import readable
from probes.engine.hooks import HookedModel, device_of, evaluation_mode, forward, modules_of
from probes.engine.probe import Probe, check_no_class, parameter_text
from probes.engine.recorder import HookedModels, Kept, _Recorder
from probes.engine.result import ProbeResult, load_result
from probes.engine.run import run
from probes.engine.state import Rows, Sum
from probes.store.index_set import IndexSet
from tasks import Batch, InputError

_UNUSUAL = 20_241_050


def check_probe(
    probe: Probe,
    model: HookedModels,
    batches: Batch | Iterable[Batch],
    *,
    rtol: float = 1e-9,
    processes: bool = False,
) -> None:
    """Check a probe against the whole contract that ``run``, ``merge`` and ``all_reduce`` rely on.

    The activations are recorded once and fed to clones of ``probe`` in many splits and orders, so
    that the rounding of the model's own forward pass at different batch sizes plays no part. A probe
    whose states are all ``Rows`` or integer ``Sum`` has to give exactly the same result each time,
    one with a float64 ``Sum`` or ``Moments`` the same within ``rtol`` of the measure's largest value.

    Args:
        probe: the probe; it is cloned, and neither run nor changed itself.
        model: a model that has the probe's sites; for a probe that compares also several by name.
        batches: at least 4 examples that the probe can measure, with distinct indices. Include padded examples if the
            probe looks at positions. Batches of different lengths are padded on the right.
        rtol: how far one with a float64 ``Sum`` or ``Moments`` may differ.
        processes: also check ``all_reduce`` in two processes. Takes seconds, and the probe's class
            must be importable from a module.

    Raises:
        AssertionError: for the first clause that the probe breaks; the message names the clause and
            says what to do.
        InputError: for fewer than 4 examples, an index that two of them have, and what ``run`` refuses too.

    Example:
        >>> # def test_my_probe(model, batches):
        >>> #     check_probe(MyProbe(at=residual()), model, batches)
    """
    check_no_class(probe)
    whole = batches if isinstance(batches, Batch) else _together(list(batches))
    if len(whole) < 4:
        raise InputError(f"check_probe was given {len(whole)} examples; give at least 4, to split them")
    IndexSet().add(whole.index)
    whole = readable(whole, by_name(model))
    case = Case(probe, model, whole, rtol)
    for clause, check in _CLAUSES.items():
        if clause == "two processes" and not processes:
            continue
        try:
            check(case)
        except Broken as broken:
            raise AssertionError(f"{type(probe).__name__} breaks the clause '{clause}': {broken}") from None
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise AssertionError(f"{type(probe).__name__} breaks the clause '{clause}' with {what}") from error


def _together(batches: list[Batch]) -> Batch:
    """Return one batch, padded on the right if sequences have different lengths."""
    lengths = {batch.tokens.shape[1] for batch in batches}
    if len(lengths) > 1:
        batches = [batch.padded_to(max(lengths)) for batch in batches]
    return Batch.concat(batches)


# ---- the clauses ----


def _parameters(case: Case) -> None:
    probe, cls = case.probe, type(case.probe)
    try:
        given = probe.parameters()
        rebuilt = cls(**given)
        changed = [k for k, v in given.items() if getattr(rebuilt, k) is not v]
    except (AttributeError, InputError, TypeError) as error:
        raise Broken(str(error)) from None
    if changed:
        raise Broken(f"__init__ changes {changed[0]!r}; store it as given, and prepare it in update or compute")
    names = {**vars(sys.modules[cls.__module__]), "torch": torch, **vars(sys.modules["probes"]), cls.__name__: cls}
    ways: dict[str, Callable[[], Probe]] = {"repr": lambda: eval(repr(probe), names), "clone": probe.clone}
    if any(parameter_text(v).startswith("<") and isinstance(v, (torch.Tensor, np.ndarray)) for v in given.values()):
        del ways["repr"]  # a large array is shown by its digest, which tells it from others but does not build it
    for way, make in ways.items():
        try:
            same = {k: parameter_text(v) for k, v in make().parameters().items()} == {
                k: parameter_text(v) for k, v in given.items()
            }
        except Exception as error:
            raise Broken(f"{way} of {probe!r} fails with {error}; give every argument a repr that builds it") from None
        if not same:
            raise Broken(f"{way} of {probe!r} makes a probe with other parameters; leave __repr__ and clone to Probe")


def _declarations(case: Case) -> None:
    for name in ("at", "readout"):
        if not hasattr(case.probe, name):
            raise Broken(f"there is no self.{name}; set it in __init__, or call super().__init__()")
    if not case.probe.states:
        raise Broken("no state is declared; declare Sum(), Rows() or Moments() as class attributes")


def _first_result(case: Case) -> None:
    if not isinstance(case.expected, ProbeResult):
        raise Broken(f"compute gives a {type(case.expected).__name__}; return self.result(values, axes)")
    try:
        json.dumps(dict(case.expected.metadata))
    except (TypeError, ValueError) as error:
        raise Broken(f"metadata is not JSON ({error}); give numbers, strings, lists and dictionaries") from None


def _surroundings(case: Case) -> None:
    class Planned(Exception):
        pass

    def fail(*_: Any) -> None:
        raise Planned

    with _unchanged(case, "run()"):
        run(case.model, case.batch.split(2), case.probe.clone())
    failing = case.probe.clone()
    vars(failing)["update"] = fail
    with _unchanged(case, "an exception in update"), suppress(Planned):
        run(case.model, case.batch, failing)


@contextmanager
def _unchanged(case: Case, what: str) -> Iterator[None]:
    def random_states() -> dict[str, Any]:
        return {
            "torch's global random state": torch.get_rng_state().tolist(),
            "numpy's global random state": repr(np.random.get_state(legacy=False)),
            "Python's global random state": random.getstate(),
        }

    logits, earlier = case.output(), (torch.get_rng_state(), np.random.get_state(), random.getstate())
    torch.manual_seed(_UNUSUAL)  # so that a probe which sets a state of its own is seen, also the second time
    np.random.seed(_UNUSUAL)
    random.seed(_UNUSUAL)
    try:
        before = {**case.modules, **random_states()}
        yield
        after = {**modules_of(case.model), **random_states()}
    finally:
        torch.set_rng_state(earlier[0])
        np.random.set_state(earlier[1])
        random.setstate(earlier[2])
    if changed := [k for k, v in after.items() if before[k] != v]:
        raise Broken(f"{what} leaves {changed[0]} changed; undo it, and draw from a generator of your own")
    if not equal({"": logits}, {"": case.output()}):
        raise Broken(f"{what} leaves a model with other outputs; do not touch its weights")


def _state(case: Case) -> None:
    def undeclared() -> dict[str, tuple[int, str]]:
        return {k: (id(v), repr(v)) for k, v in vars(probe).items() if k not in ("_states", "_examples", "_sites")}

    probe = case.fresh()
    before = undeclared()
    case.fed(case.rows, to=probe)
    if changed := [k for k, v in undeclared().items() if before.get(k) != v]:
        raise Broken(f"update changes self.{changed[0]}, which is not declared; make it a Sum() or Rows() of the class")


def _inputs(case: Case) -> None:
    activations, batch = case.part(case.rows)
    case.fresh().update(activations, batch)
    untouched, other = case.part(case.rows)
    if not (equal(activations, untouched) and equal(_tensors(batch), _tensors(other))):
        raise Broken("update changes the activations or the batch, which other probes see too; work on copies")


def _tensors(batch: Batch) -> dict[str, Tensor]:
    named = {"tokens": batch.tokens, "index": batch.index, "attention_mask": batch.attention_mask}
    named |= {f"labels/{k}": x for k, x in batch.labels.items()}
    named |= {f"positions/{k}": x for k, x in batch.positions.items()}
    return {name: x for name, x in named.items() if x is not None}


def _compute(case: Case) -> None:
    probe = case.fed(case.rows)
    before = copies(probe.state_dict()["tensors"])
    first = probe.compute()
    if not equal(before, probe.state_dict()["tensors"]):
        raise Broken("compute changes the state; work on copies (nothing in place, no add)")
    compare(probe.compute(), first, 0.0, "compute called twice has to give the same result")


def _memory(case: Case) -> None:
    activations, batch = case.part(case.rows)
    probe = case.fresh()
    probe.update(activations, batch)
    for x in (*activations.values(), *_tensors(batch).values()):
        x.fill_(1)  # whatever still points into the batch keeps it alive, and now shows
    case.check(probe, "the state has to be a copy, not a view that keeps a whole batch alive", exact=True)
    seen = [weakref.ref(x) for x in (*activations.values(), *_tensors(batch).values())]
    del activations, batch, x
    gc.collect()
    if any(ref() is not None for ref in seen):
        raise Broken("update keeps a batch's tensors alive outside the declared state; keep copies in Sum() or Rows()")


def _reset(case: Case) -> None:
    probe = case.fed(case.rows[: len(case.rows) // 2])
    probe.reset()
    if probe.state_dict()["tensors"]:
        raise Broken("reset() leaves state behind; leave it to Probe, and keep everything in declared states")
    case.check(case.fed(case.rows, to=probe), "after reset() nothing may be left of earlier batches", exact=True)


def _split(case: Case) -> None:
    singly = case.rows.tensor_split(len(case.rows))
    case.check(case.fed(*singly), "one example at a time has to give what one batch gives")
    uneven = case.rows.tensor_split([1, 1 + len(case.rows) // 3])
    case.check(case.fed(*uneven), "batches of uneven size have to give what one batch gives")


def _order(case: Case) -> None:
    backwards = case.rows.flip(0).tensor_split(len(case.rows))
    case.check(case.fed(*backwards), "the reverse order has to give the same result")
    shuffled = case.rows[torch.randperm(len(case.rows), generator=torch.Generator().manual_seed(0))]
    case.check(case.fed(*shuffled.tensor_split(3)), "shuffled examples have to give the same result")


def _merge(case: Case) -> None:
    first, second = case.rows.tensor_split(2)
    for one, other in ((first, second), (second, first)):
        merged = case.fed(one)
        merged.merge(case.fed(other))
        case.check(merged, "two merged halves have to give the result of the whole")
    for empty in (case.fresh(), case.probe.clone()):
        whole = case.fed(case.rows)
        whole.merge(empty)
        case.check(whole, "merging an empty probe has to change nothing", exact=True)
        empty.merge(whole)
        case.check(empty, "an empty probe has to take over what is merged into it", exact=True)


def _examples(case: Case) -> None:
    first, second = case.rows.tensor_split(2)

    def again(probe: Probe) -> None:
        case.fed(first[:1], to=probe)

    def merged_twice(probe: Probe) -> None:
        probe.merge(case.fed(second))
        probe.merge(case.fed(second))

    def loaded(probe: Probe) -> None:
        new = case.probe.clone()
        new.load_state_dict(probe.state_dict())
        again(new)

    ways = {
        "a batch given twice has to be refused; leave observe and examples to Probe": again,
        "a state merged twice has to be refused; let merge call super().merge(other)": merged_twice,
        "a loaded state has to know its examples; let state_dict and load_state_dict call super()": loaded,
    }
    for what, way in ways.items():
        probe = case.fed(first)
        try:
            way(probe)
        except InputError as error:
            if "given twice" in str(error) or "is in both states" in str(error):
                continue
            raise
        raise Broken(what)
    probe.reset()
    again(probe)  # after reset() they may be measured again


def _round_trip(case: Case) -> None:
    first, second = case.rows.tensor_split(2)

    def by_dict(source: Probe, target: Probe) -> None:
        target.load_state_dict(source.state_dict())

    def by_file(source: Probe, target: Probe) -> None:
        with TemporaryDirectory() as folder:
            source.save_state(Path(folder) / "state")
            target.load_state(Path(folder) / "state")

    for way, copy in (("state_dict and load_state_dict", by_dict), ("save_state and load_state", by_file)):
        whole, new, half = case.fed(case.rows), case.probe.clone(), case.probe.clone()
        copy(whole, new)
        if not equal(_held(whole), _held(new)):
            raise Broken(f"{way} must preserve every bit of the state; leave them to Probe")
        case.check(new, f"{way} have to give the same result", exact=True)
        copy(case.fed(first), half)
        half.bind(case.model)  # as attach does; a probe may need the model's weights
        case.check(case.fed(second, to=half), f"{way} have to allow further updates")


def _held(probe: Probe) -> dict[str, Tensor]:
    return {"examples": probe.examples.tensor(), **probe.state_dict()["tensors"]}


def _nan(case: Case) -> None:
    for rows in (case.rows, case.rows[:1]):
        try:
            result = case.fed(rows).compute()
        except InputError:  # too few examples may be refused
            continue
        bad = [k for k, v in result.values.items() if bool(v.isnan().any())]
        if bad and not any(note.strip() for note in result.notes):
            raise Broken(f"{bad[0]!r} is NaN for {len(rows)} examples without a note; say why in result(notes=[...])")


def _result(case: Case) -> None:
    with TemporaryDirectory() as folder:
        case.expected.save(Path(folder) / "result")
        loaded = load_result(Path(folder) / "result")
    compare(loaded, case.expected, 0.0, "a saved result has to come back as it was (names and JSON values only)")
    case.expected.to_dataframe()


def _processes(case: Case) -> None:
    with TemporaryDirectory() as folder:
        for rank, rows in enumerate(case.rows.tensor_split([len(case.rows) // 3])):
            case.fed(rows).save_state(f"{folder}/before{rank}")
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            for done in as_completed([pool.submit(_rank, rank, case.probe.clone(), folder) for rank in range(2)]):
                done.result()
        for rank in range(2):
            probe = case.probe.clone()
            probe.load_state(f"{folder}/after{rank}")
            case.check(probe, f"after all_reduce rank {rank} has to hold the state of both")


def _rank(rank: int, probe: Probe, folder: str) -> None:
    torch.set_num_threads(1)
    probe.load_state(f"{folder}/before{rank}")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    torch.distributed.barrier()  # whoever leaves while the other one still connects makes it fail
    probe.all_reduce()
    probe.save_state(f"{folder}/after{rank}")
    torch.distributed.destroy_process_group()


_CLAUSES = {
    "parameters": _parameters,
    "declarations": _declarations,
    "first result": _first_result,  # a package imported on first use may draw random numbers itself
    "state": _state,
    "inputs untouched": _inputs,
    "compute": _compute,
    "surroundings": _surroundings,
    "memory": _memory,
    "reset": _reset,
    "split invariance": _split,
    "order invariance": _order,
    "merge": _merge,
    "examples": _examples,
    "state round trip": _round_trip,
    "NaN notes": _nan,
    "result": _result,
    "two processes": _processes,
}


# ---- a probe under test ----


class Broken(Exception):
    """What is wrong, and the way out."""


@dataclass
class Case:
    """A probe under test, and the examples to feed it."""

    probe: Probe
    model: HookedModels
    batch: Batch
    rtol: float

    def __post_init__(self) -> None:
        self.rows = torch.arange(len(self.batch))
        self.home = device_of(next(iter(by_name(self.model).values())))
        self.batch = self.batch.to(self.home)
        self.output()  # TransformerLens 4 adds hooks of its own in the first forward pass
        self.modules = modules_of(self.model)  # before the probe was bound

    def output(self) -> Any:
        found = []
        for model in by_name(self.model).values():
            with torch.random.fork_rng(devices=[]), evaluation_mode(model), torch.no_grad():
                found.append(forward(model, self.batch.to(device_of(model))))
        return found[0] if len(found) == 1 else torch.cat([x.flatten().cpu() for x in found])

    @cached_property
    def recorded(self) -> dict[str, Tensor]:
        """What the probe sees of each site, caught once."""
        probe = self.fresh()
        kept: Kept = {}
        for name, model in by_name(self.model).items():
            recorder = _Recorder(model, [probe], name or None, self.home)
            with torch.no_grad(), evaluation_mode(model), recorder.recording():
                kept |= recorder.measure(self.batch)
        return {site: kept[site, probe.readout].clone() for site in probe.site_names}

    @cached_property
    def expected(self) -> ProbeResult:
        """The result of all examples at once."""
        return self.fed(self.rows).compute()

    def fresh(self) -> Probe:
        probe = self.probe.clone()
        probe.bind(self.model)
        return probe

    def part(self, rows: Tensor) -> tuple[dict[str, Tensor], Batch]:
        """Copies of the given examples' activations, and the batch they belong to."""
        return {name: x[rows] for name, x in self.recorded.items()}, self.batch.select(rows)

    def fed(self, *parts: Tensor, to: Probe | None = None) -> Probe:
        """``to``, or a new probe, after an update with each part."""
        probe = self.fresh() if to is None else to
        for rows in parts:
            probe.observe(*self.part(rows))
        return probe

    def check(self, probe: Probe, what: str, exact: bool = False) -> None:
        """``probe`` gives the same result as all examples at once."""
        declared = [getattr(type(probe), name) for name in probe.states]
        exact |= all(isinstance(d, Rows) or (isinstance(d, Sum) and d.dtype is torch.int64) for d in declared)
        compare(probe.compute(), self.expected, 0.0 if exact else self.rtol, what)


def by_name(model: HookedModels) -> Mapping[str, HookedModel]:
    """Several models as they are, one under the name ``""``."""
    return model if isinstance(model, Mapping) else {"": model}


def compare(got: ProbeResult, expected: ProbeResult, rtol: float, what: str) -> None:
    for name in ("axes", "coords", "layers"):
        if getattr(got, name) != getattr(expected, name):
            raise Broken(f"{what}, but {name} went from {getattr(expected, name)} to {getattr(got, name)}")
    for name, value in expected.values.items():
        new, old = got.values[name].double(), value.double()
        finite = old[old.isfinite()].abs()
        largest = float(finite.max()) if len(finite) else 0.0
        if not torch.allclose(new, old, rtol=0.0, atol=rtol * largest, equal_nan=True):
            far = float((new - old).abs().max())
            way = "keep examples by index (Rows), or sums taken in float64 (x.double() first)"
            raise Broken(f"{what}, but {name!r} differs by up to {far:.3g}; {way}")
    if rtol == 0.0 and (got.notes, got.metadata) != (expected.notes, expected.metadata):
        raise Broken(f"{what}, but notes or metadata differ; derive them from the state alone")


def copies(tensors: Any) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in tensors.items()}


def equal(a: Any, b: Any) -> bool:
    """Two dictionaries of tensors are the same to the bit; NaN equals NaN."""

    def same(x: Tensor, y: Tensor) -> bool:
        return x.dtype == y.dtype and x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all())

    return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
