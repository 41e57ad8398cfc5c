"""The findings of the study, H1 to H8.

Bounds were written before the confirmatory run on fresh seeds. Controls, and the shares of H5, were chosen after it.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from mechclust.evidence import Finding
from mechclust.evidence.finding import Shown
from mechclust.studies.clustering_heads.claims import joined_notes
from mechclust.studies.clustering_heads.config import ClusteringHeadsConfig
from mechclust.studies.clustering_heads.curriculum_findings import curriculum_findings
from mechclust.studies.clustering_heads.dynamics_findings import dynamics_findings
from mechclust.studies.clustering_heads.head_findings import head_findings
from mechclust.studies.clustering_heads.results import HeadsResults
from mechclust.studies.clustering_heads.solved_findings import solved_findings
from mechclust.studies.clustering_heads.spike_findings import spike_findings

_SHOWN: dict[str, Shown] = {
    **dict.fromkeys(("H1e", "H4a", "H6"), "headline"),
    **dict.fromkeys(("H1", "H2", "H5", "H5b", "H7"), "page"),
}
# Judged on the networks that were solved, spiked or fell, of which there may be one although there are many seeds.
_OF_SOME_NETWORKS = ("H1a", "H1b", "H1e", "H2", "H3", "H3c", "H4a", "H4f", "H6", "H7", "H7b")


def findings_of(config: ClusteringHeadsConfig, results: HeadsResults) -> list[Finding]:
    """Return every finding in the order of ids."""
    findings = [
        *solved_findings(config, results),
        *dynamics_findings(config, results),
        *spike_findings(config, results),
        *curriculum_findings(config, results),
        *head_findings(results),
    ]
    return sorted(map(_described, findings), key=attrgetter("id"))


def _described(finding: Finding) -> Finding:
    """Return a finding with its unit, and the place where it is shown.

    A control for which the run holds no values is left out, and the note says so.
    """
    control = finding.control
    measured = control is not None and control.parts and all(part.values for part in control.parts)
    return replace(
        finding,
        control=control if measured else None,
        note=finding.note if measured else joined_notes(finding.note, "its control was not measured"),
        shown=_SHOWN.get(finding.id, "table"),
        unit="networks" if finding.id in _OF_SOME_NETWORKS else finding.unit,
    )
