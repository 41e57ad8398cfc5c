"""Refuse networks that cannot be built or trained, before anything of a run is written."""

from __future__ import annotations

from dataclasses import replace

from mechclust.models import ModelConfig
from mechclust.models.weights import initial_weights
from mechclust.training import TrainConfig
from mechclust.training.loop import trained_names


def check_training(model: ModelConfig, *trainings: TrainConfig) -> None:
    """Refuse a training that freezes what the network does not have, or all of it. The network is not built.

    Args:
        model: the network, whose sizes its own class has checked.
        trainings: how it is trained, first or later.

    Raises:
        InputError: naming what is frozen.

    Example:
        >>> check_training(ModelConfig(d_vocab=9, n_ctx=4, n_layers=1), TrainConfig(freeze=("blocks.1",)))
        Traceback (most recent call last):
        ...
        tasks.errors.InputError: freeze has 'blocks.1', which is not a parameter ...
    """
    narrow = replace(model, d_vocab=1, n_ctx=1, d_model=1, n_heads=1, d_mlp=1)
    named = initial_weights(narrow)
    del named["unembed.b_U"]  # which stays 0
    for training in trainings:
        trained_names(named, training, "network")
