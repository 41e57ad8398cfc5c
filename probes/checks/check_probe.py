"""Check the contract that every probe keeps: ``check_probe``."""

from __future__ import annotations

import gc
import json
import random
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from probes.checks.case import Case
from probes.engine.batches import readable_batch
from probes.engine.hooked_model import HookedModels, hooked_models_by_name, modules_of
from probes.engine.parameters import parameter_text
from probes.engine.probe import STATE_ATTRIBUTES, Probe, check_no_probe_class
from probes.engine.result import ProbeResult, load_result
from probes.engine.run import run
from probes.engine.state import AnyTensor, Rows, Sum
from probes.store.index_set import IndexSet
from tasks import Batch, InputError

_UNUSUAL_SEED = 20_241_050


class _Broken(Exception):
    """A broken clause: the fault, and the way out."""


def check_probe(
    probe: Probe,
    model: HookedModels,
    batches: Batch | Iterable[Batch],
    *,
    rtol: float = 1e-9,
    processes: bool = False,
) -> None:
    """Check a probe against the whole contract that ``run``, ``merge`` and ``all_reduce`` rely on.

    The activations are recorded once and fed to clones of ``probe`` in many splits and orders. So the model's rounding
    at different batch sizes has no effect. If all states are ``Rows`` or integer ``Sum``, every result has to be
    exactly equal. With a float64 ``Sum`` or ``Moments``, results have to agree within ``rtol`` of the measure's largest
    value.

    Args:
        probe: the probe, which is cloned, and neither run nor changed itself.
        model: a model that has the probe's sites, or several by name for a probe that compares.
        batches: at least 4 examples that the probe can measure, with distinct indices. Include padded examples if the
            probe looks at positions. Batches of different lengths are padded on the right.
        rtol: how far results of a float64 ``Sum`` or ``Moments`` may differ.
        processes: also check ``all_reduce`` in two processes. Takes seconds, and the probe's class must be importable
            from a module.

    Raises:
        AssertionError: for the first clause that the probe breaks. The message names the clause and the way out.
        InputError: for fewer than 4 examples, an index that two of them have, and as ``run``.

    Example:
        >>> import torch
        >>> from mechclust import ModelConfig, build_model
        >>> from probes import NDims, embedding
        >>> from tasks import Batch
        >>> model = build_model(ModelConfig(d_vocab=5, n_ctx=2, n_layers=1, d_model=8, n_heads=2))
        >>> batch = Batch(torch.tensor([[0, 1], [0, 2], [0, 3], [2, 4]]))
        >>> check_probe(NDims(at=embedding()), model, batch)  # raises if the probe breaks a clause
    """
    check_no_probe_class(probe)
    whole = batches if isinstance(batches, Batch) else _together(list(batches))
    if len(whole) < 4:
        raise InputError(f"check_probe was given {len(whole)} examples; give at least 4, to split them")
    IndexSet().add(whole.index)
    whole = readable_batch(whole, hooked_models_by_name(model))
    case = Case(probe, model, whole, rtol)
    for clause, check in _CLAUSES.items():
        if clause == "two processes" and not processes:
            continue
        try:
            check(case)
        except _Broken as broken:
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
    probe = case.probe
    try:
        parameters = probe.parameters()
        rebuilt = type(probe)(**parameters)
        changed = [name for name, value in parameters.items() if getattr(rebuilt, name) is not value]
    except (AttributeError, InputError, TypeError) as error:
        raise _Broken(str(error)) from None
    if changed:
        raise _Broken(f"__init__ changes {changed[0]!r}; store it as given, and prepare it in update or compute")
    if not any(_is_shown_by_digest(value) for value in parameters.values()):
        _check_copy(probe, "repr")
    _check_copy(probe, "clone")


def _is_shown_by_digest(value: Any) -> bool:
    """Return whether ``repr`` has only the digest of a parameter, a large array, and cannot rebuild it."""
    return isinstance(value, (torch.Tensor, np.ndarray)) and parameter_text(value).startswith("<")


def _check_copy(probe: Probe, way: str) -> None:
    try:
        copy = _from_repr(probe) if way == "repr" else probe.clone()
        is_same = _parameter_texts(copy) == _parameter_texts(probe)
    except Exception as error:
        raise _Broken(f"{way} of {probe!r} fails with {error}; give every argument a repr that builds it") from None
    if not is_same:
        raise _Broken(f"{way} of {probe!r} makes a probe with other parameters; leave __repr__ and clone to Probe")


