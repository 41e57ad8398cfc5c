"""Adapters trained on instructions with answers, by peft and Hugging Face's Trainer."""

from mechclust.training.tuning.adapter import Tuned, tune_adapter, tuned_at
from mechclust.training.tuning.answers import AnswerScores, answer_scores
from mechclust.training.tuning.config import TuneConfig

__all__ = ["AnswerScores", "TuneConfig", "Tuned", "answer_scores", "tune_adapter", "tuned_at"]
