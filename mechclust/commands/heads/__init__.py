"""``mechclust heads``: which role does each attention head play?

1. ``config`` holds the settings, and ``inputs`` makes the texts: repeated random tokens, and documents of a corpus. It
   refuses bad ones before weights are loaded. ``estimate`` says what they cost.
2. ``measure`` runs ``HeadRoles`` on the model and on copies with random weights, in parts that are kept.
3. ``measurements`` holds the numbers as tables, and ``readings`` puts them into words.
4. ``result`` has the headline, readings, tables and figures (``figures``), and writes the page.
"""

from mechclust.commands.heads.config import HeadsConfig as HeadsConfig
from mechclust.commands.heads.measure import measure_heads as measure_heads
from mechclust.commands.heads.result import HeadsResult as HeadsResult
