"""``mechclust history``: when in training does structure appear, and are the checkpoints what their names say?"""

from mechclust.commands.history.config import HistoryConfig as HistoryConfig
from mechclust.commands.history.measure import measure_history as measure_history
from mechclust.commands.history.result import HistoryResult as HistoryResult
