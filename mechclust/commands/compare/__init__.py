"""``mechclust compare``: which layers did tuning change, for which tasks?

1. ``config`` holds the settings. ``inputs`` reads the prompts, finds the models (``checkpoints``), and refuses bad
   input before weights are loaded.
2. ``measure`` runs the command. It saves the hidden states of one model after the other (``commands.saved_rows``).
   With both in memory (``both_models``), it saves the blocks' additions to one input (``block_rows``) and patches one
   into the other (``patching``).
3. ``by_layer`` runs probes on them, in parts that are kept.
4. ``measurements`` holds the numbers and judges which layers changed (``layer_verdict``), which matter to the output
   (``output_verdict``) and which tasks stand out (``standing_out``).
5. ``readings``, ``output_readings`` and ``tables`` state the results, ``figures`` and ``planes`` draw them, and
   ``result`` writes the page.
"""

from mechclust.commands.compare.config import CompareConfig as CompareConfig
from mechclust.commands.compare.measure import compare_models as compare_models
from mechclust.commands.compare.result import CompareResult as CompareResult
