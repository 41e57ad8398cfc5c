"""Training: one short loop, many seeds at once, settings, callbacks, resumable state."""

from mechclust.training.callbacks import AccuracyCallback, Callback, CheckpointCallback, FileCallback, ProbeCallback
from mechclust.training.config import TrainConfig
from mechclust.training.ensemble import train_ensemble
from mechclust.training.loop import train
from mechclust.training.low_rank import LowRank
from mechclust.training.member import Member
from mechclust.training.norms import WeightNorms
from mechclust.training.probe_hook import ProbeHook
from mechclust.training.results_by_step import load_results_by_step
from mechclust.training.snapshots import Snapshots
from mechclust.training.task_accuracy import accuracy

__all__ = [
    "AccuracyCallback",
    "Callback",
    "CheckpointCallback",
    "FileCallback",
    "LowRank",
    "Member",
    "ProbeCallback",
    "ProbeHook",
    "Snapshots",
    "TrainConfig",
    "WeightNorms",
    "accuracy",
    "load_results_by_step",
    "train",
    "train_ensemble",
]
