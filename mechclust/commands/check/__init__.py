"""``mechclust check``: can numbers from a model be trusted? A self-check, before anything is measured."""

from mechclust.commands.check.model import check_model as check_model
from mechclust.commands.check.result import Check as Check
from mechclust.commands.check.result import CheckReport as CheckReport
