"""The optimiser of a training run, and the parameters that it trains."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from mechclust.training.config import TrainConfig
from tasks import InputError


def parameter_groups(
    named: Mapping[str, Shaped[Tensor, "..."]], config: TrainConfig, kind: str
) -> dict[float, list[str]]:
    """Return the names of the parameters that are trained, by their share of the learning rate.

    Args:
        named: the parameters, as ``trainable_weights`` names them.
        config: the frozen parameters, and how the rate falls from block to block.
        kind: the class of the model, for errors.

    Raises:
        InputError: if a frozen parameter does not exist, or none is left to train.
    """
    frozen: set[str] = set()
    for part in config.freeze:
        names = {name for name in named if part and is_in_part(name, part)}
        if not names:
            raise InputError(
                f"freeze has {part!r}, which is not a parameter or part of the model (there are {', '.join(named)})"
            )
        frozen |= names
    last_block = max((_block_of(name, default=-1) for name in named), default=-1)
    groups: dict[int, list[str]] = {}
    for name in named:
        if name not in frozen:
            block = _block_of(name, default=-1 if name.startswith(("embed.", "pos_embed.")) else last_block)
            depth = last_block - block if config.layer_decay < 1 else 0
            groups.setdefault(depth, []).append(name)
    if not groups:
        raise InputError(f"this {kind} has nothing to train; let some parameters require gradients")
    return {config.layer_decay**depth: names for depth, names in groups.items()}


def is_in_part(name: str, part: str) -> bool:
    """Return whether a parameter is a part of the model, or in it. ``""`` is the whole model.

    Example:
        >>> is_in_part("blocks.1.ln1.w", "blocks.1"), is_in_part("blocks.10.ln1.w", "blocks.1")
        (True, False)
    """
    return part in ("", name) or name.startswith(f"{part}.")


def _block_of(name: str, default: int) -> int:
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match[1]) if match else default


def make_optimizer(
    named: Mapping[str, Shaped[Tensor, "..."]], names_by_share: Mapping[float, Sequence[str]], config: TrainConfig
) -> torch.optim.Optimizer:
    """Return PyTorch's own optimiser with the settings of ``config``, and a group for each of ``parameter_groups``."""
    groups = [{"params": [named[name] for name in names], "share": share} for share, names in names_by_share.items()]
    decay: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, **decay)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, betas=config.betas, **decay)
