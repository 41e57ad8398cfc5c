"""Adapters trained on instructions with answers, by peft and Hugging Face's Trainer."""

from mechclust.training.tuning.adapter import TunedAdapter, tune_adapter, tuned_adapter_at
from mechclust.training.tuning.answers import ExampleScores, score_answers
from mechclust.training.tuning.config import TuneConfig

__all__ = ["ExampleScores", "TuneConfig", "TunedAdapter", "score_answers", "tune_adapter", "tuned_adapter_at"]