def _from_repr(probe: Probe) -> Probe:
    cls = type(probe)
    names = {**vars(sys.modules[cls.__module__]), "torch": torch, **vars(sys.modules["probes"]), cls.__name__: cls}
    copy: Probe = eval(repr(probe), names)
    return copy


def _parameter_texts(probe: Probe) -> dict[str, str]:
    return {name: parameter_text(value) for name, value in probe.parameters().items()}


def _declarations(case: Case) -> None:
    for name in ("at", "readout"):
        if not hasattr(case.probe, name):
            raise _Broken(f"there is no self.{name}; set it in __init__, or call super().__init__()")
    if not case.probe.states:
        raise _Broken("no state is declared; declare Sum(), Rows() or Moments() as class attributes")


def _first_result(case: Case) -> None:
    if not isinstance(case.expected, ProbeResult):
        raise _Broken(f"compute gives a {type(case.expected).__name__}; return self.result(values, axes)")
    try:
        json.dumps(dict(case.expected.metadata))
    except (TypeError, ValueError) as error:
        raise _Broken(f"metadata is not JSON ({error}); give numbers, strings, lists and dictionaries") from None


class _Planned(Exception):
    """Raised on purpose in ``update``."""


def _raise_planned(*_: Any) -> None:
    raise _Planned


def _surroundings(case: Case) -> None:
    with _unchanged(case, "run()"):
        run(case.model, case.batch.split(2), case.probe.clone())
    failing = case.probe.clone()
    vars(failing)["update"] = _raise_planned
    with _unchanged(case, "an exception in update"), suppress(_Planned):
        run(case.model, case.batch, failing)


@contextmanager
def _unchanged(case: Case, what: str) -> Iterator[None]:
    """Raise ``_Broken`` if the block changes the model's modules, hooks or outputs, or a global random state."""
    outputs = case.outputs()
    states = (torch.get_rng_state(), np.random.get_state(), random.getstate())
    torch.manual_seed(_UNUSUAL_SEED)  # reveals a probe that sets a seed, also the second time
    np.random.seed(_UNUSUAL_SEED)
    random.seed(_UNUSUAL_SEED)
    try:
        before = {**case.modules, **_random_states()}
        yield
        after = {**modules_of(case.model), **_random_states()}
    finally:
        torch_state, numpy_state, python_state = states
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
    for name, value in after.items():
        if before[name] != value:
            raise _Broken(f"{what} leaves {name} changed; undo it, and draw from a generator of your own")
    if not _equal_tensors(outputs, case.outputs()):
        raise _Broken(f"{what} leaves a model with other outputs; do not touch its weights")


def _random_states() -> dict[str, Any]:
    return {
        "torch's global random state": torch.get_rng_state().tolist(),
        "numpy's global random state": repr(np.random.get_state(legacy=False)),
        "Python's global random state": random.getstate(),
    }


def _state(case: Case) -> None:
    probe = case.fresh()
    before = _undeclared_attributes(probe)
    case.fed(case.rows, to=probe)
    for name, value in _undeclared_attributes(probe).items():
        if before.get(name) != value:
            raise _Broken(f"update changes self.{name}, which is not declared; make it a Sum() or Rows() of the class")


def _undeclared_attributes(probe: Probe) -> dict[str, tuple[int, str]]:
    """Return the identity and ``repr`` of every attribute that is not a declared state."""
    return {name: (id(value), repr(value)) for name, value in vars(probe).items() if name not in STATE_ATTRIBUTES}


def _inputs(case: Case) -> None:
    activations, batch = case.part(case.rows)
    case.fresh().update(activations, batch)
    untouched, untouched_batch = case.part(case.rows)
    if not (_equal_tensors(activations, untouched) and _equal_tensors(_tensors(batch), _tensors(untouched_batch))):
        raise _Broken("update changes the activations or the batch, which other probes see too; work on copies")


def _tensors(batch: Batch) -> dict[str, AnyTensor]:
    """Return the tensors of a batch that a probe reads."""
    tensors = {"tokens": batch.tokens, "index": batch.index}
    if batch.attention_mask is not None:
        tensors["attention_mask"] = batch.attention_mask
    tensors |= {f"labels/{name}": label for name, label in batch.labels.items()}
    tensors |= {f"positions/{name}": position for name, position in batch.positions.items()}
    return tensors


