"""Can numbers from a model be trusted? A self-check, before anything is measured."""

from mechclust.check.model import check_model
from mechclust.check.result import Check, CheckReport

__all__ = ["Check", "CheckReport", "check_model"]
