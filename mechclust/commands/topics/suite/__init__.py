"""``mechclust topics --suite``: both published tables for many encoders, with one topic model."""

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
