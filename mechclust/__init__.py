"""mechclust: where inside a transformer does structure live, and when in training does it appear?

Models, training, and what practitioners ask of their own models. The published experiments are in
``mechclust.studies``, attention views in ``mechclust.attention``, probes in ``probes``, labelled data in ``tasks``.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from mechclust import aliases  # noqa: F401 - first: it refuses files that stand in the way of ours

# isort: split
from mechclust.lazy import lazily

if TYPE_CHECKING:
    from mechclust.commands.check import Check, CheckReport, check_model
    from mechclust.commands.clusters import ClustersConfig, ClustersResult, measure_clusters, write_clusters_report
    from mechclust.commands.compare import CompareConfig, CompareResult, compare_models, write_compare_report
    from mechclust.commands.history import HistoryConfig, HistoryResult, measure_history, write_history_report
    from mechclust.commands.mossa import MossaConfig, MossaResult, run_mossa, write_mossa_report
    from mechclust.commands.topics import TopicsConfig, TopicsResult, measure_topics, write_topics_report
    from mechclust.jobs import Ray, map_jobs, run_sharded, save_rows_sharded
    from mechclust.models import ModelConfig, build_model, load_model, load_pretrained, model_for, save_model
    from mechclust.training import TrainConfig, train
    from probes.engine.result import load_result

__all__ = [
    "Check",
    "CheckReport",
    "ClustersConfig",
    "ClustersResult",
    "CompareConfig",
    "CompareResult",
    "HistoryConfig",
    "HistoryResult",
    "ModelConfig",
    "MossaConfig",
    "MossaResult",
    "Ray",
    "TopicsConfig",
    "TopicsResult",
    "TrainConfig",
    "build_model",
    "check_model",
    "compare_models",
    "load_model",
    "load_pretrained",
    "load_result",
    "map_jobs",
    "measure_clusters",
    "measure_history",
    "measure_topics",
    "model_for",
    "run_mossa",
    "run_sharded",
    "save_model",
    "save_rows_sharded",
    "train",
    "write_clusters_report",
    "write_compare_report",
    "write_history_report",
    "write_mossa_report",
    "write_topics_report",
]

__version__ = version("mechclust")

__getattr__ = lazily(__name__, __file__, modules=("probes", "tasks"))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
