"""Small topic transformers, and the task they fit."""

from __future__ import annotations

import torch

from mechclust.models import build_model
from mechclust.studies.topic_structure.config import TopicTransformerConfig
from tasks import TopicDocuments

TASK = TopicDocuments(
    n_topics=3,
    words_per_topic=4,
    lengths=(4, 9),
    n_documents=30,
    selected_share=0.4,
    correct_share=0.2,
    random_share=0.2,
)
D = TASK.d_vocab


def config(**fields):
    return TopicTransformerConfig(**{"d_vocab": D, "init_std": 0.3, **fields})


def built(**fields):
    return build_model(config(**fields))


def shaken(model, seed=0):
    """Every trained weight random, the bias and a fixed ``W_V`` too; what the configuration fixes stays."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad or (name.endswith("W_V") and model.config.value == "fixed"):
                weight.copy_(0.4 * torch.randn(weight.shape, generator=draw, dtype=weight.dtype))
    return model
