"""Probes by name: those of this package, and those that other packages register by an entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any

from probes.engine.probe import Probe
from tasks import InputError
from tasks.errors import first_line, suggest

PROBE_ENTRY_POINTS = "mechclust.probes"


@dataclass(frozen=True)
class RegisteredProbe:
    """A probe known by name.

    Attributes:
        name: the class's name for ours, the entry point's name for others.
        package: the distribution it comes from, with its version.
        make: the class, or another callable that returns a probe; ``None`` if it is broken.
        error: why it is broken; empty where it is not.
    """

    name: str
    package: str
    make: Callable[..., Probe] | None
    error: str = ""

    def new(self) -> Probe:
        """A probe with its default settings.

        Raises:
            InputError: when it is broken (with the reason), cannot be made without arguments, or is not a probe.
        """
        if self.make is None:
            raise InputError(f"probe {self.name!r} of {self.package} is broken: {self.error}")
        if self.needs:
            raise InputError(
                f"probe {self.name!r} needs {', '.join(self.needs)}, so its name alone is not enough; "
                "use it in a script, or register a function that returns one ready to run"
            )
        try:
            probe = self.make()
        except Exception as error:  # of somebody else's code
            raise InputError(f"probe {self.name!r} of {self.package} cannot be made: {first_line(error)}") from error
        if not isinstance(probe, Probe):
            raise InputError(f"{self.name!r} of {self.package} returns a {type(probe).__name__}; expected a Probe")
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
        ['AttentionEntropy', 'CKA', 'ClusteringHead']
    """
    found = sorted(entry_points(group=PROBE_ENTRY_POINTS), key=lambda point: point.name)
    own = _own()
    names = [*own, *(point.name for point in found)]
    return [*own.values(), *(_loaded(point, names.count(point.name) > 1) for point in found)]


def find_probe(name: str) -> RegisteredProbe:
    """The probe with that name, broken or not.

    Raises:
        InputError: for an unknown name, with the nearest one.
    """
    if found := _own().get(name):  # without importing anybody else's
        return found
    known = {probe.name: probe for probe in list_probes()}
    if name not in known:
        raise InputError(f"no probe {name!r}{suggest(name, sorted(known))}")
    return known[name]


def get_probe(name: str) -> Probe:
    """A new probe with that name, with its default settings.

    Raises:
        InputError: for an unknown name (with the nearest one), a broken probe (with the reason), or one
            that cannot be made without arguments.

    Example:
        >>> get_probe("NDims")  # doctest: +ELLIPSIS
        NDims(at=residual(), readout=last_token(), label=None, variance=0.99, ...)
    """
    return find_probe(name).new()


def _own(base: type[Probe] = Probe) -> dict[str, RegisteredProbe]:
    """The probes of this package, whose files carry their names (``RBFCKA`` in ``rbf_cka``); its door imports them."""
    found: dict[str, RegisteredProbe] = {}
    for probe in base.__subclasses__():
        found |= _own(probe)
        package, _, file = probe.__module__.partition(".")
        named_so = package == "probes" and file.replace("_", "") == probe.__name__.lower()
        if named_so and not inspect.isabstract(probe):
            found[probe.__name__] = RegisteredProbe(probe.__name__, f"mechclust {version('mechclust')}", probe)
    return dict(sorted(found.items()))


def _loaded(point: EntryPoint, twice: bool) -> RegisteredProbe:
    if twice:
        return RegisteredProbe(
            point.name, package_of(point), None, f"another probe is called {point.name!r}; rename one"
        )
    if not point.name.strip(". "):
        return RegisteredProbe(point.name, package_of(point), None, "its name is made of dots; give it one of letters")
    return RegisteredProbe(point.name, package_of(point), *load_entry_point(point, _why_no_probe))


def _why_no_probe(made: Any) -> str:
    if inspect.isabstract(made):
        return f"lacks {' and '.join(sorted(made.__abstractmethods__))}; write what Probe leaves open"
    if not callable(made) or (isinstance(made, type) and not issubclass(made, Probe)):
        what = f"class {made.__name__}" if isinstance(made, type) else repr(made)
        return f"is {what}; expected a subclass of probes.Probe, or a function"
    inspect.signature(made)
    return ""


def package_of(point: EntryPoint) -> str:
    """The package that registers an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def load_entry_point(point: EntryPoint, why_not: Callable[[Any], str]) -> tuple[Any, str]:
    """What an entry point stands for, or ``None`` and why it cannot be used.

    Args:
        point: of any package; whatever its module does on import harms nobody else.
        why_not: what is wrong with the object, as the sentence goes on after its name; empty for nothing.
    """
    try:
        found = point.load()
        why = why_not(found)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also sys.exit
        return None, f"{point.value}: {first_line(error)}"
    return (None, f"{point.value} {why}") if why else (found, "")
