"""``mechclust compare``: which layers did tuning change, for which tasks?"""

from mechclust.commands.compare.config import CompareConfig as CompareConfig
from mechclust.commands.compare.measure import compare_models as compare_models
from mechclust.commands.compare.result import CompareResult as CompareResult
