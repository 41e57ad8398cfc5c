"""The base class of probes."""

from __future__ import annotations

import copy
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from probes.engine.hooked_model import HookPoints, Models
from probes.engine.parameters import parameter_json, parameter_text
from probes.engine.readout import Readout, last_token
from probes.engine.result import ProbeResult
from probes.engine.sites import Site, Sites, residual, resolve
from probes.engine.state import AnyTensor, DeclaredState, KeyedState
from probes.store.index_set import IndexSet
from probes.store.safetensors_files import read_safetensors, write_safetensors
from probes.store.versions import package_versions
from tasks import Batch, InputError

_FORMAT = "mechclust-probe-state-3"
STATE_ATTRIBUTES = ("_states", "_examples", "_sites")  # all other attributes are parameters
ProbeT = TypeVar("ProbeT", bound="Probe")


class Probe(ABC):
    """Base class of measurements at sites of a model, one batch at a time.

    A subclass stores its parameters unchanged in ``__init__`` (``at`` and ``readout`` among them) and declares its
    state as class attributes (``Sum()``, ``Rows()``, ``Moments()``). It writes two methods:
    ``update(activations, batch)`` adds a batch to the state, and ``compute()`` turns the state into a ``ProbeResult``.
    The base class provides ``observe``, ``reset``, ``merge``, ``state_dict``, ``load_state_dict``, ``save_state``,
    ``load_state``, ``all_reduce``, ``clone`` and a ``repr`` that rebuilds the probe. A state records the index of each
    example, so none is counted twice, in a batch or in a merge.

    Attributes:
        at: where to measure.
        readout: which positions ``update`` gets.
        states: names of the declared states.
        compares: whether ``run`` may give it several models at once, ``{"tuned": a, "base": b}``. Its sites then
            include all models', named ``"tuned/hook_embed"`` and so on, in ``activations`` too.

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
        names: dict[str, None] = {}  # in the order of declaration, base classes first
        for base in reversed(cls.__mro__):
            names |= dict.fromkeys(vars(base))
        cls.states = tuple(name for name in names if isinstance(getattr(cls, name, None), DeclaredState))

    def __init__(self, at: Sites | None = None, readout: Readout | None = None) -> None:
        self.at = residual() if at is None else at
        self.readout = last_token() if readout is None else readout

    @abstractmethod
    def update(self, activations: Mapping[str, Shaped[Tensor, "batch ..."]], batch: Batch) -> None:
        """Add one batch to the state. Subclasses write this method. To feed a probe by hand, call ``observe``.

        Args:
            activations: site name to the part of the activation that the readout keeps. All are on the batch's device,
                also if the model lies on several.
            batch: the examples.
        """

    @abstractmethod
    def compute(self) -> ProbeResult:
        """Return the result of all batches so far, without a change of the state. Subclasses write this."""

    # ---- sites ----

    def bind(self, model: Models) -> list[Site]:
        """Resolve ``at`` in a model, or in each of several by name, and return the sites.

        ``run`` and ``attach`` call this.

        Raises:
            InputError: if the probe already holds state from other sites.
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
        """Return the sites that ``at`` selects in a model. A subclass may add sites, or refuse some."""
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
        """The sites at which it measures, known once the probe was run or attached."""
        if self._sites is None:
            raise InputError(f"this {type(self).__name__} has not seen a model yet; give it to run() or attach()")
        return self._sites

    @property
    def site_names(self) -> list[str]:
        """Names of the sites, in order."""
        return [site.name for site in self.sites]

    # ---- state ----

    def observe(self, activations: Mapping[str, Shaped[Tensor, "batch ..."]], batch: Batch) -> None:
        """Record the batch's examples, then ``update``. ``run``, ``attach`` and ``run_stores`` call this.

        The examples count as given even if ``update`` fails, because part of them may then be in the state.

        Args:
            activations: as for ``update``.
            batch: the examples.

        Raises:
            InputError: for an example that is given twice, or that the state holds already.
        """
        self.examples.add(batch.index)
        self.update(activations, batch)

    @property
    def examples(self) -> IndexSet:
        """Indices of the examples that the state holds."""
        index_set: IndexSet = self.__dict__.setdefault("_examples", IndexSet())
        return index_set

    def _state(self, name: str) -> KeyedState[Any]:
        return getattr(self, name)  # type: ignore[no-any-return]

    @property
    def _empty(self) -> bool:
        return not any(len(self._state(name)) for name in self.states)

    def reset(self) -> None:
        """Forget every batch, keeping the parameters. Its examples may then be measured again."""
        self.__dict__.pop("_states", None)
        self.__dict__.pop("_examples", None)

    def clone(self: ProbeT) -> ProbeT:
        """Return a new probe with equal parameters and no state."""
        new = copy.copy(self)
        new.__dict__ = {name: value for name, value in self.__dict__.items() if name not in STATE_ATTRIBUTES}
        return new

    def merge(self, other: Probe) -> None:
        """Add the state of another probe, as if this one had also seen its batches.

        Raises:
            InputError: if the probes differ in class, parameters, sites or the size of what they keep, or both hold an
                example. The state is then unchanged.
        """
        if repr(self) != repr(other):
            raise InputError(f"cannot merge {other!r} into {self!r}; merge probes with the same parameters")
        if None not in (self._sites, other._sites) and self._sites != other._sites:
            raise InputError(
                f"cannot merge {type(self).__name__} states from different sites; "
                "measure the same model at the same sites"
            )
        for name in self.states:
            shapes = self._state(name).shapes()
            if any(shapes.get(key, shape) != shape for key, shape in other._state(name).shapes().items()):
                raise InputError(
                    f"cannot merge {type(self).__name__} states of other sizes; measure the same model, and where "
                    "positions are compared, sequences of one length"
                )
        self.examples.update(other.examples)
        self._sites = other._sites if self._sites is None else self._sites
        for name in self.states:  # in place: moments are large
            self._state(name).merge(other._state(name))

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"sites": [[name, layer], ...], "examples": ..., "tensors": {...}}``, JSON and tensors only.

        ``"examples"`` are the ranges ``[range 2]`` of the indices that the state holds, see ``IndexSet``.
        """
        tensors: dict[str, Tensor] = {}
        for name in self.states:
            tensors |= {f"{name}/{key}": tensor for key, tensor in self._state(name).tensors().items()}
        sites = [list(site) for site in self._sites or []]
        return {"sites": sites, "examples": self.examples.tensor(), "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state by one that ``state_dict`` returned.

        Raises:
            InputError: for the state of another kind of probe.
        """
        by_state: dict[str, dict[str, Tensor]] = {name: {} for name in self.states}
        for key, tensor in state["tensors"].items():
            name, _, rest = key.partition("/")
            if name not in by_state:
                raise InputError(f"{type(self).__name__} has no state {name!r} (it has {', '.join(self.states)})")
            by_state[name][rest] = tensor
        examples = IndexSet.from_tensor(state["examples"])
        self.reset()
        self._examples = examples
        self._sites = [Site(name, layer) for name, layer in state["sites"]] or None
        for name, tensors in by_state.items():
            self._state(name).load(tensors)

    def save_state(self, path: str | Path) -> None:
        """Write the state as safetensors, atomically, to be merged or computed elsewhere."""
        state = self.state_dict()
        header = {"format": _FORMAT, "probe": repr(self), "sites": json.dumps(state["sites"])}
        write_safetensors(path, {"examples": state["examples"], **state["tensors"]}, header)

    def load_state(self, path: str | Path) -> None:
        """Replace the state by the one in a file from ``save_state``.

        Raises:
            InputError: for a damaged file, or the state of another probe or other parameters.
        """
        tensors, header = read_safetensors(path)
        if header.get("format") != _FORMAT:
            raise InputError(f"{str(path)!r} is not a probe's state; expected a file from save_state")
        if header["probe"] != repr(self):
            raise InputError(f"{str(path)!r} holds the state of {header['probe']}; build that probe to load it")
        examples = tensors.pop("examples")
        sites = json.loads(header["sites"])
        self.load_state_dict({"sites": sites, "examples": examples, "tensors": tensors})

    def all_reduce(self) -> None:
        """Give every process of the default ``torch.distributed`` group the merged state of all.

        Raises:
            InputError: if there is no process group. Also if two processes hold one example, as after a second
                ``all_reduce``. States are then unchanged.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise InputError(
                "all_reduce needs torch.distributed; start with torchrun and call "
                "torch.distributed.init_process_group()"
            )
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, self.state_dict())
        merged = self.clone()
        for state in states:
            part = self.clone()
            part.load_state_dict(state)
            merged.merge(part)
        self.__dict__.update({name: merged.__dict__[name] for name in STATE_ATTRIBUTES if name in merged.__dict__})

    # ---- results ----

    def parameters(self) -> dict[str, Any]:
        """Return the constructor's arguments and their values.

        Raises:
            InputError: for an argument that ``__init__`` did not store under its name.
        """
        _, *names = inspect.signature(type(self).__init__).parameters  # the first is the probe, whatever its name
        for name in names:
            if not hasattr(self, name):
                raise InputError(
                    f"{type(self).__name__} does not keep its argument {name!r}; keep every argument of __init__ under "
                    f"its own name (self.{name} = {name})"
                )
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        arguments = [f"{name}={parameter_text(value)}" for name, value in self.parameters().items()]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def result(
        self,
        values: Mapping[str, AnyTensor],
        axes: Mapping[str, tuple[str, ...]],
        coords: Mapping[str, Sequence[str]] | None = None,
        *,
        layers: Mapping[str, int] | None = None,
        metadata: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> ProbeResult:
        """Return a ``ProbeResult`` with sites, layers, parameters and versions filled in. For use in ``compute``.

        Args:
            values: measure to tensor.
            axes: measure to the names of its axes.
            coords: names along axes other than ``"site"``, or other names along it.
            layers: layer numbers of those other names.
            metadata: further conditions of the numbers.
            notes: why a value is NaN, and other caveats.
        """
        names = {axis: list(along) for axis, along in (coords or {}).items()}
        if "site" not in names:
            names = {"site": self.site_names, **names}
        return ProbeResult(
            probe=type(self).__name__,
            values=values,
            axes=axes,
            coords=names,
            layers={site.name: site.layer for site in self.sites} if layers is None else layers,
            metadata={
                "parameters": {name: parameter_json(value) for name, value in self.parameters().items()},
                "versions": package_versions(),
                **(metadata or {}),
            },
            notes=list(notes),
        )


def check_no_probe_class(probe: object) -> None:
    """Refuse a probe class in place of a probe.

    Raises:
        InputError: for a class, with the way to make a probe.
    """
    if isinstance(probe, type) and issubclass(probe, Probe):
        name = probe.__name__
        raise InputError(f"{name} is a probe class; expected a probe: write {name}(), with its settings")
