"""Training: one short loop, settings, callbacks, resumable state."""

from mechclust.training.callbacks import AccuracyCallback, ProbeCallback, SaveModel, accuracy
from mechclust.training.config import TrainConfig
from mechclust.training.loop import Callback, train

__all__ = ["AccuracyCallback", "Callback", "ProbeCallback", "SaveModel", "TrainConfig", "accuracy", "train"]
