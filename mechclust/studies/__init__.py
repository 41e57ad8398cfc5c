"""The published experiments, one room a paper."""

from mechclust.studies.extra_probes import Subject
from mechclust.studies.registry import RegisteredStudy, get_study, list_studies, open_run, registered_studies
from mechclust.studies.study import Study, configure, run_study, write_report

__all__ = [
    "RegisteredStudy",
    "Study",
    "Subject",
    "configure",
    "get_study",
    "list_studies",
    "open_run",
    "registered_studies",
    "run_study",
    "write_report",
]
