"""``mechclust history``: when in training does structure appear, and are the checkpoints what their names say?

1. ``config`` holds the settings, ``series`` puts the checkpoints in order, and ``inputs`` tokenizes once.
2. ``measure`` runs the command. ``checkpoint_job`` loads one checkpoint and saves hidden states, heads, topics,
   attention and a digest of the weights. ``by_checkpoint`` measures clusters and CKA from the saved files.
3. ``integrity`` finds checkpoints that are not as claimed.
4. ``curves`` finds when each layer crosses chance, and ``planes`` projects hidden states onto fixed planes.
5. ``measurements`` holds the numbers, ``readings`` concludes from them, and ``result`` writes the page with its figures
   (``figures``) and slider (``slider``).
"""

from mechclust.commands.history.config import HistoryConfig as HistoryConfig
from mechclust.commands.history.measure import measure_history as measure_history
from mechclust.commands.history.result import HistoryResult as HistoryResult
