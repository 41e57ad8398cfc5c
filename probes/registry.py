"""Probes by name: those of this package, and those that other packages register by an entry point."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version

from probes.probe import Probe
from tasks import InputError
from tasks.errors import first_line

GROUP = "mechclust.probes"
_OWN = (
    "CKA",
    "ClusteringHead",
    "NDims",
    "NeighbourPurity",
    "NormJacobian",
    "Projection",
    "RBFCKA",
    "SVCCA",
    "TaskClusterARI",
    "TopicAttention",
    "TopicEmbedding",
)


@dataclass(frozen=True)
class RegisteredProbe:
    """A probe known by name.

    Attributes:
        name: ours are called like their class, others as their entry point says.
        package: the distribution it comes from, with its version.
        make: the class, or another callable that gives a probe; ``None`` where it is broken.
        error: why it is broken; empty where it is not.
    """

    name: str
    package: str
    make: Callable[..., Probe] | None
    error: str = ""

    def new(self) -> Probe:
        """A probe with its default settings.

        Raises:
            InputError: when it is broken (with the reason), cannot be made without arguments, or is no probe.
        """
        if self.make is None:
            raise InputError(f"probe {self.name!r} of {self.package} is broken: {self.error}")
        if self.needs:
            raise InputError(
                f"probe {self.name!r} needs {', '.join(self.needs)}, so its name alone does not make one; "
                "use it in a script, or register a function that gives one ready to run"
            )
        try:
            probe = self.make()
        except Exception as error:  # of somebody else's code
            raise InputError(f"probe {self.name!r} of {self.package} cannot be made: {first_line(error)}") from error
        if not isinstance(probe, Probe):
            raise InputError(f"{self.name!r} of {self.package} gives a {type(probe).__name__}; expected a probes.Probe")
        return probe

    @property
    def needs(self) -> list[str]:
        """Arguments without a default, with which it cannot be made by its name alone."""
        if self.make is None:
            return []
        parameters = inspect.signature(self.make).parameters.values()
        return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]

    @property
    def summary(self) -> str:
        """First sentence of its docstring."""
        return (getattr(self.make, "__doc__", None) or "").strip().split("\n\n")[0].replace("\n", " ")


def list_probes() -> list[RegisteredProbe]:
    """Every probe known by name: ours, then those of entry points in the group ``mechclust.probes``.

    One that fails to import is listed with the reason and does not touch the others.

    Example:
        >>> [probe.name for probe in list_probes()][:3]
        ['CKA', 'ClusteringHead', 'NDims']
    """
    found = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    names = [*_OWN, *(point.name for point in found)]
    return [*map(_own, _OWN), *(_loaded(point, names.count(point.name) > 1) for point in found)]


def find_probe(name: str) -> RegisteredProbe:
    """The probe of that name, broken or not.

    Raises:
        InputError: for a name that is not there, with the nearest one.
    """
    if name in _OWN:  # without importing anybody else's
        return _own(name)
    known = {probe.name: probe for probe in list_probes()}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"no probe {name!r} (there are {', '.join(sorted(known))}){hint}")
    return known[name]


def get_probe(name: str) -> Probe:
    """A new probe of that name, with its default settings.

    Raises:
        InputError: for a name that is not there (with the nearest one), a broken probe (with the reason), or one
            that cannot be made without arguments.

    Example:
        >>> get_probe("NDims")
        NDims(at=residual(), readout=last_token(), label=None, variance=0.99, max_memory=8.0)
    """
    return find_probe(name).new()


def _own(name: str) -> RegisteredProbe:
    import probes

    return RegisteredProbe(name, f"mechclust {version('mechclust')}", getattr(probes, name))


def _loaded(point: EntryPoint, twice: bool) -> RegisteredProbe:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
    if twice:
        return RegisteredProbe(point.name, package, None, f"another probe is called {point.name!r}; rename one")
    if not point.name.strip(". "):
        return RegisteredProbe(point.name, package, None, "its name is made of dots; give it one of letters")
    try:
        made = point.load()
        if callable(made):
            inspect.signature(made)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever somebody else's module does on import, also sys.exit
        why = f"{point.value}: {first_line(error)}"
        return RegisteredProbe(point.name, package, None, why)
    if inspect.isabstract(made):
        why = f"{point.value} lacks {' and '.join(sorted(made.__abstractmethods__))}; write what Probe leaves open"
        return RegisteredProbe(point.name, package, None, why)
    if not callable(made) or (isinstance(made, type) and not issubclass(made, Probe)):
        what = f"class {made.__name__}" if isinstance(made, type) else repr(made)
        return RegisteredProbe(
            point.name, package, None, f"{point.value} is {what}; expected a subclass of probes.Probe, or a function"
        )
    return RegisteredProbe(point.name, package, made)
