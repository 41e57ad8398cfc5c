"""``mechclust mossa``: which layers hold which tasks after a real model was tuned on many (Zhao, Ziser & Cohen).

1. ``config`` holds the settings. ``inputs`` reads the tasks and refuses invalid ones. ``estimate`` computes the cost of
   the run.
2. ``run`` runs the command: ``train`` trains an adapter on all tasks and one on each, and ``jobs`` plans which of these
   ``models`` are measured on which prompts.
3. ``measure`` compares hidden states (``states``) and answers (``learnt``, ``margins``) task by task, and ``pooled``
   all tasks together.
4. ``measurements`` holds the numbers as arrays, ``findings`` judges the paper's statements, and ``readings`` concludes.
5. ``tables`` and ``figures`` show them (``curve_figures``, ``model_figures``, ``drawing``), and ``result`` writes the
   page.
"""

from mechclust.commands.mossa.config import MossaConfig, presets
from mechclust.commands.mossa.result import MossaResult
from mechclust.commands.mossa.run import run_mossa

__all__ = ["MossaConfig", "MossaResult", "presets", "run_mossa"]
