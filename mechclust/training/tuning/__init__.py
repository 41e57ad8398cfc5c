"""Adapters trained on instructions with answers, by peft and Hugging Face's Trainer."""

from mechclust.training.tuning.adapter import Tuned, adapter_at, tune_adapter
from mechclust.training.tuning.answers import ExampleScores, score_answers
from mechclust.training.tuning.config import TuneConfig

__all__ = ["ExampleScores", "TuneConfig", "Tuned", "adapter_at", "score_answers", "tune_adapter"]
