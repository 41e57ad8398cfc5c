"""Settings that cannot be used are refused, and steps are counted as Hugging Face's Trainer counts them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mechclust.training.tuning import TuneConfig
from tasks import InputError


def test_the_defaults_are_the_published_ones() -> None:
    config = TuneConfig()
    assert (config.rank, config.alpha, config.dropout, config.modules) == (8, 16, 0.0, ("q_proj", "v_proj"))
    assert (config.lr, config.per_step, config.epochs, config.warmup, config.clip) == (5e-5, 16, 3.0, 0, 1.0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rank": 0}, "rank is 0; expected at least 1"),
        ({"rank": 2.5}, "rank is 2.5; expected an integer"),
        ({"alpha": 0}, "alpha is 0; expected at least 1"),
        ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
        ({"accumulation": 0}, "accumulation is 0; expected at least 1"),
        ({"warmup": -1}, "warmup is -1; expected at least 0"),
        ({"save_every": 0}, "save_every is 0; expected at least 1"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"steps": 0}, "steps is 0; expected at least 1"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; expected at least 0"),
        ({"lr": 0.0}, "lr is 0.0; expected above 0"),
        ({"lr": math.nan}, "lr is nan; expected a finite number"),
        ({"epochs": math.inf}, "epochs is inf; expected a finite number"),
        ({"clip": -1.0}, "clip is -1.0; expected above 0"),
        ({"dropout": 1.0}, "dropout is 1.0; expected below 1"),
        ({"modules": ("q_proj", "q_proj")}, "modules has 'q_proj' twice; give it once"),
        ({"modules": ()}, "modules is empty; name the linear layers that the adapter changes, such as q_proj"),
    ],
)
def test_refusals(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        TuneConfig(**fields)
    assert str(refused.value) == said


@pytest.mark.parametrize(("n", "epochs"), [(1, 1.0), (13, 2.5), (17, 0.3), (100, 1.01)])
def test_steps_are_those_of_the_trainer(n: int, epochs: float, tmp_path: Any) -> None:
    from torch.utils.data import DataLoader
    from transformers import Trainer, TrainingArguments

    from tests.mechclust.training.tuning.small import language_model

    config = TuneConfig(epochs=epochs, batch_size=2, accumulation=3)
    arguments = TrainingArguments(
        str(tmp_path), num_train_epochs=epochs, per_device_train_batch_size=2, gradient_accumulation_steps=3,
        use_cpu=True, report_to=[],
    )  # fmt: skip
    trainer = Trainer(language_model(), arguments)
    *_, max_steps = trainer.set_initial_training_values(arguments, DataLoader(range(n), batch_size=2))
    assert config.steps_for(n) == max_steps
    assert TuneConfig(steps=7).steps_for(n) == 7
