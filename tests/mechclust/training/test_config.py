"""Settings of a training run."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mechclust.training import TrainConfig
from tasks import InputError


class TestCheckpointSteps:
    @pytest.mark.parametrize(
        ("steps", "n", "expected"),
        [
            (100, 4, [0, 1, 5, 22, 67, 100]),
            (1200, 10, [0, 1, 2, 5, 11, 23, 51, 113, 248, 546, 800, 1200]),
            (1, 10, [0, 1]),
            (2, 10, [0, 1, 2]),
            (20, 3, [0, 1, 4, 14, 20]),
            (9, 0, [0, 1, 6, 9]),
        ],
    )
    def test_are_log_spaced_with_both_ends_and_two_thirds(self, steps, n, expected):
        assert TrainConfig(steps=steps, n_checkpoints=n).checkpoint_steps == expected

    def test_are_plain_integers(self):
        assert {type(step) for step in TrainConfig().checkpoint_steps} == {int}


class TestLearningRate:
    def test_is_that_of_torch(self):
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([parameter], lr=0.3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: (1 + math.cos(math.pi * s / 10)) / 2)
        config = TrainConfig(steps=10, lr=0.3)
        for step in range(10):
            assert config.lr_at(step) == pytest.approx(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()

    def test_late_drop_is_a_tenth_from_half_way_on(self):
        config = TrainConfig(steps=5, lr=0.5, schedule="late-drop")
        assert [config.lr_at(step) for step in range(5)] == [0.5, 0.5, 0.5, 0.05, 0.05]

    def test_warmup_rises_to_the_schedule(self):
        config = TrainConfig(steps=10, lr=0.5, schedule="constant", warmup=4)
        assert [config.lr_at(step) for step in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])
        late, plain = (TrainConfig(steps=10, lr=0.5, warmup=warmup) for warmup in (4, 0))
        assert [late.lr_at(step) for step in range(4, 10)] == [plain.lr_at(step) for step in range(4, 10)]


class TestFields:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"steps": 0}, "steps is 0; expected at least 1"),
            ({"steps": 2.5}, "steps is 2.5; expected an integer"),
            ({"steps": 10**12}, "steps is 1000000000000; expected at most 1000000000"),
            ({"batch_size": -2}, "batch_size is -2; expected at least 1"),
            ({"save_every": 0}, "save_every is 0; expected at least 1"),
            ({"warmup": -1}, "warmup is -1; expected at least 0"),
            ({"layer_decay": 0.0}, "layer_decay is 0.0; expected above 0"),
            ({"layer_decay": 1.1}, "layer_decay is 1.1; expected at most 1"),
            ({"lr": 0.0}, "lr is 0.0; expected above 0"),
            ({"lr": math.nan}, "lr is nan; expected a finite number"),
            ({"weight_decay": math.inf}, "weight_decay is inf; expected a finite number"),
            ({"clip": math.inf}, "clip is inf; expected a finite number"),
            ({"clip": 0.0}, "clip is 0.0; expected above 0"),
            ({"weight_decay": -0.1}, "weight_decay is -0.1; expected at least 0"),
            ({"betas": (0.9, 1.0)}, "betas[1] is 1.0; expected below 1"),
            ({"n_checkpoints": -1}, "n_checkpoints is -1; expected at least 0"),
            ({"n_checkpoints": 10**12}, "n_checkpoints is 1000000000000; expected at most 10000"),
            ({"checkpoint_every": 0}, "checkpoint_every is 0; expected at least 1"),
            ({"optimizer": "lion"}, "optimizer is 'lion'; expected 'adamw', 'adam' or 'sgd'"),
            ({"freeze": (1,)}, "freeze[0] is 1; expected a string"),
            ({"schedule": np.ones(2)}, "schedule is array([1., 1.]); expected 'cosine', 'constant' or 'late-drop'"),
        ],
    )
    def test_refusals(self, fields, message):
        with pytest.raises(InputError) as refused:
            TrainConfig(**fields)
        assert str(refused.value) == message
