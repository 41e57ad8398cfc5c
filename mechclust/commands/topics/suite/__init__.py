"""``mechclust topics --suite``: both published tables for many encoders, with one topic model.

1. ``config`` holds the settings, ``models`` reads the list of encoders, and ``texts`` fits or reads the topics.
2. ``run`` submits a ``job`` for each encoder and each random twin. ``vectors`` measures word vectors.
3. ``measurements`` holds the numbers. ``curves`` arranges them by threshold, with intervals from ``spread``.
4. ``findings`` judges P7 and findings on any encoder, beside the ``published`` tables.
5. ``tables``, ``readings`` and ``caveats`` state the results, ``figures`` draws them, and ``result`` writes the page.
"""

from mechclust.commands.topics.suite.config import SuiteConfig
from mechclust.commands.topics.suite.findings import judge_folder
from mechclust.commands.topics.suite.models import SuiteModel, read_suite
from mechclust.commands.topics.suite.result import SuiteResult
from mechclust.commands.topics.suite.run import run_suite

__all__ = [
    "SuiteConfig",
    "SuiteModel",
    "SuiteResult",
    "judge_folder",
    "read_suite",
    "run_suite",
]