def _compute(case: Case) -> None:
    probe = case.fed(case.rows)
    before = {name: tensor.clone() for name, tensor in probe.state_dict()["tensors"].items()}
    first = probe.compute()
    if not _equal_tensors(before, probe.state_dict()["tensors"]):
        raise _Broken("compute changes the state; work on copies (nothing in place, no add)")
    _compare_results(probe.compute(), first, 0.0, "compute called twice has to give the same result")


def _memory(case: Case) -> None:
    activations, batch = case.part(case.rows)
    probe = case.fresh()
    probe.update(activations, batch)
    for x in (*activations.values(), *_tensors(batch).values()):
        x.fill_(1)  # changes the result if the state holds a view of it
    _check_result(case, probe, "the state has to be a copy, not a view that keeps a whole batch alive", exact=True)
    references = [weakref.ref(x) for x in (*activations.values(), *_tensors(batch).values())]
    del activations, batch, x
    gc.collect()
    if any(reference() is not None for reference in references):
        raise _Broken("update keeps a batch's tensors alive outside the declared state; keep copies in Sum() or Rows()")


def _reset(case: Case) -> None:
    probe = case.fed(case.rows[: len(case.rows) // 2])
    probe.reset()
    if probe.state_dict()["tensors"]:
        raise _Broken("reset() leaves state behind; leave it to Probe, and keep everything in declared states")
    _check_result(
        case, case.fed(case.rows, to=probe), "after reset() nothing may be left of earlier batches", exact=True
    )


def _split(case: Case) -> None:
    singly = case.rows.tensor_split(len(case.rows))
    _check_result(case, case.fed(*singly), "one example at a time has to give what one batch gives")
    uneven = case.rows.tensor_split([1, 1 + len(case.rows) // 3])
    _check_result(case, case.fed(*uneven), "batches of uneven size have to give what one batch gives")


def _order(case: Case) -> None:
    backwards = case.rows.flip(0).tensor_split(len(case.rows))
    _check_result(case, case.fed(*backwards), "the reverse order has to give the same result")
    shuffled = case.rows[torch.randperm(len(case.rows), generator=torch.Generator().manual_seed(0))]
    _check_result(case, case.fed(*shuffled.tensor_split(3)), "shuffled examples have to give the same result")


def _merge(case: Case) -> None:
    first, second = case.rows.tensor_split(2)
    for one, other in ((first, second), (second, first)):
        merged = case.fed(one)
        merged.merge(case.fed(other))
        _check_result(case, merged, "two merged halves have to give the result of the whole")
    for empty in (case.fresh(), case.probe.clone()):
        whole = case.fed(case.rows)
        whole.merge(empty)
        _check_result(case, whole, "merging an empty probe has to change nothing", exact=True)
        empty.merge(whole)
        _check_result(case, empty, "an empty probe has to take over what is merged into it", exact=True)


def _examples(case: Case) -> None:
    first, second = case.rows.tensor_split(2)
    probe = case.fed(first)
    with _refused("a batch given twice has to be refused; leave observe and examples to Probe"):
        case.fed(first[:1], to=probe)
    probe = case.fed(first)
    with _refused("a state merged twice has to be refused; let merge call super().merge(other)"):
        probe.merge(case.fed(second))
        probe.merge(case.fed(second))
    probe = case.fed(first)
    with _refused("a loaded state has to know its examples; let state_dict and load_state_dict call super()"):
        loaded = case.probe.clone()
        loaded.load_state_dict(probe.state_dict())
        case.fed(first[:1], to=loaded)
    probe.reset()
    case.fed(first[:1], to=probe)  # after reset() they may be measured again


@contextmanager
def _refused(clause: str) -> Iterator[None]:
    """Raise ``_Broken`` with ``clause`` unless an example that is given twice is refused inside the block."""
    try:
        yield
    except InputError as error:
        if "given twice" in str(error) or "is in both states" in str(error):
            return
        raise
    raise _Broken(clause)


def _round_trip(case: Case) -> None:
    first, second = case.rows.tensor_split(2)
    ways = {"state_dict and load_state_dict": _copied_by_dict, "save_state and load_state": _copied_by_file}
    for way, copied in ways.items():
        whole = case.fed(case.rows)
        copy = copied(whole, case.probe.clone())
        if not _equal_tensors(_state_tensors(whole), _state_tensors(copy)):
            raise _Broken(f"{way} must preserve every bit of the state; leave them to Probe")
        _check_result(case, copy, f"{way} have to give the same result", exact=True)
        half = copied(case.fed(first), case.probe.clone())
        half.bind(case.model)  # as attach does. A probe may need the model's weights
        _check_result(case, case.fed(second, to=half), f"{way} have to allow further updates")


def _copied_by_dict(source: Probe, target: Probe) -> Probe:
    target.load_state_dict(source.state_dict())
    return target


def _copied_by_file(source: Probe, target: Probe) -> Probe:
    with TemporaryDirectory() as folder:
        source.save_state(Path(folder) / "state")
        target.load_state(Path(folder) / "state")
    return target


def _state_tensors(probe: Probe) -> dict[str, AnyTensor]:
    return {"examples": probe.examples.tensor(), **probe.state_dict()["tensors"]}


def _nan(case: Case) -> None:
    for rows in (case.rows, case.rows[:1]):
        try:
            result = case.fed(rows).compute()
        except InputError:  # too few examples may be refused
            continue
        undefined = [name for name, value in result.values.items() if bool(value.isnan().any())]
        if undefined and not any(note.strip() for note in result.notes):
            raise _Broken(
                f"{undefined[0]!r} is NaN for {len(rows)} examples without a note; say why in result(notes=[...])"
            )


def _result(case: Case) -> None:
    with TemporaryDirectory() as folder:
        case.expected.save(Path(folder) / "result")
        loaded = load_result(Path(folder) / "result")
    _compare_results(
        loaded, case.expected, 0.0, "a saved result has to come back as it was (names and JSON values only)"
    )
    case.expected.to_dataframe()


def _processes(case: Case) -> None:
    with TemporaryDirectory() as folder:
        for rank, rows in enumerate(case.rows.tensor_split([len(case.rows) // 3])):
            case.fed(rows).save_state(f"{folder}/before{rank}")
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            ranks = [pool.submit(_all_reduce, rank, case.probe.clone(), folder) for rank in range(2)]
            for done in as_completed(ranks):
                done.result()
        for rank in range(2):
            probe = case.probe.clone()
            probe.load_state(f"{folder}/after{rank}")
            _check_result(case, probe, f"after all_reduce rank {rank} has to hold the state of both")


def _all_reduce(rank: int, probe: Probe, folder: str) -> None:
    """Run ``all_reduce`` as one of two processes."""
    torch.set_num_threads(1)
    probe.load_state(f"{folder}/before{rank}")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    torch.distributed.barrier()  # a process that leaves while the other one still connects makes it fail
    probe.all_reduce()
    probe.save_state(f"{folder}/after{rank}")
    torch.distributed.destroy_process_group()


# ---- comparisons ----


def _check_result(case: Case, probe: Probe, clause: str, exact: bool = False) -> None:
    """Raise ``_Broken`` with ``clause`` unless the probe's result equals the result of all examples at once."""
    declared = [getattr(type(probe), name) for name in probe.states]
    exact |= all(isinstance(d, Rows) or (isinstance(d, Sum) and d.dtype is torch.int64) for d in declared)
    _compare_results(probe.compute(), case.expected, 0.0 if exact else case.rtol, clause)


def _compare_results(result: ProbeResult, expected: ProbeResult, rtol: float, clause: str) -> None:
    """Raise ``_Broken`` with ``clause`` unless two results agree within ``rtol`` of a measure's largest value."""
    for name in ("axes", "coords", "layers"):
        if getattr(result, name) != getattr(expected, name):
            raise _Broken(f"{clause}, but {name} went from {getattr(expected, name)} to {getattr(result, name)}")
    for name, value in expected.values.items():
        new = result.values[name].double()
        old = value.double()
        finite = old[old.isfinite()].abs()
        largest = float(finite.max()) if len(finite) else 0.0
        if not torch.allclose(new, old, rtol=0.0, atol=rtol * largest, equal_nan=True):
            difference = float((new - old).abs().max())
            way = "keep examples by index (Rows), or sums taken in float64 (x.double() first)"
            raise _Broken(f"{clause}, but {name!r} differs by up to {difference:.3g}; {way}")
    if rtol == 0.0 and (result.notes, result.metadata) != (expected.notes, expected.metadata):
        raise _Broken(f"{clause}, but notes or metadata differ; derive them from the state alone")


def _equal_tensors(a: Mapping[str, AnyTensor], b: Mapping[str, AnyTensor]) -> bool:
    """Return whether two dictionaries of tensors are equal to the bit, with NaN equal to NaN."""
    return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)


def _same(x: AnyTensor, y: AnyTensor) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    return bool(((x == y) | ((x != x) & (y != y))).all())


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
