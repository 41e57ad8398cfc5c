"""``mechclust list``: studies and probes."""

from __future__ import annotations

from mechclust.cli_commands.printing import print_visible
from mechclust.studies import registered_studies
from probes import list_probes


def command() -> None:
    """Run ``mechclust list``."""
    print_visible("Studies: mechclust run STUDY")
    for registered in registered_studies():
        study = registered.study
        about = study.title if study else f"broken: {registered.error}"
        print_visible(f"  {registered.name}{_origin(registered.package)}: {about}")
        if study:
            print_visible(f"    {study.source}\n    presets: {', '.join(study.presets)}")
    print_visible(
        "\nProbes: probes.get_probe(NAME), mechclust run STUDY --probes NAME, mechclust history --probes NAME"
    )
    for probe in list_probes():
        needs = f"; needs {', '.join(probe.needs)}" if probe.needs else ""
        about = f"broken: {probe.error}" if probe.make is None else probe.summary
        print_visible(f"  {probe.name}{_origin(probe.package)}{needs}{about and f': {about}'}")


def _origin(package: str) -> str:
    return "" if package.startswith("mechclust ") else f" ({package})"
