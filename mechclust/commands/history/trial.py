"""Try probes on a tiny network before the first checkpoint is measured."""

from __future__ import annotations

from mechclust.commands.history.config import HistoryConfig
from mechclust.commands.history.curves import other_curves
from mechclust.commands.history.inputs import Inputs
from mechclust.report.probe_trial import try_probes
from tasks import InputError


def check_probes(inputs: Inputs, config: HistoryConfig) -> None:
    """Refuse probes whose inputs these prompts lack, and a history without any curve.

    Args:
        inputs: prompts.
        config: with the probes.

    Raises:
        InputError: naming the probe, with the reason.
    """
    if not config.others:
        return
    others = {name: config.registered(name) for name in config.others}
    results = try_probes(others, inputs.batches, "prompts", kind="--probes")
    n_curves = len(config.measured) - len(config.others)
    for name, result in results.items():
        n_curves += len(other_curves(name, {0: result}, 1))
    if not n_curves:
        raise InputError(
            f"--probes {' '.join(config.others)} gives no number per layer or head; add another, such as clusters or "
            "cka"
        )
