"""The probe: what can be measured at a hook point."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from probes.engine.hooks import HookPoints, Models
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Site, Sites, renumbered, residual, resolve
from probes.engine.state import Declared, Keyed
from probes.store.files import read_safetensors, versions, write_safetensors
from probes.store.index_set import IndexSet
from tasks import Batch, InputError

_FORMAT = "mechclust-probe-state-3"
_BEFORE = "mechclust-probe-state-2"  # numbered the layers of heads from 1
_HELD = ("_states", "_examples", "_sites")  # beside the parameters
_SHOWN = 64  # an array of more elements is shown by its digest
ProbeT = TypeVar("ProbeT", bound="Probe")


class Probe(ABC):
    """Measures something at sites of a model, one batch at a time.

    A subclass stores its parameters unchanged in ``__init__`` (``at`` and ``readout`` among them),
    declares its state as class attributes (``Sum()``, ``Rows()``, ``Moments()``), and writes two methods:
    ``update(activations, batch)`` adds a batch to the state, ``compute()`` turns the state into a
    ``ProbeResult``. The base class provides the rest: ``observe``, ``reset``, ``merge``, ``state_dict``,
    ``load_state_dict``, ``save_state``, ``load_state``, ``all_reduce``, ``clone`` and a ``repr`` that
    rebuilds it. A state knows by index which examples it holds, so none is counted twice, in a batch or in a merge.

    Attributes:
        compares: whether ``run`` may give it several models at once, ``{"tuned": a, "base": b}``. Its sites are
            then those of all, named ``"tuned/hook_embed"`` and so on, in ``activations`` too.

    Example:
        >>> import torch
        >>> from probes import Probe, Sum, last_token, residual
        >>> class MeanNorm(Probe):
        ...     '''Mean Euclidean norm at each site.'''
        ...     total, count = Sum(), Sum(torch.int64)
        ...     def __init__(self, at=residual(), readout=last_token()):
        ...         self.at, self.readout = at, readout
        ...     def update(self, activations, batch):
        ...         for site, x in activations.items():
        ...             self.total.add(site, x.norm(dim=-1).sum(dtype=torch.float64))
        ...             self.count.add(site, len(x))
        ...     def compute(self):
        ...         norms = [self.total[s] / self.count[s] for s in self.site_names]
        ...         return self.result({"norm": torch.stack(norms)}, {"norm": ("site",)})
        >>> MeanNorm()
        MeanNorm(at=residual(), readout=last_token())
    """

    at: Sites
    readout: Readout
    states: ClassVar[tuple[str, ...]] = ()
    compares: ClassVar[bool] = False
    _sites: list[Site] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = dict.fromkeys(k for base in reversed(cls.__mro__) for k in vars(base))
        cls.states = tuple(k for k in names if isinstance(getattr(cls, k, None), Declared))

    def __init__(self, at: Sites | None = None, readout: Readout | None = None) -> None:
        self.at = residual() if at is None else at
        self.readout = last_token() if readout is None else readout

    @abstractmethod
    def update(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        """Add one batch: ``activations`` maps each site's name to what the readout kept.

        All of it is on the batch's device, also where the model lies on several. Subclasses write this; to feed a
        probe by hand call ``observe``, which also notes the examples.
        """

    @abstractmethod
    def compute(self) -> ProbeResult:
        """The result of all batches so far. Does not change the state."""

    # ---- sites ----

    def bind(self, model: Models) -> list[Site]:
        """Resolve ``at`` in ``model``, or in each of several by name; ``run`` and ``attach`` do this.

        Raises:
            InputError: when state from other sites is held already.
        """
        sites = self._sites_of_each(model) if isinstance(model, Mapping) else self._sites_in(model)
        if self._sites is not None and sites != self._sites and not self._empty:
            raise InputError(
                f"this {type(self).__name__} holds state from {len(self._sites)} sites of a model of another shape; "
                "call reset() or use a new probe"
            )
        self._sites = sites
        return sites

    def _sites_in(self, model: HookPoints) -> list[Site]:
        """What ``at`` stands for in a model; a subclass may add sites to it, or refuse some."""
        return resolve(model, self.at)

    def _sites_of_each(self, models: Mapping[str, HookPoints]) -> list[Site]:
        sites = []
        for name, model in models.items():
            try:
                sites += [Site(f"{name}/{site.name}", site.layer) for site in self._sites_in(model)]
            except InputError as error:
                raise InputError(f"model {name!r}: {error}") from None
        return sites

    @property
    def sites(self) -> list[Site]:
        """Where it measures; known once it was run or attached."""
        if self._sites is None:
            raise InputError(f"this {type(self).__name__} has not seen a model yet; give it to run() or attach()")
        return self._sites

    @property
    def site_names(self) -> list[str]:
        """Hook names, in order."""
        return [site.name for site in self.sites]

    # ---- state ----

    def observe(self, activations: Mapping[str, Tensor], batch: Batch) -> None:
        """Note the batch's examples, then ``update``: what ``run``, ``attach`` and ``run_stores`` call.

        The examples count as given also where ``update`` fails, for a part of them may be in the state by then.

        Raises:
            InputError: for an example that is given twice, or that the state holds already.
        """
        self.examples.add(batch.index)
        self.update(activations, batch)

    @property
    def examples(self) -> IndexSet:
        """Which examples the state holds, by index."""
        held: IndexSet = self.__dict__.setdefault("_examples", IndexSet())
        return held

    def _state(self, name: str) -> Keyed[Any]:
        return getattr(self, name)  # type: ignore[no-any-return]

    @property
    def _empty(self) -> bool:
        return not any(len(self._state(name)) for name in self.states)

    def reset(self) -> None:
        """Forget every batch; the parameters stay. The same examples may then be measured again."""
        for name in ("_states", "_examples"):
            self.__dict__.pop(name, None)

    def clone(self: ProbeT) -> ProbeT:
        """A new probe with the same parameters and no state."""
        new = copy.copy(self)
        new.__dict__ = {k: v for k, v in self.__dict__.items() if k not in _HELD}
        return new

    def merge(self, other: Probe) -> None:
        """Add the state of another probe of the same kind, as if one had seen both its and our batches.

        Raises:
            InputError: when the probes differ in class, parameters or sites, or hold an example both. Nothing changes
                then.
        """
        if repr(self) != repr(other):
            raise InputError(f"cannot merge {other!r} into {self!r}; merge probes with the same parameters")
        if None not in (self._sites, other._sites) and self._sites != other._sites:
            raise InputError(
                f"cannot merge {type(self).__name__} states from different sites; "
                "measure the same model at the same sites"
            )
        self.examples.update(other.examples)
        self._sites = other._sites if self._sites is None else self._sites
        for name in self.states:  # in place: moments are large
            self._state(name).merge(other._state(name))

    def state_dict(self) -> dict[str, Any]:
        """``{"sites": [[name, layer], ...], "examples": ..., "tensors": {...}}``, JSON and tensors only.

        ``"examples"`` are the ranges ``[k 2]`` of the indices that the state holds, see ``IndexSet``.
        """
        tensors = {f"{name}/{k}": t for name in self.states for k, t in self._state(name).tensors().items()}
        sites = [list(site) for site in self._sites or []]
        return {"sites": sites, "examples": self.examples.tensor(), "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state by what ``state_dict`` gave."""
        if unknown := {k.split("/")[0] for k in state["tensors"]} - set(self.states):
            raise InputError(
                f"{type(self).__name__} has no state {sorted(unknown)[0]!r} (it has {', '.join(self.states)})"
            )
        examples = IndexSet.from_tensor(state["examples"])
        self.reset()
        self._examples = examples
        self._sites = [Site(name, layer) for name, layer in state["sites"]] or None
        for name in self.states:
            prefix = f"{name}/"
            self._state(name).load(
                {k.removeprefix(prefix): t for k, t in state["tensors"].items() if k.startswith(prefix)}
            )

    def save_state(self, path: str | Path) -> None:
        """Write the state as safetensors, atomically, to be merged or computed elsewhere."""
        state = self.state_dict()
        header = {"format": _FORMAT, "probe": repr(self), "sites": json.dumps(state["sites"])}
        write_safetensors(path, {"examples": state["examples"], **state["tensors"]}, header)

    def load_state(self, path: str | Path) -> None:
        """Read what ``save_state`` wrote.

        Raises:
            InputError: for a damaged file, or the state of another probe or other parameters.
        """
        tensors, header = read_safetensors(path)
        if header.get("format") not in (_FORMAT, _BEFORE):
            raise InputError(f"{str(path)!r} is not a probe's state; expected a file from save_state")
        if header["probe"] != repr(self):
            raise InputError(f"{str(path)!r} holds the state of {header['probe']}; build that probe to load it")
        examples, sites = tensors.pop("examples"), json.loads(header["sites"])
        if header["format"] == _BEFORE:
            sites = [[name, renumbered(name, layer)] for name, layer in sites]
        self.load_state_dict({"sites": sites, "examples": examples, "tensors": tensors})

    def all_reduce(self) -> None:
        """Give every process of the default ``torch.distributed`` group the merged state of all.

        Raises:
            InputError: where two processes hold the same example, as after a second ``all_reduce``. Nothing changes
                then.
        """
        from probes.engine.distributed import gather

        merged = self.clone()
        for state in gather(self.state_dict()):
            part = self.clone()
            part.load_state_dict(state)
            merged.merge(part)
        self.__dict__.update({name: merged.__dict__[name] for name in _HELD if name in merged.__dict__})

    # ---- results ----

    def parameters(self) -> dict[str, Any]:
        """The constructor's arguments and their values."""
        _, *names = inspect.signature(type(self).__init__).parameters  # the first is the probe, whatever its name
        if lost := [name for name in names if not hasattr(self, name)]:
            raise InputError(
                f"{type(self).__name__} does not keep its argument {lost[0]!r}; keep every argument of __init__ under "
                f"its own name (self.{lost[0]} = {lost[0]})"
            )
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={parameter_text(v)}' for k, v in self.parameters().items())})"

    def result(
        self,
        values: Mapping[str, Tensor],
        axes: Mapping[str, tuple[str, ...]],
        coords: Mapping[str, Sequence[str]] | None = None,
        *,
        layers: Mapping[str, int] | None = None,
        metadata: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> ProbeResult:
        """A ``ProbeResult`` with sites, layers, parameters and versions filled in.

        Args:
            values: measure to tensor.
            axes: measure to the names of its axes.
            coords: names along axes other than ``"site"``, or other names along it.
            layers: layer numbers of those other names.
            metadata: what else the numbers depend on.
            notes: why a value is NaN, and what else a reader must know.
        """
        names = {k: list(v) for k, v in (coords or {}).items()}
        return ProbeResult(
            probe=type(self).__name__,
            values=values,
            axes=axes,
            coords=names if "site" in names else {"site": self.site_names, **names},
            layers={site.name: site.layer for site in self.sites} if layers is None else layers,
            metadata={
                "parameters": {name: as_json(value) for name, value in self.parameters().items()},
                "versions": versions(),
                **(metadata or {}),
            },
            notes=list(notes),
        )


def computed_of(probe: Probe, n: int) -> ProbeResult:
    """The probe's result, of ``n`` examples.

    Raises:
        InputError: where a device has too little memory for it, and where it returns something else.
    """
    try:
        found = probe.compute()
        if not isinstance(found, ProbeResult):
            raise InputError(
                f"compute of {type(probe).__name__} returned a {type(found).__name__}; return self.result(values, axes)"
            )
        return found
    except torch.OutOfMemoryError:
        most: int | None = getattr(probe, "max_rows", None)
        fewer = "set max_rows lower" if hasattr(probe, "max_rows") else "give fewer examples"
        if getattr(probe, "device", None) is not None:
            way = f"{fewer}, or leave device unset"
        else:
            way = f"{fewer}, or give device='cpu'" if hasattr(probe, "device") else fewer
        raise InputError(
            f"device memory is too small for what {type(probe).__name__} computes from "
            f"{n if most is None else min(n, most)} examples; {way}"
        ) from None


def check_no_class(probe: object) -> None:
    """Refuse a probe class in place of a probe.

    Raises:
        InputError: saying how to make one.
    """
    if isinstance(probe, type) and issubclass(probe, Probe):
        name = probe.__name__
        raise InputError(f"{name} is a probe class; expected a probe: write {name}(), with its settings")


def each_probe(probes: Probe | Sequence[Probe], *, least: int = 0) -> list[Probe]:
    """One probe or several, as a list.

    Args:
        probes: one or several.
        least: how many there must be.

    Raises:
        InputError: for too few, a class in place of a probe, anything else that is not one, and a probe that does not
            keep its arguments.
    """
    one = isinstance(probes, (Probe, type, str)) or not isinstance(probes, Iterable)
    several: list[Any] = [probes] if one else list(probes)  # type: ignore[arg-type]
    if len(several) < least:
        raise InputError("no probes given; give one or several, such as CKA()")
    for probe in several:
        check_no_class(probe)
        if not isinstance(probe, Probe):
            raise InputError(f"{repr(probe)[:60]} is not a probe; expected one or several, such as CKA()")
        probe.parameters()  # which it must keep
    return several


def as_json(value: object) -> Any:
    """A parameter as JSON has it: numbers, texts, lists and tables of them as they are, all else as ``parameter_text``.

    Example:
        >>> as_json(2.0), as_json(("task", None)), as_json(residual(1))
        (2.0, ['task', None], 'residual(layers=[1])')
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping) and all(type(name) is str for name in value):
        return {name: as_json(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return [as_json(part) for part in value]  # type: ignore[attr-defined]
    return parameter_text(value)


def parameter_text(value: object) -> str:
    """``repr``; of an array the code that builds it, or, where that is long, its type, shape and digest."""
    if not isinstance(value, (Tensor, np.ndarray)):
        return repr(value)
    array = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
    if array.size <= _SHOWN and isinstance(value, Tensor):
        return f"torch.tensor({array.tolist()}, dtype={value.dtype})"
    return f"<{array.dtype} {list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:12]}>"
