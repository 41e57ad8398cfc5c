"""The published experiments, one package per paper."""

from mechclust.studies.extra_probes import TrainedModel
from mechclust.studies.record import judge_again, record_run
from mechclust.studies.registry import RegisteredStudy, get_study, list_studies, open_run, registered_studies
from mechclust.studies.study import Study, report_run, run_study
from tasks.settings import configure

__all__ = [
    "RegisteredStudy",
    "Study",
    "TrainedModel",
    "configure",
    "get_study",
    "judge_again",
    "list_studies",
    "open_run",
    "record_run",
    "registered_studies",
    "report_run",
    "run_study",
]
