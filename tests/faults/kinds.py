"""The kinds of faults, in the order of the table."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from typing import Literal

from mechclust.command_table import COMMANDS
from tests.faults import damage, disks, kills, owners, safety, texts, workers
from tests.faults.bench import Trial

Round = Literal["small", "full"]
Trials = Callable[[Round, random.Random], list[Trial]]

KINDS: dict[str, Trials] = {
    "kills": kills.trials,
    "damage": damage.trials,
    "disks": disks.trials,
    "owners": owners.trials,
    "workers": workers.trials,
    "texts": texts.trials,
    "pickles": safety.pickles,
}
TITLES = (
    *(kills.KIND, damage.KIND, disks.KIND, owners.KIND, workers.LOCAL, workers.RAY, texts.KIND),
    safety.PICKLES,
)

# What commands import late: imported before the first fork, so that no process does it again.
_LATE = (
    *("mechclust.cli", *(f"mechclust.cli_commands.{name}" for name in COMMANDS)),
    *("matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("transformers", "transformers.models.gpt2.modeling_gpt2", "transformer_lens", "plotly.graph_objects", "pandas"),
    *("sklearn.cluster", "sklearn.manifold", "sklearn.linear_model", "sklearn.decomposition", "scipy.stats"),
    *("torch.func", "torch._dynamo", "tests.mechclust.conftest"),
)


def preload() -> None:
    """Import everything once."""
    for module in _LATE:
        import_module(module)
    import torch

    torch.set_num_threads(1)
