"""``mechclust check``: can numbers from a model be trusted? A self-check, before anything is measured.

1. ``model`` runs the checks in order, on random tokens from ``inputs``. A check that cannot be made says why.
2. ``hooks``: do the hook points exist, fire once, and give what their names promise?
3. ``equal``: does the hooked model compute what plain Hugging Face computes (``reference``)? ``fused``: also attention
   that is measured without patterns?
4. ``batches``: does an example give the same values alone, in a batch and with padding?
5. ``traces``: does measuring leave hooks, flags or random states behind?
6. ``text``: does the tokenizer belong to the model?
7. ``result`` shows one row for each check, as text, HTML or a data frame.
"""

from mechclust.commands.check.model import check_model as check_model
from mechclust.commands.check.result import Check as Check
from mechclust.commands.check.result import CheckReport as CheckReport
