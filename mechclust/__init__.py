"""mechclust: where inside a transformer does structure live, and when in training does it appear?

Models, training, and the commands that measure your model. The published experiments are in ``mechclust.studies``,
probes in ``probes``, labelled data in ``tasks``.
"""

import runpy
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from mechclust.lazy import lazily

# Refuse files that shadow our packages. By its path, since the name ``probes`` may lead to such a file.
runpy.run_path(str(Path(__file__).parents[1] / "probes" / "shadowing.py"))

if TYPE_CHECKING:
    from mechclust.attention import AttentionView, attention_view, attention_view_from_patterns
    from mechclust.commands.check import Check, CheckReport, check_model
    from mechclust.commands.clusters import ClustersConfig, ClustersResult, measure_clusters
    from mechclust.commands.compare import CompareConfig, CompareResult, compare_models
    from mechclust.commands.heads import HeadsConfig, HeadsResult, measure_heads
    from mechclust.commands.history import HistoryConfig, HistoryResult, measure_history
    from mechclust.commands.mossa import MossaConfig, MossaResult, run_mossa
    from mechclust.commands.topics import TopicsConfig, TopicsModel, TopicsResult, measure_topics
    from mechclust.evidence import Bound, Control, Finding, load_findings, mean_part
    from mechclust.jobs import Ray, map_jobs, run_sharded, save_rows_sharded
    from mechclust.models import (
        ModelConfig,
        build_model,
        load_model,
        load_pretrained,
        model_for,
        save_model,
        set_adapter,
    )
    from mechclust.report import Analysis, Panel
    from mechclust.sandbox import SandboxRecorder, record_sandbox, sandbox_figure, sandbox_film, sandbox_page
    from mechclust.studies import Study, get_study, run_study
    from mechclust.training import (
        Member,
        ProbeCallback,
        ProbeHook,
        TrainConfig,
        WeightNorms,
        accuracy,
        train,
        train_ensemble,
    )
    from probes.engine.result import load_result

__all__ = [
    "Analysis",
    "AttentionView",
    "Bound",
    "Check",
    "CheckReport",
    "ClustersConfig",
    "ClustersResult",
    "CompareConfig",
    "CompareResult",
    "Control",
    "Finding",
    "HeadsConfig",
    "HeadsResult",
    "HistoryConfig",
    "HistoryResult",
    "Member",
    "ModelConfig",
    "MossaConfig",
    "MossaResult",
    "Panel",
    "ProbeCallback",
    "ProbeHook",
    "Ray",
    "SandboxRecorder",
    "Study",
    "TopicsConfig",
    "TopicsModel",
    "TopicsResult",
    "TrainConfig",
    "WeightNorms",
    "accuracy",
    "attention_view",
    "attention_view_from_patterns",
    "build_model",
    "check_model",
    "compare_models",
    "get_study",
    "load_findings",
    "load_model",
    "load_pretrained",
    "load_result",
    "map_jobs",
    "mean_part",
    "measure_clusters",
    "measure_heads",
    "measure_history",
    "measure_topics",
    "model_for",
    "record_sandbox",
    "run_mossa",
    "run_sharded",
    "run_study",
    "sandbox_figure",
    "sandbox_film",
    "sandbox_page",
    "save_model",
    "save_rows_sharded",
    "set_adapter",
    "train",
    "train_ensemble",
]

__version__ = version("mechclust")

__getattr__ = lazily(__name__, __file__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
