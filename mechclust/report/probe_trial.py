"""Try probes on a tiny network, before anything is loaded or trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from mechclust.models import ModelConfig, build_model
from probes import Probe, ProbeResult, run
from tasks import Batch, InputError
from tasks.errors import error_line

MAX_EXAMPLES = 2048
_D_VOCAB = 16


def try_probes(
    probes: Mapping[str, Probe], batches: Iterable[Batch], examples: str, *, kind: str
) -> dict[str, ProbeResult]:
    """Run probes on a tiny network with random weights, and refuse those that the examples lack something for.

    Args:
        probes: the probes by name.
        batches: the examples, whose tokens are replaced by those of the network. Of many, every few are taken.
        examples: what they are called in errors, such as ``"prompts"``.
        kind: what the probes are called in errors, such as ``"--probes"``.

    Returns:
        The result of each probe.

    Raises:
        InputError: naming the probe, with its reason.
    """
    batches = list(batches)
    longest = max(batch.tokens.shape[1] for batch in batches)
    every = 1 + sum(map(len, batches)) // MAX_EXAMPLES
    some = []
    for batch in batches:
        chosen = batch.select(torch.arange(0, len(batch), every)) if every > 1 else batch
        some.append(replace(chosen, tokens=chosen.tokens % _D_VOCAB))
    model = build_model(ModelConfig(_D_VOCAB, longest, n_layers=2, d_model=8, n_heads=2))
    results = {}
    for name, probe in probes.items():
        try:
            results[name] = run(model, some, probe)
        except Exception as error:  # of somebody else's code
            why = error if isinstance(error, InputError) else f"{type(error).__name__}: {error_line(error)}"
            raise InputError(f"{kind} {name} does not fit these {examples}: {why}") from error
    return results
