"""``mechclust check``: whether numbers from a model can be trusted."""

from __future__ import annotations

from pathlib import Path

import tyro

from mechclust.cli_commands.printing import print_visible
from mechclust.cli_settings import Perhaps
from mechclust.commands.check import check_model
from mechclust.commands.settings import Dtype


def command(
    model: tyro.conf.Positional[str],
    adapter: Perhaps[Path] = None,
    device: str = "cpu",
    device_map: Perhaps[str] = None,
    dtype: Dtype = "float32",
    trust_remote_code: bool = False,
    seed: int = 0,
) -> int:
    """Run ``mechclust check``.

    Args:
        model: a hub name, a local directory with model and tokenizer, a .gguf file, an adapter, or a save_model file.
        adapter: folder of an adapter (LoRA or a relative, saved by peft) to add to the model.
        device: device to run on, such as cpu or cuda.
        device_map: auto spreads a model that is too large for one device over several. Give it without device.
        dtype: dtype of the model's weights.
        trust_remote_code: run code that comes with a checkpoint. It can do anything that you can do, so read it first.
        seed: seed for the random tokens, labels and weights.
    """
    report = check_model(
        model,
        adapter=adapter,
        device=None if device_map and device == "cpu" else device,
        device_map=device_map,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        seed=seed,
        progress=True,
    )
    print_visible(report)
    return 0 if report.passed else 1
