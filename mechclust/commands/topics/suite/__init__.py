"""``mechclust topics --suite``: both published tables for many encoders, with one topic model."""

from mechclust.commands.topics.suite.claims import judge_folder as judge_folder
from mechclust.commands.topics.suite.config import SuiteConfig as SuiteConfig
from mechclust.commands.topics.suite.models import SuiteModel as SuiteModel
from mechclust.commands.topics.suite.models import read_suite as read_suite
from mechclust.commands.topics.suite.report import write_suite_report as write_suite_report
from mechclust.commands.topics.suite.result import SuiteResult as SuiteResult
from mechclust.commands.topics.suite.run import run_suite as run_suite
