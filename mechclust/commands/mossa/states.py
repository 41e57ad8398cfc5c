"""The hidden states that a MOSSA run compares, and their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mechclust.commands.mossa.models import ResidentBase
from probes import last_token, residual
from probes.engine.devices import device_of
from probes.engine.sites import Sites

READOUT = last_token()


def block_sites(n_layers: int, layers: Sequence[int] | None = None) -> Sites:
    """Return the outputs of these blocks, or of all, and with the last one the final norm's output.

    The embedding of the last token is one vector for all prompts, which has no CKA.
    """
    chosen = list(range(1, n_layers + 1)) if layers is None else list(layers)
    return residual(chosen, final_norm=chosen[-1] == n_layers)


def comparison_device(resident: ResidentBase) -> dict[str, Any]:
    """Return the device where states are compared, as an option of probes.

    It is the model's, because products of many prompts' states take hours on the CPU next to a large model.
    """
    config = resident.config
    device = str(device_of(resident.hooked)) if config.device_map else config.device
    return {} if device == "cpu" else {"device": device}
