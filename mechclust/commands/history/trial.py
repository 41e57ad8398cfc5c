"""Try probes on a tiny network before the first checkpoint is measured."""

from __future__ import annotations

from dataclasses import replace

from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.curves import other_curves
from mechclust.commands.history.inputs import Inputs
from mechclust.models import ModelConfig, build_model
from probes import run
from tasks import InputError

_D_VOCAB = 16


def try_probes(inputs: Inputs, config: HistoryConfig) -> None:
    """Refuse probes that these prompts lack something for, and a history of which no curve would come.

    Args:
        inputs: prompts, whose tokens are replaced by those of a tiny network with random weights.
        config: with the probes.

    Raises:
        InputError: naming the probe, with its reason.
    """
    if not config.others:
        return
    longest = max(batch.tokens.shape[1] for batch in inputs.batches)
    model = build_model(ModelConfig(_D_VOCAB, longest, n_layers=2, d_model=8, n_heads=2))
    batches = [replace(batch, tokens=batch.tokens % _D_VOCAB) for batch in inputs.batches]
    n_curves = len(config.measured) - len(config.others)
    for name in config.others:
        try:
            result = run(model, batches, config.registered(name))
        except InputError as error:
            raise InputError(f"--probes {name} does not fit these prompts: {error}") from error
        n_curves += len(other_curves(name, {0: result}, 1))
    if not n_curves:
        raise InputError(
            f"--probes {' '.join(config.others)} gives no number per layer or head; add another, such as clusters or "
            "cka"
        )
