"""``mechclust clusters``: at which layers do a model's hidden states cluster by task?

1. ``config`` holds the settings, and ``inputs`` reads the prompts and refuses bad ones before weights are loaded.
2. ``measure`` runs the command: it checks the cost (``estimate``), saves hidden states of the model and of copies with
   random weights (``commands.saved_rows``), and runs probes on them layer by layer (``commands.parts``).
3. ``follow`` finds the label or surface feature (``features``) that the clusters follow.
4. ``measurements`` holds the numbers as tables, ``verdicts`` judges them, and ``readings`` puts them into words.
5. ``result`` has the headline, readings, tables and figures (``figures``), and writes the page.
"""

from mechclust.commands.clusters.config import ClustersConfig as ClustersConfig
from mechclust.commands.clusters.measure import measure_clusters as measure_clusters
from mechclust.commands.clusters.result import ClustersResult as ClustersResult
