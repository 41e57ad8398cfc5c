"""Public names by their first import path, and where a name is found in the new code if it moved."""

from __future__ import annotations

from importlib import import_module
from typing import Any

PACKAGES = ("probes", "probes.functional", "probes.testing", "tasks", "tasks.text.instructions", "mechclust")
"""Every name in the ``__all__`` of these is public, and can be read from a ``Library``."""

MODULES = (
    *PACKAGES,
    "mechclust.attention",
    "mechclust.commands.mossa",
    "mechclust.commands.topics.suite",
    "mechclust.evidence",
    "mechclust.jobs",
    "mechclust.models",
    "mechclust.report",
    "mechclust.sandbox",
    "mechclust.studies",
    "mechclust.training",
    "mechclust.training.tuning",
)
"""Modules whose public names have their signatures compared."""

MOVED: dict[str, str] = {
    "mechclust.models.Answered": "mechclust.models.FormattedExample",
    "probes.testing.check_probe": "probes.extend.check_probe",
    "mechclust.training.tuning.AnswerScores": "mechclust.training.tuning.ExampleScores",
    "mechclust.training.tuning.answer_scores": "mechclust.training.tuning.score_answers",
    "mechclust.training.tuning.tuned_at": "mechclust.training.tuning.tuned_adapter_at",
    "mechclust.training.KeepsFiles": "mechclust.training.FileCallback",
    "mechclust.training.load_steps": "mechclust.training.load_results_by_step",
    "mechclust.jobs.each_result": "mechclust.jobs.imap_jobs",
    "tasks.text.instructions.split_of": "tasks.text.instructions.split_of_instruction",
    "mechclust.models.read_metadata": "mechclust.models.read_saved_model_metadata",
    "mechclust.jobs.close_bars": "mechclust.jobs.close_progress_bars",
    "mechclust.evidence.Within": "mechclust.evidence.TwoSidedBound",
    "mechclust.evidence.EarlierRun": "mechclust.evidence.EarlierVerdict",
    "mechclust.report.render_report": "mechclust.report.render_report_page",
    "mechclust.report.write_report": "mechclust.report.write_report_page",
    "mechclust.report.LayerGroups": "mechclust.mossa.LayerGroups",
    "mechclust.report.LayerGroupsInterval": "mechclust.mossa.LayerGroupsInterval",
    "mechclust.report.TaskCurves": "mechclust.mossa.TaskCurves",
    "mechclust.report.bootstrap": "mechclust.mossa.task_bootstrap_interval",
    "mechclust.report.crossover": "mechclust.mossa.crossover",
    "mechclust.report.layer_groups": "mechclust.mossa.layer_groups",
    "mechclust.report.layer_groups_interval": "mechclust.mossa.layer_groups_interval",
}
"""For the new side: the old path of a name, and its new one. For example "mechclust.models.set_adapter": "probes.x"."""

UNUSED: dict[str, str] = {}
"""Public names that no call reads, with the reason."""


class Library:
    """Read a public name as an attribute, and remember that it was used.

    A package is chosen by an underscore in place of a dot: ``library.probes.CKA`` or
    ``library.package("mechclust.models").set_adapter``.
    """

    def __init__(self, side: str) -> None:
        self.side = side
        self.used: set[str] = set()

    def package(self, name: str) -> _Package:
        """Return the names of a package."""
        return _Package(self, name)

    @property
    def probes(self) -> _Package:
        """Return the names of ``probes``."""
        return self.package("probes")

    @property
    def functional(self) -> _Package:
        """Return the names of ``probes.functional``."""
        return self.package("probes.functional")

    @property
    def tasks(self) -> _Package:
        """Return the names of ``tasks``."""
        return self.package("tasks")

    @property
    def mechclust(self) -> _Package:
        """Return the names of ``mechclust``."""
        return self.package("mechclust")


class _Package:
    def __init__(self, library: Library, name: str) -> None:
        self._library = library
        self._name = name

    def __getattr__(self, name: str) -> Any:
        path = f"{self._name}.{name}"
        self._library.used.add(path)
        if self._library.side == "new":
            path = MOVED.get(path, path)
        module, _, attribute = path.rpartition(".")
        return getattr(import_module(module), attribute)


def public_names(module: str) -> list[str]:
    """Return the names in a module's ``__all__``, none if there is no such module."""
    try:
        return sorted(import_module(module).__all__)
    except (ImportError, AttributeError):
        return []
