"""Probes by name: this package's, and others that packages register by an entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from operator import attrgetter
from typing import Any

from probes.engine.probe import Probe
from tasks import InputError
from tasks.errors import error_line, error_suggestion

_PROBE_ENTRY_POINTS = "mechclust.probes"


@dataclass(frozen=True)
class RegisteredProbe:
    """A probe known by name.

    Attributes:
        name: the class's name for this package's probes, the entry point's name for others.
        package: the distribution it comes from, with its version.
        make: the class, or another callable that returns a probe. ``None`` if it is broken.
        error: why it is broken, or empty.

    Example:
        >>> from probes import find_probe
        >>> find_probe("AttentionEntropy").needs
        []
    """

    name: str
    package: str
    make: Callable[..., Probe] | None
    error: str = ""

    def new(self) -> Probe:
        """Return a probe with its default settings.

        Raises:
            InputError: for a broken probe (with the reason), one that needs arguments, or something else than a probe.
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
        except Exception as error:  # other packages' code may raise any error
            raise InputError(f"probe {self.name!r} of {self.package} cannot be made: {error_line(error)}") from error
        if not isinstance(probe, Probe):
            raise InputError(f"{self.name!r} of {self.package} returns a {type(probe).__name__}; expected a Probe")
        return probe

    @property
    def needs(self) -> list[str]:
        """Names of arguments without a default. A probe that has some cannot be created by name alone."""
        if self.make is None:
            return []
        names = []
        for parameter in inspect.signature(self.make).parameters.values():
            is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if parameter.default is parameter.empty and not is_variadic:
                names.append(parameter.name)
        return names

    @property
    def summary(self) -> str:
        """First paragraph of its docstring."""
        return (getattr(self.make, "__doc__", None) or "").strip().split("\n\n")[0].replace("\n", " ")


def list_probes() -> list[RegisteredProbe]:
    """Return every probe known by name: first this package's, then entry points of the group ``mechclust.probes``.

    A probe that fails to import is listed with the reason, and does not affect the others.

    Example:
        >>> [probe.name for probe in list_probes()][:3]
        ['AttentionEntropy', 'CKA', 'ClusteringHead']
    """
    ours = _our_probes()
    points = sorted(entry_points(group=_PROBE_ENTRY_POINTS), key=attrgetter("name"))
    names = [*ours, *(point.name for point in points)]
    others = [_registered(point, is_unique=names.count(point.name) == 1) for point in points]
    return [*ours.values(), *others]


def find_probe(name: str) -> RegisteredProbe:
    """Return the probe with that name, broken or not.

    Raises:
        InputError: for an unknown name, with the nearest one.

    Example:
        >>> find_probe("CKA").name
        'CKA'
    """
    ours = _our_probes()
    if name in ours:  # no import of other packages
        return ours[name]
    known = {probe.name: probe for probe in list_probes()}
    if name not in known:
        raise InputError(f"no probe {name!r}{error_suggestion(name, sorted(known))}")
    return known[name]


def get_probe(name: str) -> Probe:
    """Return a new probe with that name, with its default settings.

    Raises:
        InputError: for an unknown name (with the nearest one), a broken probe (with the reason), or one that cannot be
            created without arguments.

    Example:
        >>> get_probe("NDims")  # doctest: +ELLIPSIS
        NDims(at=residual(), readout=last_token(), label=None, variance=0.99, ...)
    """
    return find_probe(name).new()


def _our_probes(base: type[Probe] = Probe) -> dict[str, RegisteredProbe]:
    """Return the subclasses of ``base`` in this package whose file has their name, as ``RBFCKA`` in ``rbf_cka``."""
    probes: dict[str, RegisteredProbe] = {}
    for probe in base.__subclasses__():
        probes |= _our_probes(probe)
        package, _, file = probe.__module__.partition(".")
        is_ours = package == "probes" and file.replace("_", "") == probe.__name__.lower()
        if is_ours and not inspect.isabstract(probe):
            probes[probe.__name__] = RegisteredProbe(probe.__name__, f"mechclust {version('mechclust')}", probe)
    return dict(sorted(probes.items()))


def _registered(point: EntryPoint, *, is_unique: bool) -> RegisteredProbe:
    """Load the probe of an entry point."""
    make: Callable[..., Probe] | None = None
    if not is_unique:
        error = f"another probe is called {point.name!r}; rename one"
    elif not point.name.strip(". "):
        error = "its name is made of dots; give it one of letters"
    else:
        make, error = load_entry_point(point, _why_no_probe)
    return RegisteredProbe(point.name, entry_point_package(point), make, error)


def _why_no_probe(make: Any) -> str:
    """Return why an object does not make a probe, or an empty text if it does."""
    if inspect.isabstract(make):
        return f"lacks {' and '.join(sorted(make.__abstractmethods__))}; write what Probe leaves open"
    if not callable(make) or (isinstance(make, type) and not issubclass(make, Probe)):
        what = f"class {make.__name__}" if isinstance(make, type) else repr(make)
        return f"is {what}; expected a subclass of probes.Probe, or a function"
    inspect.signature(make)
    return ""


def entry_point_package(point: EntryPoint) -> str:
    """Return the package that registers an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def load_entry_point(point: EntryPoint, why_not: Callable[[Any], str]) -> tuple[Any, str]:
    """Return an entry point's object and an empty text, or ``None`` and the reason it cannot be used.

    Args:
        point: entry point of any package. Whatever its module raises on import is reported, not raised.
        why_not: returns why the object cannot be used, to follow its name in a sentence, or an empty text.
    """
    try:
        loaded = point.load()
        reason = why_not(loaded)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also sys.exit
        return None, f"{point.value}: {error_line(error)}"
    return (None, f"{point.value} {reason}") if reason else (loaded, "")
