"""mechclust: where inside a transformer does structure live, and when in training does it appear?

Models, training, studies and views. Probes live in ``probes``, labelled data in ``tasks``.
"""

from mechclust.models import ModelConfig, build_model, load_model, load_pretrained, model_for, save_model
from mechclust.training import TrainConfig, train

__all__ = [
    "ModelConfig",
    "TrainConfig",
    "build_model",
    "load_model",
    "load_pretrained",
    "model_for",
    "save_model",
    "train",
]
