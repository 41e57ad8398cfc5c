"""The published experiments, one file a paper."""

from mechclust.studies import clustering_heads, mossa, task_clusters, topic_structure
from mechclust.studies.claims import Bound, Claim, Claims, claim, load_claims
from mechclust.studies.further import Subject
from mechclust.studies.study import Analysis, Panel, Study, configure, open_run, run_study, suggest, write_report
from tasks import InputError

_STUDIES = {
    study.name: study for study in (task_clusters.STUDY, topic_structure.STUDY, clustering_heads.STUDY, mossa.STUDY)
}


def list_studies() -> list[Study]:
    """The studies there are."""
    return list(_STUDIES.values())


def get_study(name: str) -> Study:
    """The study called ``name``.

    Raises:
        InputError: listing the studies there are.
    """
    if name not in _STUDIES:
        raise InputError(f"no study {name!r}{suggest(name, _STUDIES)}")
    return _STUDIES[name]


__all__ = [
    "Analysis",
    "Bound",
    "Claim",
    "Claims",
    "Panel",
    "Study",
    "Subject",
    "claim",
    "configure",
    "get_study",
    "list_studies",
    "load_claims",
    "open_run",
    "run_study",
    "write_report",
]
